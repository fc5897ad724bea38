//! Lookups and refreshes in large indexes, in process, and the memory that a replica takes.

mod fill;
mod publishers;

use std::hint::black_box;

use indicatif::ProgressBar;
use kvsp_core::index::{Index, Publisher};
use kvsp_core::time::Time;
use kvsp_proto::id::BlockKey;

use super::error::BenchError;
use super::goal::Goal;
use super::measure::{Sample, Series, figure, sample};
use super::report::{Bench, Figure};
use crate::progress;
use fill::{COMPAT, Digests, LAYERS, Map, NOW, PROMPT, SCOPE, TTL_MS};

/// Lookups whose keys lie in the cache together, as keys do that were just read from a request.
const TOGETHER: usize = 16;

/// With unique layer digests this many replicas are enough: their memory does not depend on it.
const MOST_WITH_DIGESTS: usize = 1_000_000;

/// Measures lookups, refreshes and memory at several sizes.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let sizes: &[usize] = if quick { &[100_000] } else { &[100_000, 1_000_000, 5_000_000] };
    let bar = progress::spinner("lookup".to_owned());
    let mut figures = Vec::new();
    let mut growth: Vec<[f64; 3]> = Vec::new();
    for &size in sizes {
        // Whole prompts.
        let blocks = size / PROMPT * PROMPT;
        bar.set_message(format!("lookup among {blocks} replicas"));
        figures.extend(memory(blocks)?);
        growth.push(speed(blocks, quick, &bar, &mut figures)?);
    }
    if let [first, .., last] = growth.as_slice() {
        for ((what, first), last) in
            ["lookup, prefix order", "lookup, random order", "refresh"].into_iter().zip(first).zip(last)
        {
            let name = format!("{what}: time at {} replicas / at {}", sizes[sizes.len() - 1], sizes[0]);
            figures.push(figure(name, "ratio", [last / first]));
        }
    }
    bar.finish_and_clear();
    let notes = vec![
        format!(
            "a lookup asks for the {PROMPT} blocks of one prompt, prompts in random order, keys in the cache; it \
             counts matched and complete blocks, without HTTP and JSON; speeds are by CPU time of one thread"
        ),
        "hashbrown is a map from the key, its own hash, to a deadline".to_owned(),
        format!(
            "memory is the growth of the resident set while records are published, {LAYERS} layer digests of which \
             no two are equal; what other measurements left behind in the process makes it look smaller"
        ),
    ];
    Ok(Bench { name: "lookup", figures, notes })
}

/// Resident octets of a replica of each kind, and what the index says of itself.
fn memory(blocks: usize) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let listed = blocks.min(MOST_WITH_DIGESTS);
    let mut index = fill::empty(2 * blocks);
    let mut grow = |name: &str, count: usize, holder: usize, digests, goal| {
        let (resident, counted) = (resident_octets()?, index.octets());
        fill::publish(&mut index, 0..count, holder, digests)?;
        let each = |octets: u64| octets as f64 / count as f64;
        let resident = each(resident_octets()?.saturating_sub(resident));
        let name = format!("octets of a replica, {name}, {count}");
        figures.push(figure(format!("{name}: resident"), "octets", [resident]).should_be(Goal::AtMost(goal)));
        figures.push(figure(
            format!("{name}: counted"),
            "octets",
            [each(index.octets().saturating_sub(counted))],
        ));
        Ok::<(), BenchError>(())
    };
    grow("with layer digests", listed, 0, Digests::Unique, 1_250.0)?;
    grow("a further one that shares them", listed, 1, Digests::Unique, 128.0)?;
    drop(index);
    let mut index = fill::empty(blocks);
    let resident = resident_octets()?;
    fill::publish(&mut index, 0..blocks, 0, Digests::None)?;
    let each = resident_octets()?.saturating_sub(resident) as f64 / blocks as f64;
    let name = format!("octets of a replica, without layer digests, {blocks}: resident");
    figures.push(figure(name, "octets", [each]).should_be(Goal::AtMost(192.0)));
    let name = format!("octets of a replica, without layer digests, {blocks}: counted");
    figures.push(figure(name, "octets", [index.octets() as f64 / blocks as f64]));
    Ok(figures)
}

