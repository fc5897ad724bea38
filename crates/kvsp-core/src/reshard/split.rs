//! What follows from two splits of a context: what each member keeps, loads and lets go of, and who covers what.

use std::collections::BTreeSet;
use std::ops::Range;

use kvsp_proto::message::{FetchRange, Shard, TokenRange};
use kvsp_proto::uri::BaseUri;

use super::Ranges;

/// The ranges of one instance in a split.
#[must_use]
pub fn ranges_of(shards: &[Shard], instance: &BaseUri) -> Ranges {
    shards.iter().filter(|shard| shard.instance == *instance).map(|shard| shard.tokens).collect()
}

/// The instances of a split, each once, ordered by URI.
#[must_use]
pub fn instances_of(shards: &[Shard]) -> BTreeSet<BaseUri> {
    shards.iter().map(|shard| shard.instance.clone()).collect()
}

/// Who has which copies before a change.
#[derive(Debug, Clone, Copy)]
pub struct Copies<'a> {
    /// The split of the version that holds.
    pub shards: &'a [Shard],
    /// Copies beside it: ranges that a former owner was told to keep.
    pub spare: &'a [Shard],
    /// Instances whose shards' memory is gone: nothing of them can be loaded.
    pub lost: &'a BTreeSet<BaseUri>,
}

/// The part of a plan that is one member's (draft section 6.9): `retain` ∪ `release` are its ranges before,
/// `retain` ∪ `fetch` ∪ `rebuild` those after, and `retain`, `fetch` and `rebuild` have nothing in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanParts {
    /// What stays in place.
    pub retain: Vec<TokenRange>,
    /// What is loaded and from where, ascending.
    pub fetch: Vec<FetchRange>,
    /// What is let go of.
    pub release: Vec<TokenRange>,
    /// What no live member holds, or it holds itself outside its shard: nothing is loaded for it.
    pub rebuild: Vec<TokenRange>,
}

/// What `instance` has to do between the version of `before` and that of `next`. An instance whose memory is lost
/// retains nothing: what it goes on owning is rebuilt.
#[must_use]
pub fn plan_for(instance: &BaseUri, before: Copies<'_>, next: &[Shard]) -> PlanParts {
    let had = ranges_of(before.shards, instance);
    let gets = ranges_of(next, instance);
    let retain = if before.lost.contains(instance) { Ranges::new() } else { had.intersection(&gets) };
    let mut lacking = gets.difference(&retain);
    let mut fetch = Vec::new();
    let live = before.shards.iter().filter(|shard| !before.lost.contains(&shard.instance));
    for copy in live.chain(before.spare).filter(|copy| copy.instance != *instance) {
        let parts = lacking.clip(copy.tokens.into());
        let from = |tokens| FetchRange { tokens, from: copy.instance.clone() };
        fetch.extend(parts.to_wire().into_iter().map(from));
        lacking = lacking.difference(&parts);
    }
    fetch.sort_by_key(|part| part.tokens);
    PlanParts {
        release: had.difference(&retain).to_wire(),
        retain: retain.to_wire(),
        fetch,
        rebuild: lacking.to_wire(),
    }
}

/// Who covers which keys of a step: each position below the length exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cover {
    /// The leader's own part.
    pub local: Ranges,
    /// What members cover, ascending.
    pub remote: Vec<(BaseUri, Range<u64>)>,
    /// What is the leader's by the split, and is not there: to be computed first.
    pub missing: Ranges,
}

