//! The index against a naive model: a list of records, scanned in order, under random operations.

use std::collections::BTreeMap;

use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;

use super::{ChangeKind, Changes, Index, IndexConfig, IndexError, Publisher};
use crate::time::Time;

const MAX_TTL_MS: u64 = 20_000;
const LAYERS: u32 = 4;

type Name = (CompatId, ScopeId, BlockKey, HolderUri);

/// A small fixed generator: the operations are the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}

/// What the profile says, without any index.
#[derive(Default)]
struct Model {
    records: Vec<(ReplicaRecord, Time)>,
    tombstones: BTreeMap<Name, (u64, Time)>,
    epochs: BTreeMap<HolderUri, u64>,
}

fn name_of(record: &ReplicaRecord) -> Name {
    (record.compat_id, record.scope_id, record.block_key, record.holder.clone())
}

impl Model {
    /// A record's `seq` outlives it by the longest TTL.
    fn forget(&mut self, now: Time) {
        let (live, ended): (Vec<_>, Vec<_>) =
            self.records.drain(..).partition(|(_, deadline)| *deadline > now);
        self.records = live;
        for (record, deadline) in ended {
            self.remember(&record, deadline);
        }
        self.tombstones.retain(|_, (_, deadline)| *deadline > now);
    }

    fn remember(&mut self, record: &ReplicaRecord, ended: Time) {
        let memory = record.seq.map(|seq| (name_of(record), (seq, ended.after_millis(MAX_TTL_MS))));
        self.tombstones.extend(memory);
    }

    fn delete_holder(&mut self, holder: &HolderUri, now: Time) {
        let (kept, ended): (Vec<_>, Vec<_>) = self.records.drain(..).partition(|(r, _)| r.holder != *holder);
        self.records = kept;
        for (record, _) in ended {
            self.remember(&record, now);
        }
    }

    fn known_seq(&self, name: &Name) -> Option<u64> {
        let record = self.records.iter().find(|(record, _)| name_of(record) == *name);
        self.tombstones.get(name).map(|(seq, _)| *seq).or_else(|| record.and_then(|(record, _)| record.seq))
    }

    fn put(&mut self, record: &ReplicaRecord, by: Publisher, now: Time) -> Result<bool, IndexError> {
        let name = name_of(record);
        let known = self.epochs.get(&record.holder).copied();
        let raises = record.holder_epoch.is_some() && record.holder_epoch > known;
        if let (Some(epoch), Some(known)) = (record.holder_epoch, known)
            && epoch < known
        {
            return Err(IndexError::StaleEpoch { known });
        }
        if raises && by == Publisher::Delegate {
            return Err(IndexError::EpochByDelegate);
        }
        if raises {
            // Before the check of seq: a raise makes it count anew. A record without an epoch stays, and
            // where its seq is higher the raise is refused with the record.
            let keeps = self
                .records
                .iter()
                .find(|(r, _)| name_of(r) == name && r.holder_epoch.is_none())
                .and_then(|(r, _)| r.seq);
            if let Some(known) = keeps
                && record.seq.is_none_or(|seq| seq < known)
            {
                return Err(IndexError::StaleSeq { known });
            }
            self.records.retain(|(r, _)| r.holder != record.holder || r.holder_epoch.is_none());
            self.tombstones.retain(|(_, _, _, holder), _| *holder != record.holder);
            self.epochs.extend(record.holder_epoch.map(|epoch| (record.holder.clone(), epoch)));
        }
        if let Some(known) = self.known_seq(&name)
            && record.seq.is_none_or(|seq| seq < known)
        {
            return Err(IndexError::StaleSeq { known });
        }
        self.tombstones.remove(&name);
        let before = self.records.len();
        self.records.retain(|(r, _)| name_of(r) != name);
        let created = self.records.len() == before;
        self.records.push((record.clone(), now.after_millis(record.ttl_ms.min(MAX_TTL_MS))));
        Ok(created)
    }

    fn delete(&mut self, name: &ReplicaName, now: Time) -> Result<bool, IndexError> {
        let key = (name.compat_id, name.scope_id, name.block_key, name.holder.clone());
        if let Some(known) = self.known_seq(&key)
            && name.seq.is_none_or(|seq| seq < known)
        {
            return Err(IndexError::StaleSeq { known });
        }
        let before = self.records.len();
        self.records.retain(|(r, _)| name_of(r) != key);
        if let Some(seq) = name.seq {
            self.tombstones.insert(key, (seq, now.after_millis(MAX_TTL_MS)));
        }
        Ok(self.records.len() < before)
    }