/// Times of a lookup in both orders and of a refresh, for the growth from size to size.
fn speed(
    blocks: usize,
    quick: bool,
    bar: &ProgressBar,
    figures: &mut Vec<Figure>,
) -> Result<[f64; 3], BenchError> {
    let (rounds, lookups) = if quick { (3, 20 * TOGETHER) } else { (9, 100 * TOGETHER) };
    let mut in_order = fill::empty(blocks);
    fill::publish(&mut in_order, 0..blocks, 0, Digests::None)?;
    let mut at_random = fill::empty(blocks);
    fill::publish(&mut at_random, fill::shuffled(blocks).into_iter(), 0, Digests::None)?;
    let map = fill::map(blocks);
    let named = |what: &str| Series::new(format!("lookup of {PROMPT} keys among {blocks}, {what}"));
    let mut series = [named("prefix order"), named("random order"), named("hashbrown")];
    let mut asked = Asked::new(blocks);
    for round in 0..=rounds {
        bar.set_message(format!("lookup among {blocks} replicas, round {round} of {rounds}"));
        let ways: [Way<'_>; 3] =
            [&|keys| look_up(&in_order, keys), &|keys| look_up(&at_random, keys), &|keys| in_map(&map, keys)];
        for (series, way) in series.iter_mut().zip(ways) {
            let took = asked.time(lookups, way)?;
            if round > 0 {
                series.push(took);
            }
        }
    }
    let times = series.each_ref().map(|one| one.cpu_us(lookups as f64, "CPU", |sample| sample.cpu_s));
    let [ordered, random, hashbrown] = &series;
    let growth = [times[0].row.value, times[1].row.value];
    figures.extend(times);
    let ratio = |name: &str, own: &Series, goal| {
        let name = format!("{name}: speed / hashbrown, {blocks}");
        own.cpu_speed_ratio(name, &[hashbrown]).should_be(Goal::AtLeast(goal))
    };
    figures.push(ratio("prefix order", ordered, 5.0));
    figures.push(ratio("random order", random, 2.0));
    drop((at_random, map));
    figures.extend(publishers::measure(&mut in_order, &mut asked, blocks, rounds, lookups)?);
    let refresh = refreshes(&mut in_order, blocks, rounds, figures)?;
    Ok([growth[0], growth[1], refresh])
}

/// ns of a refresh, and of what it costs the wheel of deadlines.
fn refreshes(
    index: &mut Index,
    blocks: usize,
    rounds: usize,
    figures: &mut Vec<Figure>,
) -> Result<f64, BenchError> {
    let order = fill::shuffled(blocks);
    let mut now = NOW;
    let (mut whole, mut wheel) = (Vec::new(), Vec::new());
    for _ in 0..rounds.min(3) {
        // Two thirds of the TTL later every record is refreshed; then the wheel passes the old deadlines.
        now = now.after_millis(TTL_MS / 3 * 2);
        let mut cpu_s = 0.0;
        for some in order.chunks(4096) {
            let records: Vec<_> =
                some.iter().map(|&n| fill::record(n, 0, Digests::None)).collect::<Result<_, _>>()?;
            let ((), took) = sample(|| {
                for record in &records {
                    let put = index.put(black_box(record), Publisher::Holder, now);
                    put.map_err(|_| BenchError::Differ("refreshes"))?;
                }
                Ok(())
            })?;
            cpu_s += took.cpu_s;
        }
        whole.push(cpu_s * 1e9 / blocks as f64);
        let later: Time = now.after_millis(TTL_MS / 3 + 5_000);
        let (gone, took) = sample(|| Ok(index.expire(black_box(later), usize::MAX)))?;
        if gone > 0 || index.len() != blocks {
            return Err(BenchError::Differ("refreshed records"));
        }
        wheel.push(took.cpu_s * 1e9 / blocks as f64);
    }
    let refresh = figure(format!("refresh among {blocks}, random order"), "ns", whole);
    let value = refresh.row.value;
    figures.push(refresh);
    let name = format!("refresh among {blocks}: the wheel's part");
    figures.push(figure(name, "ns", wheel).should_be(Goal::AtMost(100.0)));
    Ok(value)
}

/// How keys are looked up; how many were found.
type Way<'a> = &'a dyn Fn(&[BlockKey]) -> usize;

fn look_up(index: &Index, keys: &[BlockKey]) -> usize {
    let found = index.lookup(COMPAT, SCOPE, keys, NOW);
    found.complete().min(found.matched())
}

fn in_map(map: &Map, keys: &[BlockKey]) -> usize {
    keys.iter().take_while(|key| map.get(*key).is_some_and(|deadline| *deadline > NOW)).count()
}

/// Prompts to ask for, in an order that no cache foresees.
struct Asked {
    order: Vec<usize>,
    at: usize,
    keys: Vec<BlockKey>,
}

impl Asked {
    fn new(blocks: usize) -> Self {
        Self { order: fill::shuffled(blocks / PROMPT), at: 0, keys: Vec::new() }
    }

    fn next(&mut self) {
        self.keys.clear();
        for _ in 0..TOGETHER {
            let prompt = self.order.get(self.at).copied().unwrap_or(0);
            self.at = (self.at + 1) % self.order.len();
            self.keys.extend((prompt * PROMPT..(prompt + 1) * PROMPT).map(fill::key));
        }
    }

    /// What so many lookups take; their keys are made meanwhile, unmeasured.
    fn time(&mut self, lookups: usize, way: &dyn Fn(&[BlockKey]) -> usize) -> Result<Sample, BenchError> {
        let mut all = Sample::default();
        for _ in 0..lookups / TOGETHER {
            self.next();
            let (matched, took) = sample(|| {
                Ok(self.keys.chunks_exact(PROMPT).map(|keys| way(black_box(keys))).sum::<usize>())
            })?;
            if matched != TOGETHER * PROMPT {
                return Err(BenchError::Differ("lookups"));
            }
            all.wall_s += took.wall_s;
            all.cpu_s += took.cpu_s;
        }
        Ok(all)
    }
}

/// `VmRSS`, which the system gives in units of 1,024 octets.
fn resident_octets() -> Result<u64, BenchError> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(BenchError::io("/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib.saturating_mul(1024)).ok_or(BenchError::Differ("VmRSS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_finds_every_prompt() {
        let blocks = 40 * PROMPT;
        let mut index = fill::empty(blocks);
        fill::publish(&mut index, fill::shuffled(blocks).into_iter(), 0, Digests::None).unwrap();
        let map = fill::map(blocks);
        let mut asked = Asked::new(blocks);
        asked.time(TOGETHER, &|keys| look_up(&index, keys)).unwrap();
        asked.time(TOGETHER, &|keys| in_map(&map, keys)).unwrap();
        assert!(asked.time(TOGETHER, &|keys| keys.len() - 1).is_err());
        let mut figures = Vec::new();
        refreshes(&mut index, blocks, 1, &mut figures).unwrap();
        assert_eq!((figures.len(), index.len()), (2, blocks));
    }

    #[test]
    fn further_replicas_share_their_digests() {
        let mut index = fill::empty(4 * PROMPT);
        fill::publish(&mut index, 0..PROMPT, 0, Digests::Unique).unwrap();
        let one = index.octets();
        fill::publish(&mut index, 0..PROMPT, 1, Digests::Unique).unwrap();
        assert!(index.octets() - one < 300 * PROMPT as u64 && one > 1_000 * PROMPT as u64);
    }
}
