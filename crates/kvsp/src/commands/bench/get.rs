//! Verified retrieval of blocks over loopback, beside a raw copy of the same octets and bare hashing.

use std::hint::black_box;

use kvsp_client::{Client, ClientConfig};
use kvsp_proto::container::Container;
use kvsp_proto::digest::{replica_digest, sha256};
use kvsp_proto::id::{BlockKey, CompatId, NamedDigest, ScopeId};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::BaseUri;
use tokio::runtime::Runtime;

use super::BenchError;
use super::holder::Holder;
use super::measure::{Series, sample};
use super::raw_copy::RawCopy;
use super::report::{Bench, Figure};
use crate::progress;

const COMPAT: CompatId = CompatId([0xc3; 32]);
const SCOPE: ScopeId = ScopeId([0x5c; 16]);
/// 32 layers of 64 KiB, as of a model with 8 KV heads of 64 dimensions of 2 octets and blocks of 32 tokens.
const LAYERS: u32 = 32;
const SECTION_OCTETS: usize = 32 << 10;
const BLOCK_TOKENS: u32 = 32;
/// Congestion controls without pacing, the first that the system allows is taken.
const UNPACED: [&str; 2] = ["reno", "cubic"];

struct Contest {
    containers: Vec<Container>,
    octets: f64,
    runtime: Runtime,
    client: Client,
    records: Vec<ReplicaRecord>,
    copies: Vec<(RawCopy, Series)>,
    get: Series,
    one_pass: Series,
    two_passes: Series,
}

/// Measures octets a second of every way.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (blocks, rounds) = if quick { (8, 5) } else { (64, 15) };
    let bar = progress::spinner("get".to_owned());
    let containers = (0..blocks).map(container).collect::<Result<Vec<_>, _>>()?;
    let octets: u64 = containers.iter().map(Container::size).sum();
    let holder = Holder::start(2 * octets)?;
    let mut contest = Contest::new(containers, holder.base())?;
    // The first round warms up and is thrown away.
    for round in 0..=rounds {
        bar.set_message(format!("get, round {round} of {rounds}"));
        contest.round(round > 0)?;
    }
    bar.finish_and_clear();
    holder.stop()?;
    let mut notes = contest.notes();
    notes.insert(
        0,
        format!(
            "{blocks} containers of {} octets a round, {rounds} rounds in turns after one to warm up",
            contest.containers.first().map_or(0, Container::size)
        ),
    );
    Ok(Bench { name: "get", figures: contest.figures(), notes })
}

