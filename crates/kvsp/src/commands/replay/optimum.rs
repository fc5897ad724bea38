//! What a policy that knows the future would hit.

use std::collections::{BTreeSet, HashMap};

use super::count;
use super::trace::Trace;

/// Stands for a request that never comes.
const NEVER: usize = usize::MAX;

/// The leading hits of all requests where, after each, the blocks go whose next request is farthest away, and
/// of those of one request the ones farthest from its head. Where each block is always preceded by the same
/// blocks this is the highest number there is (Belady's argument: a block that is needed earlier is always
/// worth at least one that is needed later, and the head of a prefix is needed no later than its tail).
pub(super) fn hits(trace: &Trace, blocks: u64) -> u64 {
    let next = next_requests(trace);
    let mut held: HashMap<u64, (usize, usize)> = HashMap::new();
    let mut order: BTreeSet<(usize, usize, u64)> = BTreeSet::new();
    let mut hits = 0;
    for (request, next) in trace.requests.iter().zip(&next) {
        hits += count(request.iter().take_while(|block| held.contains_key(block)).count());
        for (depth, (block, next)) in request.iter().zip(next).enumerate() {
            if let Some((next, depth)) = held.insert(*block, (*next, depth)) {
                order.remove(&(next, depth, *block));
            }
            order.insert((*next, depth, *block));
        }
        while count(order.len()) > blocks {
            if let Some((_, _, block)) = order.pop_last() {
                held.remove(&block);
            }
        }
    }
    hits
}

/// For each block of each request the number of the next request that has it.
fn next_requests(trace: &Trace) -> Vec<Vec<usize>> {
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let mut next: Vec<Vec<usize>> = Vec::with_capacity(trace.requests.len());
    for (number, request) in trace.requests.iter().enumerate().rev() {
        next.push(request.iter().map(|block| seen.get(block).copied().unwrap_or(NEVER)).collect());
        seen.extend(request.iter().map(|block| (*block, number)));
    }
    next.reverse();
    next
}