    fn list(&self, compat: CompatId, scope: ScopeId, key: BlockKey, now: Time) -> Vec<ReplicaRecord> {
        let mut found: Vec<ReplicaRecord> = self
            .records
            .iter()
            .filter(|(r, _)| (r.compat_id, r.scope_id, r.block_key) == (compat, scope, key))
            .map(|(r, deadline)| ReplicaRecord { ttl_ms: now.millis_until(*deadline).max(1), ..r.clone() })
            .collect();
        found.sort_by(|a, b| a.holder.cmp(&b.holder));
        found
    }
}

fn complete(replicas: &[ReplicaRecord]) -> bool {
    let listed = replicas.iter().filter_map(|r| r.layer_digests.as_ref().map(|d| d.len() as u32)).max();
    let highest = replicas.iter().flat_map(|r| &r.residency).map(|r| r.layers.1 + 1).max();
    let layers = listed.or(highest).unwrap_or(0);
    replicas.iter().any(|like| {
        (0..layers).all(|layer| {
            replicas
                .iter()
                .filter(|r| (r.digest, r.codec) == (like.digest, like.codec))
                .any(|r| r.tier_of(layer).is_some())
        })
    })
}

fn name(dice: &mut Dice) -> Name {
    let holder = format!("https://h{}/", dice.roll(5)).parse().unwrap();
    (
        CompatId([dice.roll(2) as u8; 32]),
        ScopeId([dice.roll(2) as u8; 16]),
        BlockKey([dice.roll(12) as u8; 32]),
        holder,
    )
}

fn record(dice: &mut Dice) -> ReplicaRecord {
    let (compat_id, scope_id, block_key, holder) = name(dice);
    let contents = dice.roll(2) as u8;
    let digests: Vec<Digest> = (0..LAYERS as u8).map(|l| Digest([contents * 16 + l; 32])).collect();
    let (a, b) = (dice.roll(4) as u32, dice.roll(4) as u32);
    let (first, last) = if dice.one_in(3) { (a.min(b), a.max(b)) } else { (0, LAYERS - 1) };
    let mut residency =
        vec![Residency { tier: Tier::Host, layers: LayerSpan(first, last), read_mbit_per_s: None }];
    if first > 0 && dice.one_in(2) {
        let layers = LayerSpan(0, first - 1);
        residency.push(Residency { tier: Tier::Disk, layers, read_mbit_per_s: Some(5.5) });
    }
    ReplicaRecord {
        block_key,
        compat_id,
        scope_id,
        holder,
        codec: if dice.one_in(5) { Codec::SPLIT_ZSTD } else { Codec::RAW },
        size: dice.roll(1000),
        digest: NamedDigest(replica_digest(&digests)),
        layer_digests: (!dice.one_in(4)).then_some(digests),
        residency,
        ttl_ms: 1 + dice.roll(2 * MAX_TTL_MS),
        seq: dice.one_in(3).then(|| dice.roll(6)),
        holder_epoch: dice.one_in(4).then(|| dice.roll(3)),
        producer: dice.one_in(2).then(|| format!("p{}", dice.roll(3))),
        moqt_namespace: None,
    }
}

fn check(index: &Index, model: &Model, dice: &mut Dice, now: Time) {
    let (compat, scope, first, _) = name(dice);
    let keys: Vec<BlockKey> = (0..8).map(|i| BlockKey([(first.0[0] + i) % 12; 32])).collect();
    let lists: Vec<Vec<ReplicaRecord>> = keys
        .iter()
        .map(|&key| model.list(compat, scope, key, now))
        .take_while(|list| !list.is_empty())
        .collect();
    let found = index.lookup(compat, scope, &keys, now);
    assert_eq!(found.matched(), lists.len());
    assert_eq!(found.complete(), lists.iter().take_while(|list| complete(list)).count());
    for (block, list) in found.blocks().zip(&lists) {
        let records: Vec<ReplicaRecord> = block.replicas().map(|replica| replica.to_record(true)).collect();
        assert_eq!(&records, list);
    }
}

/// What a reader sees of a record, but for the time that is left.
fn seen(record: &ReplicaRecord) -> ReplicaRecord {
    ReplicaRecord { ttl_ms: 1, seq: None, holder_epoch: None, ..record.clone() }
}

/// One that knows the index by its feed of changes, and asks for a record only when it is told of it.
#[derive(Default)]
struct Follower {
    cursor: u64,
    records: BTreeMap<Name, Option<ReplicaRecord>>,
}

