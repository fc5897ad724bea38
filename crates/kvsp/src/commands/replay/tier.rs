//! A trace through a tier of the services, blocks without octets.

use kvsp_core::tier::{EvictionPolicy, Shelf};

use super::count;
use super::trace::Trace;

/// How the policy is told that a request uses its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// One by one from head to tail.
    Ascending,
    /// As the prefix that is held, then the new blocks as they are stored.
    Prefix,
}

/// The leading hits of all requests in a tier of `blocks` blocks.
pub(super) fn hits(trace: &Trace, policy: Box<dyn EvictionPolicy<u64>>, blocks: u64, touch: Touch) -> u64 {
    // Every block counts as one octet.
    let mut shelf = Shelf::new(blocks, policy);
    let mut hits = 0;
    for request in &trace.requests {
        let leading = request.iter().take_while(|block| shelf.octets(block).is_some()).count();
        hits += count(leading);
        if touch == Touch::Prefix {
            shelf.touch_prefix(request);
        }
        for block in request {
            if shelf.octets(block).is_none() {
                shelf.insert(*block, 1);
            } else if touch == Touch::Ascending {
                shelf.touch(block);
            }
        }
        // Room for nothing: what is above the cap goes.
        shelf.reserve(0, |_| false);
    }
    hits
}

#[cfg(test)]
mod tests {
    use kvsp_core::tier::{LeastRecentlyUsed, TinyLfu};

    use super::super::optimum;
    use super::*;

    fn trace(requests: &[&[u64]]) -> Trace {
        Trace { requests: requests.iter().map(|blocks| blocks.to_vec()).collect() }
    }

    fn lru(trace: &Trace, blocks: u64) -> u64 {
        hits(trace, Box::<LeastRecentlyUsed<u64>>::default(), blocks, Touch::Ascending)
    }

    #[test]
    fn only_leading_blocks_hit() {
        let trace = trace(&[&[1, 2, 3], &[1, 2, 3]]);
        assert_eq!(lru(&trace, 3), 3);
        assert_eq!(lru(&trace, 2), 0, "the head went first, and what follows it is worth nothing");
        assert_eq!(optimum::hits(&trace, 2), 2);
    }

    #[test]
    fn the_optimum_keeps_what_comes_next() {
        let trace = trace(&[&[1], &[2], &[3], &[1], &[2]]);
        assert_eq!(lru(&trace, 2), 0);
        assert_eq!(optimum::hits(&trace, 2), 2);
        assert_eq!(optimum::hits(&trace, 1), 1);
    }

    #[test]
    fn all_are_equal_where_nothing_has_to_go() {
        let trace = trace(&[&[1, 2], &[1, 3, 4], &[], &[1, 3, 5], &[1, 2]]);
        let tiny = hits(&trace, Box::<TinyLfu<u64>>::default(), 5, Touch::Prefix);
        assert_eq!([lru(&trace, 5), tiny, optimum::hits(&trace, 5)], [5, 5, 5]);
    }
}