impl Contest {
    fn new(containers: Vec<Container>, holder: &BaseUri) -> Result<Self, BenchError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(BenchError::io("the client's runtime"))?;
        let client = Client::new(ClientConfig::default());
        let records: Vec<ReplicaRecord> =
            (0..).zip(&containers).map(|(block, container)| record(block, container, holder)).collect();
        runtime.block_on(async {
            for (record, container) in records.iter().zip(&containers) {
                let octets = container.bytes().clone();
                client.put_block(holder, COMPAT, SCOPE, record.block_key, octets).await?;
            }
            Ok::<_, BenchError>(())
        })?;
        let pieces: Vec<_> = containers.iter().map(|container| container.bytes().clone()).collect();
        let mut copies = Vec::new();
        let default = RawCopy::start(pieces.clone(), None)?;
        let paced = default.as_ref().is_some_and(|copy| !UNPACED.contains(&copy.congestion()));
        copies.extend(default);
        if paced {
            for name in UNPACED {
                if let Some(copy) = RawCopy::start(pieces.clone(), Some(name))? {
                    copies.push(copy);
                    break;
                }
            }
        }
        let copies = copies.into_iter().map(|copy| {
            let series = Series::new(format!("raw TCP copy, {}", copy.congestion()));
            (copy, series)
        });
        Ok(Self {
            octets: containers.iter().map(|container| container.size() as f64).sum(),
            copies: copies.collect(),
            containers,
            runtime,
            client,
            records,
            get: Series::new("get, every digest verified"),
            one_pass: Series::new("one SHA-256 pass in memory"),
            two_passes: Series::new("two SHA-256 passes in memory"),
        })
    }

    /// Every contestant once.
    fn round(&mut self, counts: bool) -> Result<(), BenchError> {
        let (got, get) = sample(|| self.fetch())?;
        let mut samples = Vec::new();
        for (copy, _) in &mut self.copies {
            let (copied, took) = sample(|| copy.copy())?;
            if copied as u64 != got {
                return Err(BenchError::Differ("get and raw copy"));
            }
            samples.push(took);
        }
        let ((), one) = sample(|| {
            for container in &self.containers {
                black_box(sha256(container.bytes()));
            }
            Ok(())
        })?;
        let ((), two) = sample(|| {
            for container in &self.containers {
                black_box(sha256(container.bytes()));
                black_box(container.layer_digests());
            }
            Ok(())
        })?;
        if counts {
            self.get.push(get);
            self.copies.iter_mut().zip(samples).for_each(|((_, series), took)| series.push(took));
            self.one_pass.push(one);
            self.two_passes.push(two);
        }
        Ok(())
    }

    /// One block after the other, as a task of a runtime with its default threads: as in a service.
    fn fetch(&self) -> Result<u64, BenchError> {
        let (client, records) = (self.client.clone(), self.records.clone());
        let fetched = self.runtime.spawn(async move {
            let mut octets = 0;
            for record in &records {
                octets += black_box(client.get_verified(record, None).await?).size();
            }
            Ok::<_, BenchError>(octets)
        });
        self.runtime.block_on(fetched).map_err(|_| BenchError::Ended("the client"))?
    }

    fn figures(&self) -> Vec<Figure> {
        let mut series = vec![&self.get];
        series.extend(self.copies.iter().map(|(_, series)| series));
        series.extend([&self.one_pass, &self.two_passes]);
        let mut figures: Vec<Figure> = series.iter().map(|s| s.rate(self.octets, "octets/s")).collect();
        figures.extend(series.iter().map(|s| s.cpu_per_gb(self.octets)));
        for (copy, series) in &self.copies {
            figures.push(self.get.speed_ratio(format!("get / raw ({})", copy.congestion()), &[series]));
        }
        figures.push(self.get.speed_ratio("get / one pass".to_owned(), &[&self.one_pass]));
        figures.push(self.get.speed_ratio("get / two passes".to_owned(), &[&self.two_passes]));
        for (copy, series) in &self.copies {
            let name = format!("get / (raw {} + two passes)", copy.congestion());
            figures.push(self.get.speed_ratio(name, &[series, &self.two_passes]));
            let name = format!("CPU of get / CPU of (raw {} + two passes)", copy.congestion());
            figures.push(self.get.cpu_ratio(name, &[series, &self.two_passes]));
        }
        figures
    }

    fn notes(&self) -> Vec<String> {
        let congestion = self.copies.first().map_or("unknown", |(copy, _)| copy.congestion());
        let mut notes = vec![
            "get: one connection, one request at a time, client and holder in one process, each with a runtime \
             of its own; Repr-Digest, layer digests and replica digest are all verified: two SHA-256 passes"
                .to_owned(),
            "raw: one plain TCP connection over loopback, containers back to back, read into one page-aligned \
             buffer, nothing verified"
                .to_owned(),
            format!("the holder's connections have the system's congestion control, {congestion}"),
            "CPU: of the whole process, both ends; (a + b): one after the other, times added".to_owned(),
        ];
        if self.copies.len() == 1 && !UNPACED.contains(&congestion) {
            notes.push("neither reno nor cubic may be chosen for a socket here".to_owned());
        }
        notes
    }
}

/// Containers of different contents; what is in them does not change the speed.
fn container(block: u64) -> Result<Container, BenchError> {
    let mut state = block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut section = || -> Vec<u8> {
        let words = std::iter::repeat_with(|| {
            // Xorshift: not random, but different.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(SECTION_OCTETS / 8).flatten().collect()
    };
    let sections: Vec<_> = (0..LAYERS).map(|_| (section(), section())).collect();
    Ok(Container::build(Codec::RAW, 0, BLOCK_TOKENS, &sections)?)
}

fn record(block: u64, container: &Container, holder: &BaseUri) -> ReplicaRecord {
    let digests = container.layer_digests();
    let mut key = [0; 32];
    key[..8].copy_from_slice(&block.to_be_bytes());
    ReplicaRecord {
        block_key: BlockKey(key),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder: holder.into(),
        codec: container.codec(),
        size: container.size(),
        digest: NamedDigest(replica_digest(&digests)),
        layer_digests: Some(digests),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(0, LAYERS - 1),
            read_mbit_per_s: None,
        }],
        ttl_ms: 600_000,
        seq: None,
        holder_epoch: None,
        producer: None,
        moqt_namespace: None,
    }
}
