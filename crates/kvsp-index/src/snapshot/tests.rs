//! Snapshots: what is written is what is read, and nothing else is.

use kvsp_core::time::Time;
use kvsp_net::clock::BootTime;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_store::fs::LocalFileSystem;
use kvsp_store::testing::{FailingFileSystem, Faults, LOSSES, Operation, RecordingFileSystem};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;

const BOOT: Uuid = Uuid::from_u128(9);
const MAX: u64 = 64 << 20;

fn head() -> Head {
    let taken = BootTime { boot: BOOT, since: Time::from_millis(500) };
    Head { taken, incarnation: 3, next_change: 17, last_words: true }
}

/// One clock: times stay as they are.
fn same() -> Shift {
    Shift { now: Time::from_millis(100), since_boot: Time::from_millis(100) }
}

fn snapshots(dir: &tempfile::TempDir) -> Snapshots {
    Snapshots::open(Arc::new(LocalFileSystem), &dir.path().join("state/index"), MAX).unwrap()
}

fn write(snapshots: &Snapshots, entries: &[SnapshotEntry]) -> Result<u64, SnapshotError> {
    let mut pieces = entries.chunks(3).map(|piece| (piece.to_vec(), same()));
    snapshots.write(&head(), || pieces.next())
}

fn read(snapshots: &Snapshots) -> Result<Option<Vec<SnapshotEntry>>, SnapshotError> {
    let mut entries = Vec::new();
    let found = snapshots.read(&same(), |_, entry| entries.push(entry))?;
    assert!(found.is_none_or(|found| found == head()));
    Ok(found.map(|_| entries))
}

fn descriptor() -> SnapshotEntry {
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let descriptor = Descriptor::from_value(json!({
        "model": "é", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 2,
        "head_dim": 4, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 16,
        "layout": "kvsp-layout-1", "unknown": {"x": [1.5]}
    }))
    .unwrap();
    SnapshotEntry::Descriptor { compat: descriptor.compat_id(), descriptor: Arc::new(descriptor) }
}

