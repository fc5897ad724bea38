//! A change from three instances to two, beside the bare copy of the octets that move, in turns.

use indicatif::ProgressBar;
use kvsp_proto::path;
use tokio::runtime::Runtime;

use super::hall::{Context, Hall};
use super::model::TOKEN_OCTETS;
use crate::commands::bench::blocks::CONTAINER_OCTETS;
use crate::commands::bench::child::{Limit, address_of};
use crate::commands::bench::error::BenchError;
use crate::commands::bench::limits::{Ask, RAW_TCP};
use crate::commands::bench::measure::{Sample, Series, figure, sample_with};
use crate::commands::bench::report::Bench;
use crate::commands::bench::wire::{Wire, http_request};
use crate::commands::fleet::Change;

/// Tokens of the context.
const TOKENS: u64 = 8192;
/// Connections of the copies, as many as there are members that load.
const LANES: usize = 2;

/// Adds the figures.
pub(super) fn measure(
    quick: bool,
    runtime: &Runtime,
    hall: &Hall,
    bar: &ProgressBar,
    bench: &mut Bench,
) -> Result<(), BenchError> {
    let rounds = if quick { 2 } else { 11 };
    bar.set_message("reshard: a context is stored with three instances");
    let context = Context::of(TOKENS)?;
    runtime.block_on(hall.fill(&context))?;
    let raw = Limit::start(RAW_TCP)?;
    let mut lanes = Lanes::open(hall, &raw)?;
    let (mut change, mut bare) = (Series::new("3 -> 2, all told"), Series::new("raw TCP copy"));
    let mut get = Series::new("GET of the same ranges, not verified");
    let (mut decided, mut octets) = (Vec::new(), 0);
    for round in 0..=rounds {
        bar.set_message(format!("reshard, round {round} of {rounds}"));
        let (copied, took_bare) = sample_with(Some(raw.clock()), || lanes.raw())?;
        let version = runtime.block_on(hall.view(&context))?.version;
        let (got, took_get) =
            sample_with(Some(hall.instances[1].clock()), || lanes.get(hall, &context, version))?;
        let (done, took) = all_members(hall, || runtime.block_on(hall.reshard(&context, 2)))?;
        octets = done.fetched();
        check(&done, octets, copied, got)?;
        runtime.block_on(hall.reshard(&context, 3))?;
        if round > 0 {
            decided.push(done.to_decision().as_secs_f64() * 1e3);
            // The counters that are read around it are no part of it.
            change.push(Sample { wall_s: done.to_end().as_secs_f64(), ..took });
            bare.push(took_bare);
            get.push(took_get);
        }
    }
    bench.figures.extend([
        change.time(),
        figure("3 -> 2, until the next version holds: time".to_owned(), "ms", decided),
        bare.time(),
        get.time(),
        change.cpu_ratio("reshard / raw TCP copy, time", &[&bare], |s| s.wall_s, |s| s.wall_s),
        change.cpu_ratio("reshard / GET, time", &[&get], |s| s.wall_s, |s| s.wall_s),
        change.cpu_ratio(
            "reshard / raw TCP copy, CPU of all ends",
            &[&bare],
            |s| s.server_cpu_s,
            Sample::both_cpu_s,
        ),
        change.rate(octets as f64, "octets/s"),
    ]);
    runtime.block_on(hall.end(&context))?;
    bench.notes.push(format!(
        "{TOKENS} tokens of {TOKEN_OCTETS} octets (30 layers, 3 KV heads of 64 elements of two octets) in equal parts over \
         three instances; the second lets go of its part, the others load half of it each: {octets} octets move, for the \
         rest none; {rounds} rounds in turns after one to warm up"
    ));
    bench.notes.push(format!(
        "both copies are over {LANES} connections at once and keep nothing; the change verifies every octet and writes it \
         into the engine's pages, and its decisions are on stable storage"
    ));
    Ok(())
}