/// Shares the keys `0..length` out: `local` are the positions whose K and V the leader has, whether it owns them or
/// has not stored them at their owner yet; their owners cover all others. Positions beyond the last shard are missing
/// unless the leader has them.
#[must_use]
pub fn cover(shards: &[Shard], leader: &BaseUri, local: &Ranges, length: u64) -> Cover {
    let local = local.clip(0..length);
    let mut left = Ranges::one(0..length).difference(&local);
    let mut remote = Vec::new();
    for shard in shards.iter().filter(|shard| shard.instance != *leader) {
        let parts = left.clip(shard.tokens.into());
        left = left.difference(&parts);
        remote.extend(parts.iter().map(|part| (shard.instance.clone(), part)));
    }
    Cover { local, remote, missing: left }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uri(n: u8) -> BaseUri {
        format!("http://i{n}/kvsp/").parse().unwrap()
    }

    /// Shards of these instances with these lengths.
    fn split(parts: &[(u8, u64)]) -> Vec<Shard> {
        let mut at = 0;
        let shard = |&(n, tokens): &(u8, u64)| {
            let start = at;
            at += tokens;
            Shard { tokens: TokenRange::new(start, at).unwrap(), instance: uri(n) }
        };
        parts.iter().map(shard).collect()
    }

    fn range(start: u64, end: u64) -> TokenRange {
        TokenRange::new(start, end).unwrap()
    }

    #[test]
    fn what_stays_with_an_instance_is_not_loaded() {
        let none = BTreeSet::new();
        let before = split(&[(1, 4), (2, 4), (3, 4)]);
        let next = split(&[(1, 6), (3, 6)]);
        let copies = Copies { shards: &before, spare: &[], lost: &none };
        let fetch = |start, end, n| FetchRange { tokens: range(start, end), from: uri(n) };
        let parts = plan_for(&uri(1), copies, &next);
        assert_eq!((parts.retain, parts.fetch), (vec![range(0, 4)], vec![fetch(4, 6, 2)]));
        let parts = plan_for(&uri(2), copies, &next);
        assert_eq!((parts.retain, parts.fetch, parts.release), (vec![], vec![], vec![range(4, 8)]));
        let parts = plan_for(&uri(3), copies, &next);
        assert_eq!((parts.retain, parts.fetch), (vec![range(8, 12)], vec![fetch(6, 8, 2)]));
        assert_eq!(plan_for(&uri(4), copies, &next), PlanParts::default());
    }

    #[test]
    fn what_is_lost_comes_from_a_copy_that_was_kept_or_is_rebuilt() {
        let lost = BTreeSet::from([uri(2)]);
        let before = split(&[(1, 4), (2, 4)]);
        let kept = [Shard { tokens: range(4, 6), instance: uri(3) }];
        let copies = Copies { shards: &before, spare: &kept, lost: &lost };
        let all = plan_for(&uri(1), copies, &split(&[(1, 8)]));
        assert_eq!(all.fetch, [FetchRange { tokens: range(4, 6), from: uri(3) }]);
        assert_eq!(all.rebuild, [range(6, 8)]);
        let again = plan_for(&uri(2), copies, &before);
        assert_eq!((again.retain, again.release), (vec![], vec![range(4, 8)]));
        assert_eq!((again.fetch.len(), again.rebuild), (1, vec![range(6, 8)]));
        let keeper = plan_for(&uri(3), copies, &split(&[(1, 4), (3, 4)]));
        assert_eq!((keeper.fetch, keeper.rebuild), (vec![], vec![range(4, 8)]));
    }

    #[test]
    fn a_step_covers_every_key_once() {
        let shards = split(&[(1, 4), (2, 4), (3, 4)]);
        let staged = Ranges::from_iter([3..4, 8..11]);
        let cover = cover(&shards, &uri(1), &staged, 10);
        assert_eq!(cover.local, Ranges::from_iter([3..4, 8..10]));
        assert_eq!(cover.remote, [(uri(2), 4..8)]);
        assert_eq!(cover.missing, Ranges::one(0..3));
    }

    fn some_split() -> impl Strategy<Value = Vec<(u8, u64)>> {
        proptest::collection::vec((0..4u8, 1..9u64), 1..6).prop_map(|mut parts| {
            let total: u64 = parts.iter().map(|part| part.1).sum();
            parts.push((4, 64 - total.min(48)));
            parts
        })
    }

    proptest! {
        #[test]
        fn the_equations_of_a_plan_hold(a in some_split(), b in some_split(), lost in 0..5u8, kept in 0..5u8) {
            let (before, next) = (split(&a), split(&b));
            let end = before.last().unwrap().tokens.end().min(next.last().unwrap().tokens.end());
            let lost = BTreeSet::from([uri(lost)]);
            let spare = [Shard { tokens: range(0, end), instance: uri(kept) }];
            let copies = Copies { shards: &before, spare: &spare, lost: &lost };
            for n in 0..5 {
                let parts = plan_for(&uri(n), copies, &next);
                let set = |ranges: &[TokenRange]| ranges.iter().copied().collect::<Ranges>();
                let (retain, release) = (set(&parts.retain), set(&parts.release));
                let fetch: Ranges = parts.fetch.iter().map(|fetch| fetch.tokens).collect();
                let rebuild = set(&parts.rebuild);
                let (had, gets) = (ranges_of(&before, &uri(n)), ranges_of(&next, &uri(n)));
                prop_assert_eq!(retain.union(&release), had.clone());
                prop_assert!(retain.intersection(&release).is_empty());
                prop_assert_eq!(retain.union(&fetch).union(&rebuild), gets.clone());
                prop_assert_eq!(retain.tokens() + fetch.tokens() + rebuild.tokens(), gets.tokens());
                if !lost.contains(&uri(n)) {
                    prop_assert_eq!(retain, had.intersection(&gets));
                }
                for fetch in &parts.fetch {
                    prop_assert!(fetch.from != uri(n));
                    let live: Vec<_> = before.iter().filter(|s| !lost.contains(&s.instance)).cloned().collect();
                    let copies = ranges_of(&live, &fetch.from).union(&ranges_of(&spare, &fetch.from));
                    prop_assert!(copies.covers(&fetch.tokens.into()));
                }
            }
        }

        #[test]
        fn a_cover_is_a_partition(a in some_split(), leader in 0..5u8, from in 0..70u64, len in 0..70u64) {
            let shards = split(&a);
            let cover = cover(&shards, &uri(leader), &Ranges::one(from..70), len);
            let remote: u64 = cover.remote.iter().map(|(_, range)| range.end - range.start).sum();
            prop_assert_eq!(cover.local.tokens() + remote + cover.missing.tokens(), len);
            let all = cover.remote.iter().map(|(_, range)| range.clone()).collect::<Ranges>();
            prop_assert_eq!(all.union(&cover.local).union(&cover.missing), Ranges::one(0..len));
        }
    }
}