impl Follower {
    fn follow(&mut self, index: &Index, dice: &mut Dice, now: Time) -> Vec<ChangeKind> {
        let mut kinds = Vec::new();
        loop {
            let Changes::Events { events, next } =
                index.changes_since(self.cursor, 1 + dice.roll(3) as usize)
            else {
                panic!("a gap, though every change was read at once");
            };
            if events.is_empty() {
                return kinds;
            }
            for event in events {
                assert_eq!(event.number, self.cursor);
                self.cursor += 1;
                let name = (event.compat, event.scope, event.key, HolderUri::clone(&event.holder));
                let known = match event.kind {
                    ChangeKind::Publish => {
                        let record = index.get(name.0, name.1, name.2, &name.3, now);
                        self.records.insert(name, record.map(|record| seen(&record)));
                        true
                    }
                    ChangeKind::Withdraw | ChangeKind::Expire => self.records.remove(&name).is_some(),
                };
                assert!(known, "an end follows a beginning");
                kinds.push(event.kind);
            }
            assert_eq!(next, self.cursor);
        }
    }

    /// What is live is known, as it is.
    fn check(&self, model: &Model) {
        for (record, _) in &model.records {
            assert_eq!(self.records.get(&name_of(record)), Some(&Some(seen(record))));
        }
    }
}

/// An index in the state of another, by way of a snapshot in pieces.
fn restart(index: &Index, dice: &mut Dice, now: Time) -> Index {
    let mut restored = Index::new(index.config, [dice.roll(u64::MAX), 5, 6, 7]);
    let mut after = None;
    loop {
        let (entries, next) = index.snapshot(after, dice.roll(9) as usize, now);
        for entry in entries {
            assert_eq!(restored.restore(entry, now), Ok(true), "a snapshot has nothing that has ended");
        }
        if next.is_none() {
            return restored;
        }
        after = next;
    }
}

fn soak(seed: u64, operations: u64) {
    let mut dice = Dice(seed);
    let config = IndexConfig { max_ttl_ms: MAX_TTL_MS, ..IndexConfig::default() };
    let mut index = Index::new(config, [seed, 2, 3, 4]);
    let mut model = Model::default();
    let mut follower = Follower::default();
    // Epochs are forgotten some time after the last record; the model remembers them for ever, so a
    // record of long TTL pins every holder.
    let mut now = Time::from_millis(dice.roll(10_000));
    for operation in 0..operations {
        now = Time::from_micros(now.as_micros() + dice.roll(300_000));
        model.forget(now);
        match dice.roll(10) {
            0..=5 => {
                let record = record(&mut dice);
                let by = if dice.one_in(5) { Publisher::Delegate } else { Publisher::Holder };
                let before = model.records.iter().find(|(r, _)| name_of(r) == name_of(&record)).cloned();
                let got = index.put(&record, by, now).map(|published| published.created);
                assert_eq!(got, model.put(&record, by, now), "operation {operation}");
                let news = got.is_ok() && before.is_none_or(|(before, _)| seen(&before) != seen(&record));
                let mut published = follower.follow(&index, &mut dice, now);
                published.retain(|kind| *kind == ChangeKind::Publish);
                assert_eq!(published.len(), usize::from(news), "operation {operation}");
            }
            6 | 7 => {
                let (compat_id, scope_id, block_key, holder) = name(&mut dice);
                let seq = dice.one_in(3).then(|| dice.roll(6));
                let name = ReplicaName { compat_id, scope_id, block_key, holder, seq };
                assert_eq!(index.delete(&name, now), model.delete(&name, now), "operation {operation}");
            }
            8 if dice.one_in(20) => {
                let (.., holder) = name(&mut dice);
                index.delete_holder(&holder, now);
                model.delete_holder(&holder, now);
            }
            8 if dice.one_in(20) => {
                index = restart(&index, &mut dice, now);
                follower = Follower::default();
            }
            _ => {
                index.expire(now, dice.roll(20) as usize);
            }
        }
        check(&index, &model, &mut dice, now);
        follower.follow(&index, &mut dice, now);
        follower.check(&model);
        assert!(index.len() >= model.records.len());
    }
    index.expire(now.after_millis(3 * MAX_TTL_MS), usize::MAX);
    assert_eq!((index.used(), index.spaces.len(), index.texts.len()), (0, 0, 0), "nothing leaks");
}

#[test]
fn the_index_does_what_the_model_does() {
    let operations = std::env::var("KVSP_SOAK_OPS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    for seed in 1..=3 {
        soak(seed, operations);
    }
}
