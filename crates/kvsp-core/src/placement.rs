//! Placement by cost (draft section 6.4, profile section 11).
//!
//! cost(i) = wait_us(i) + min(fetch_us(i) + recompute_us of the unmatched tokens, recompute_us of all),
//! or less where it is cheaper to load only the first blocks of the matched prefix.

mod directive;
mod prefix;

#[cfg(test)]
mod tests;

pub use directive::{DirectiveBounds, DirectiveIds, directive};
pub use prefix::{Prefix, PrefixBlock};

use std::cmp::Ordering;

use kvsp_proto::message::Candidate;
use kvsp_proto::uri::BaseUri;

use crate::estimate::{Block, FetchCurve, Target, recompute, whole_us};
use crate::instances::ActiveInstance;

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Prompt tokens.
    pub tokens: u64,
    /// The tokens of a block, where they are known.
    pub block_tokens: Option<u32>,
    /// What the index knows of the prompt's blocks; `None` where it could not be asked.
    pub prefix: Option<&'a Prefix>,
}

/// An instance that was weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    /// Its estimates, as the answer carries them.
    pub candidate: Candidate,
    /// Leading blocks worth loading there.
    pub load: usize,
    /// µs to load them; `None` where that is not known.
    pub load_us: Option<u64>,
    queued: u64,
    running: u64,
}

impl Ranked {
    /// The instance.
    #[must_use]
    pub const fn instance(&self) -> &BaseUri {
        &self.candidate.instance
    }
}

/// Weighs the active instances and orders them, the cheapest first and those without a cost last. Equal
/// costs go to the shorter queue, then to fewer running requests, then round: `turn` rises by one with
/// every placement.
#[must_use]
pub fn rank(request: &Request<'_>, active: &[ActiveInstance], turn: u64) -> Vec<Ranked> {
    let blocks = request.prefix.map(Prefix::blocks_for_estimates);
    let mut ranked: Vec<Ranked> =
        active.iter().map(|instance| weigh(request, instance, blocks.as_deref())).collect();
    ranked.sort_by(|a, b| a.instance().cmp(b.instance()));
    if !ranked.is_empty() {
        let first = turn % ranked.len() as u64;
        ranked.rotate_left(first as usize);
    }
    ranked.sort_by(cheaper);
    ranked
}

fn cheaper(a: &Ranked, b: &Ranked) -> Ordering {
    let cost = |r: &Ranked| (r.candidate.cost_us.is_none(), r.candidate.cost_us);
    (cost(a), a.queued, a.running).cmp(&(cost(b), b.queued, b.running))
}

fn weigh(request: &Request<'_>, instance: &ActiveInstance, blocks: Option<&[Block<'_>]>) -> Ranked {
    let status = &instance.status;
    let prefill = status.prefill_tokens_per_s;
    let curve = blocks.map(|blocks| FetchCurve::of(&Target::of(status), blocks));
    let fetch = curve.as_ref().and_then(FetchCurve::all);
    let wait = instance.queued as f64 * instance.mean_service_us;
    let all = recompute(request.tokens, prefill);
    let choice = all.map(|all| {
        let unmatched = |k: usize| {
            let loaded = (k as u64).saturating_mul(u64::from(request.block_tokens.unwrap_or(0)));
            recompute(request.tokens.saturating_sub(loaded), prefill).unwrap_or(all)
        };
        cheapest(curve.as_ref(), request.block_tokens.is_some(), all, unmatched)
    });
    let matched = blocks.map_or(0, <[Block<'_>]>::len);
    // Where no cost is known there is nothing to weigh: what is matched is worth a try.
    let load = match &choice {
        Some(choice) if fetch.is_some() || choice.load > 0 => choice.load,
        _ => matched,
    };
    let cost_us = choice.as_ref().and_then(|choice| whole_us(wait + choice.us));
    Ranked {
        candidate: Candidate {
            instance: status.instance.clone(),
            wait_us: whole_us(wait),
            fetch_us: fetch.and_then(whole_us),
            recompute_us: all.and_then(whole_us),
            cost_us,
            load_blocks: (0 < load && load < matched && cost_us.is_some()).then_some(load as u64),
        },
        load,
        load_us: curve.and_then(|curve| curve.first(load)).and_then(whole_us),
        queued: instance.queued,
        running: status.running,
    }
}

/// How many blocks to load, and the µs from then on.
struct Choice {
    load: usize,
    us: f64,
}

/// The cheapest of: loading nothing, loading all, loading the first k. Equal costs load more, which leaves
/// the processor to others; but only a part that is truly cheaper than both ends is taken.
fn cheapest(
    curve: Option<&FetchCurve>,
    block_tokens_known: bool,
    all: f64,
    unmatched: impl Fn(usize) -> f64,
) -> Choice {
    let mut best = Choice { load: 0, us: all };
    let Some(curve) = curve.filter(|_| block_tokens_known) else { return best };
    let cost = |k: usize| curve.first(k).map(|fetch| fetch + unmatched(k));
    let whole = curve.all().is_some().then(|| curve.reach());
    if let Some((k, us)) = whole.and_then(|k| cost(k).map(|us| (k, us)))
        && us <= best.us
    {
        best = Choice { load: k, us };
    }
    for k in 1..=curve.reach() {
        if let Some(us) = cost(k)
            && us < best.us
            && whole != Some(k)
        {
            best = Choice { load: k, us };
        }
    }
    best
}