/// Every octet moved once, whichever way.
fn check(done: &Change, octets: u64, copied: usize, got: usize) -> Result<(), BenchError> {
    let demanded: u64 = done.moved.iter().map(|moved| moved.tokens() * TOKEN_OCTETS as u64).sum();
    let as_many = |other: usize| (other as u64) >= octets && (other as u64) < octets + octets / 20;
    if octets == demanded && as_many(copied) && as_many(got) {
        return Ok(());
    }
    Err(BenchError::Differ("the octets that move and those that are copied"))
}

/// Does the work with the CPU time of all members as the server's.
fn all_members<T>(
    hall: &Hall,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, Sample), BenchError> {
    let [a, b, c] = &hall.instances;
    let (((done, one), two), mut all) =
        sample_with(Some(a.clock()), || sample_with(Some(b.clock()), || sample_with(Some(c.clock()), work)))?;
    all.server_cpu_s += one.server_cpu_s + two.server_cpu_s;
    Ok((done, all))
}

/// The connections of the copies.
struct Lanes {
    raw: Vec<Wire>,
    /// Containers a lane.
    containers: usize,
    http: Vec<Wire>,
}

impl Lanes {
    fn open(hall: &Hall, raw: &Limit) -> Result<Self, BenchError> {
        let moved = (TOKENS / 3) as usize * TOKEN_OCTETS;
        let largest = PIECE_TOKENS as usize * TOKEN_OCTETS + (1 << 12);
        let address = address_of(hall.source())?;
        let wires =
            |address, octets| (0..LANES).map(|_| Wire::connect(address, octets)).collect::<Result<_, _>>();
        Ok(Self {
            raw: wires(raw.address(), CONTAINER_OCTETS)?,
            containers: moved.div_ceil(CONTAINER_OCTETS * LANES),
            http: wires(address, largest)?,
        })
    }

    /// As many octets as move, from a process that has them in memory.
    fn raw(&mut self) -> Result<usize, BenchError> {
        let containers = self.containers;
        each(&mut self.raw, |wire, lane| {
            for n in 0..containers {
                wire.send(&Ask::Block((lane * containers + n) as u32).to_octets())?;
                wire.exact(CONTAINER_OCTETS)?;
            }
            Ok(containers * CONTAINER_OCTETS)
        })
    }

    /// The octets that move, from the instance that lets go of them.
    fn get(&mut self, hall: &Hall, context: &Context, version: u64) -> Result<usize, BenchError> {
        let source = hall.source();
        let shards = hall.split(context, 3)?;
        let whole = shards.get(1).ok_or(BenchError::Answer("a split"))?.tokens;
        let half = whole.tokens().div_ceil(LANES as u64);
        each(&mut self.http, |wire, lane| {
            let (mut at, mut octets) = (whole.start() + half * lane as u64, 0);
            let end = whole.end().min(at + half);
            while at < end {
                let next = end.min(at + PIECE_TOKENS);
                let range = kvsp_proto::message::TokenRange::new(at, next)
                    .map_err(|_| BenchError::Answer("a range"))?;
                let path = format!("{}{}", source.path(), path::map_tokens(&context.map, version, range));
                wire.send(&http_request("GET", &path, &[], &[]))?;
                octets += wire.http()?.good("a GET of tokens")?.len();
                at = next;
            }
            Ok(octets)
        })
    }
}

/// Tokens of one GET: as many as a member asks for at once.
const PIECE_TOKENS: u64 = (8 << 20) / TOKEN_OCTETS as u64;

/// Has every connection work at the same time; what they received together.
fn each(
    wires: &mut [Wire],
    work: impl Fn(&mut Wire, usize) -> Result<usize, BenchError> + Sync,
) -> Result<usize, BenchError> {
    std::thread::scope(|scope| {
        let work = &work;
        let lanes: Vec<_> =
            wires.iter_mut().enumerate().map(|(lane, wire)| scope.spawn(move || work(wire, lane))).collect();
        let mut all = 0;
        for lane in lanes {
            all += lane.join().map_err(|_| BenchError::Ended("a connection"))??;
        }
        Ok(all)
    })
}
