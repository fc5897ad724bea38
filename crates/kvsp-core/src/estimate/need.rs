//! What a target still needs of one block, and how long each source would take for it.

use kvsp_proto::id::Digest;
use kvsp_proto::record::Residency;
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;

use super::{Block, Source, Target, usable};

/// A share of a block, and the sources that could each deliver it, with their transfer times in µs
/// (round trips excluded).
pub(super) type Task<'a> = Vec<(&'a HolderUri, f64)>;

/// A run of layers that no range of the block's replicas begins or ends within.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: u32,
    count: u32,
}

/// The tasks of a block; none where all of it is resident. `None` where it cannot be computed.
///
/// Replicas of different computations never combine; where several could deliver the block, the one
/// quickest to deliver counts.
pub(super) fn need_of<'a>(target: &Target<'_>, block: &Block<'a>) -> Option<Vec<Task<'a>>> {
    let mut best: Option<(f64, Vec<Task<'a>>)> = None;
    for (digest, codec) in computations(block) {
        let group: Vec<&Source<'a>> =
            block.sources.iter().filter(|s| (s.digest, s.codec) == (digest, codec)).collect();
        let Some(tasks) = tasks_of(target, &group, block.layers) else { continue };
        let us = quickest(target, &tasks);
        if best.as_ref().is_none_or(|(least, _)| us < *least) {
            best = Some((us, tasks));
        }
    }
    best.map(|(_, tasks)| tasks)
}

fn computations(block: &Block<'_>) -> Vec<(Digest, Codec)> {
    let mut all: Vec<_> = block.sources.iter().map(|s| (s.digest, s.codec)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// µs with every task at its quickest source.
fn quickest(target: &Target<'_>, tasks: &[Task<'_>]) -> f64 {
    let least = |task: &Task<'_>| {
        task.iter().map(|(holder, us)| us + target.rtt_us(holder)).fold(f64::INFINITY, f64::min)
    };
    tasks.iter().map(least).sum()
}

fn tasks_of<'a>(target: &Target<'_>, group: &[&Source<'a>], layers: u32) -> Option<Vec<Task<'a>>> {
    let own = group.iter().find(|source| *source.holder == target.instance);
    let mut from_self: Task<'a> = Vec::new();
    let mut missing: Vec<Task<'a>> = Vec::new();
    for run in runs(group, layers) {
        match own.and_then(|own| own.held(run.first).map(|held| (own, held))) {
            Some((_, Residency { tier: Tier::Device | Tier::Host, .. })) => {}
            Some((own, from)) => {
                let us = transfer_us(own, run, layers, f64::INFINITY, from)?;
                match from_self.first_mut() {
                    Some((_, sum)) => *sum += us,
                    None => from_self.push((own.holder, us)),
                }
            }
            None => missing.push(choices(target, group, run, layers)?),
        }
    }
    let mut tasks = whole_or_pieces(missing);
    if !from_self.is_empty() {
        tasks.push(from_self);
    }
    Some(tasks)
}

/// One task with the sources that deliver all pieces, where there is one; else a task for each piece.
fn whole_or_pieces(pieces: Vec<Task<'_>>) -> Vec<Task<'_>> {
    let Some((first, others)) = pieces.split_first() else { return pieces };
    if others.is_empty() {
        return pieces;
    }
    let whole: Task<'_> = first
        .iter()
        .filter_map(|(holder, us)| {
            others
                .iter()
                .try_fold(*us, |sum, piece| {
                    piece.iter().find(|(other, _)| other == holder).map(|(_, us)| sum + us)
                })
                .map(|sum| (*holder, sum))
        })
        .collect();
    if whole.is_empty() { pieces } else { vec![whole] }
}

/// The sources of a run other than the target itself; `None` where there is none.
fn choices<'a>(target: &Target<'_>, group: &[&Source<'a>], run: Run, layers: u32) -> Option<Task<'a>> {
    let all: Task<'a> = group
        .iter()
        .filter(|source| !source.holder.is_moqt() && *source.holder != target.instance)
        .filter_map(|source| {
            let link = target.link(source.holder)?;
            let us = transfer_us(source, run, layers, link.mbit_per_s, source.held(run.first)?)?;
            Some((source.holder, us))
        })
        .collect();
    (!all.is_empty()).then_some(all)
}

/// Megabits per second are bits per µs: the quotient is µs.
fn transfer_us(source: &Source<'_>, run: Run, layers: u32, link: f64, from: &Residency) -> Option<f64> {
    let rate = match from.read_mbit_per_s {
        Some(read) if usable(read) => link.min(read),
        Some(_) => return None,
        None => link,
    };
    let bits = 8.0 * source.size as f64 * f64::from(run.count) / f64::from(layers);
    Some(if rate.is_finite() { bits / rate } else { 0.0 })
}

fn runs(group: &[&Source<'_>], layers: u32) -> Vec<Run> {
    let mut cuts: Vec<u32> = group
        .iter()
        .flat_map(|source| &source.residency)
        .flat_map(|held| [held.layers.0, held.layers.1.saturating_add(1)])
        .chain([0, layers])
        .filter(|&cut| cut <= layers)
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| Run { first: pair[0], count: pair[1] - pair[0] }).collect()
}