prop_compose! {
    fn some_entry()(
        kind in 0_u8..3,
        octets in any::<[u8; 4]>(),
        holder in prop::sample::select(&["https://h1/", "https://h2/kvsp/", "moqt://m/x"][..]),
        micros: u32,
        digests in prop::collection::vec(any::<[u8; 32]>(), 0..4),
        spans in prop::collection::vec((0_usize..4, any::<u32>(), any::<u32>(), prop::option::of(any::<f64>())), 1..4),
        seq: Option<u64>,
        epoch: Option<u64>,
        texts in any::<(Option<String>, Option<String>)>(),
        yields: bool,
    ) -> SnapshotEntry {
        let time = Time::from_micros(u64::from(micros));
        let holder = holder.parse().unwrap();
        let (compat_id, scope_id) = (CompatId([octets[0]; 32]), ScopeId([octets[1]; 16]));
        let block_key = BlockKey([octets[2]; 32]);
        match kind {
            0 => SnapshotEntry::Holder { holder, epoch: seq.unwrap_or(1), until: time },
            1 => SnapshotEntry::Tombstone {
                name: ReplicaName { compat_id, scope_id, block_key, holder, seq }, until: time, yields,
            },
            _ => {
                let digests: Vec<Digest> = digests.into_iter().map(Digest).collect();
                let residency = spans.into_iter().map(|(tier, first, last, rate)| Residency {
                    tier: Tier::ALL[tier], layers: LayerSpan(first, last),
                    read_mbit_per_s: rate.filter(|rate| !rate.is_nan()),
                }).collect();
                let record = Box::new(ReplicaRecord {
                    block_key, compat_id, scope_id, holder, codec: Codec::new(u16::from(octets[3]) + 1).unwrap(),
                    size: u64::from(micros), digest: NamedDigest(replica_digest(&digests)),
                    layer_digests: (!digests.is_empty()).then_some(digests), residency,
                    ttl_ms: u64::from(micros) + 1, seq, holder_epoch: epoch,
                    producer: texts.0, moqt_namespace: texts.1,
                });
                SnapshotEntry::Record { record, deadline: time }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(mut entries in prop::collection::vec(some_entry(), 0..12)) {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        entries.push(descriptor());
        let octets = write(&snapshots, &entries).unwrap();
        prop_assert_eq!(std::fs::metadata(snapshots.path()).unwrap().len(), octets);
        prop_assert_eq!(read(&snapshots).unwrap(), Some(entries));
    }

    #[test]
    fn what_is_not_what_was_written_is_refused(
        entries in prop::collection::vec(some_entry(), 1..6),
        at: prop::sample::Index, flip in 1_u8.., cut: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = snapshots(&dir);
        write(&snapshots, &entries).unwrap();
        let mut octets = std::fs::read(snapshots.path()).unwrap();
        let at = at.index(octets.len());
        if cut { octets.truncate(at) } else { octets[at] ^= flip }
        std::fs::write(snapshots.path(), &octets).unwrap();
        let mut ended = Vec::new();
        let outcome = snapshots.read(&same(), |_, entry| ended.push(entry));
        prop_assert!(outcome.is_err(), "{:?}", outcome);
    }
}

#[test]
fn an_empty_place_is_no_snapshot_and_a_foreign_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    assert!(read(&snapshots).unwrap().is_none());
    for text in ["", "KVSPIDX\n", "anything else that is long enough for the head of a snapshot of an index"]
    {
        std::fs::write(snapshots.path(), text).unwrap();
        assert!(matches!(read(&snapshots), Err(SnapshotError::Foreign)), "{text}");
    }
    let mut other = head().encode();
    other[11] = 2;
    other.extend_from_slice(&[0; 36]);
    std::fs::write(snapshots.path(), other).unwrap();
    assert!(matches!(read(&snapshots), Err(SnapshotError::Version(2))));
    let to = snapshots.set_aside().unwrap();
    assert!(to.exists() && read(&snapshots).unwrap().is_none());
}

#[test]
fn a_snapshot_that_grows_too_large_leaves_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let snapshots = Snapshots::open(Arc::new(LocalFileSystem), &path, 2_000).unwrap();
    let small = [descriptor()];
    write(&snapshots, &small).unwrap();
    let large = vec![descriptor(); 9];
    assert!(matches!(write(&snapshots, &large), Err(SnapshotError::TooLarge { max: 2_000 })));
    assert_eq!(read(&snapshots).unwrap(), Some(small.to_vec()));
    assert!(!beside(&path, ".new").exists());
}

#[test]
fn a_place_is_one_processs() {
    let dir = tempfile::tempdir().unwrap();
    let first = snapshots(&dir);
    std::fs::write(beside(first.path(), ".new"), "half").unwrap();
    let again = || Snapshots::open(Arc::new(LocalFileSystem), first.path(), MAX);
    assert_eq!(again().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let path = first.path().to_owned();
    drop(first);
    Snapshots::open(Arc::new(LocalFileSystem), &path, MAX).unwrap();
    assert!(!beside(&path, ".new").exists(), "what was not finished is gone");
}

#[test]
fn times_move_with_the_clocks() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = snapshots(&dir);
    let entry = SnapshotEntry::Holder {
        holder: "https://h/".parse().unwrap(),
        epoch: 1,
        until: Time::from_millis(150),
    };
    let before = Shift { now: Time::from_millis(100), since_boot: Time::from_millis(10_100) };
    let mut piece = Some((vec![entry], before));
    snapshots.write(&head(), || piece.take()).unwrap();
    // 30 ms later another process asks, whose clock stands at 5 ms.
    let after = Shift { now: Time::from_millis(5), since_boot: Time::from_millis(10_130) };
    let mut found = Vec::new();
    snapshots.read(&after, |_, entry| found.push(entry)).unwrap();
    assert!(matches!(&found[..], [SnapshotEntry::Holder { until, .. }] if *until == Time::from_millis(25)));
}

fn holder(epoch: u64) -> SnapshotEntry {
    SnapshotEntry::Holder { holder: "https://h/".parse().unwrap(), epoch, until: Time::from_millis(150) }
}

/// Writes two snapshots and cuts the power at every step; tells what was not as it must be.
fn wrong_after_power_loss(ignored_sync: Option<usize>) -> Vec<String> {
    let disk = RecordingFileSystem::new();
    if let Some(number) = ignored_sync {
        disk.ignore_sync(number);
    }
    let open = |disk: &RecordingFileSystem| {
        Snapshots::open(Arc::new(disk.clone()), Path::new("/var/state/index"), MAX).unwrap()
    };
    let snapshots = open(&disk);
    let (first, second) = (vec![holder(1); 40], vec![holder(2)]);
    write(&snapshots, &first).unwrap();
    let one = disk.steps();
    write(&snapshots, &second).unwrap();
    let two = disk.steps();
    let mut wrong = Vec::new();
    for steps in 0..=two {
        for loss in LOSSES {
            let found = read(&open(&disk.after_power_loss(steps, loss)));
            let allowed = match &found {
                Ok(None) => steps < one,
                Ok(Some(entries)) => (*entries == first && steps < two) || *entries == second,
                Err(_) => false,
            };
            if !allowed {
                wrong.push(format!("after {steps} of {one} and {two} steps, {loss:?}: {found:?}"));
            }
        }
    }
    wrong
}

#[test]
fn power_may_go_at_any_step() {
    assert_eq!(wrong_after_power_loss(None), Vec::<String>::new());
}

#[test]
fn every_sync_is_needed() {
    let disk = RecordingFileSystem::new();
    let snapshots = Snapshots::open(Arc::new(disk.clone()), Path::new("/var/state/index"), MAX).unwrap();
    write(&snapshots, &[holder(1)]).unwrap();
    write(&snapshots, &[holder(2)]).unwrap();
    let syncs = disk.syncs();
    assert_eq!(syncs.len(), 6, "{syncs:?}");
    for (number, of) in syncs.iter().enumerate() {
        assert!(!wrong_after_power_loss(Some(number)).is_empty(), "without the sync of {of:?}");
    }
}

#[test]
fn a_full_or_failing_disk_leaves_the_last_snapshot_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FailingFileSystem::new(Arc::new(LocalFileSystem));
    let path = dir.path().join("index");
    let snapshots = Snapshots::open(Arc::new(disk.clone()), &path, MAX).unwrap();
    write(&snapshots, &[holder(1)]).unwrap();
    let full =
        Faults { first: 0, count: u64::MAX, only: Some(Operation::Grow), kind: io::ErrorKind::StorageFull };
    let count = Faults { first: u64::MAX, count: 0, only: None, kind: io::ErrorKind::Other };
    disk.fail(count);
    write(&snapshots, &[holder(1)]).unwrap();
    let operations = disk.operations();
    for faults in (0..operations).map(|first| Faults { first, count: 1, ..count }).chain([full]) {
        disk.fail(faults);
        let outcome = write(&snapshots, &[holder(2), descriptor()]);
        disk.heal();
        // Where the names were not made durable the new one is there all the same.
        let now = read(&snapshots).unwrap().unwrap();
        assert!(outcome.is_err(), "{faults:?}");
        assert!(now == [holder(1)] || now == [holder(2), descriptor()], "{faults:?}: {now:?}");
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{faults:?}: {names:?}");
        write(&snapshots, &[holder(1)]).unwrap();
    }
}
