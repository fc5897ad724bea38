//! Which instances share a context: many for a long prompt, fewer for the output, more again when memory runs short,
//! others where one leaves.

use std::collections::BTreeSet;

use kvsp_proto::message::{Shard, TokenRange};
use kvsp_proto::uri::BaseUri;

use super::split::instances_of;

/// Sizes of groups, and the bounds of memory use between which they change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupPolicy {
    /// Prompts of so many tokens are split; 0: none is.
    pub min_tokens: u64,
    /// Most instances of a group.
    pub max_members: usize,
    /// Instances of a group once the prompt is computed.
    pub output_members: usize,
    /// The part of a member's memory in use above which it gets help.
    pub high_utilization: f64,
    /// The part of an instance's memory in use below which it may take more.
    pub low_utilization: f64,
}

/// An instance that may be given parts of contexts.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCandidate {
    /// The instance.
    pub instance: BaseUri,
    /// The part of its memory in use.
    pub kv_utilization: f64,
}

impl GroupPolicy {
    /// The split of a prompt of `tokens` with room for `output` more over the instance that leads it and the best of
    /// `others`, in their order; `None` where it stays at one instance. The leader has the last part, where the output
    /// comes to lie.
    #[must_use]
    pub fn for_prompt(
        &self,
        tokens: u64,
        output: u64,
        leader: &BaseUri,
        others: &[BaseUri],
    ) -> Option<Vec<Shard>> {
        if self.min_tokens == 0 || tokens < self.min_tokens || self.max_members < 2 {
            return None;
        }
        let others = others.iter().filter(|other| *other != leader).take(self.max_members - 1);
        let group: Vec<&BaseUri> = others.chain([leader]).collect();
        if group.len() < 2 {
            return None;
        }
        // Parts of the prompt: that is what is computed now.
        let mut shards = split(tokens, &group);
        let capacity = tokens.checked_add(output)?;
        let last = shards.last_mut()?;
        last.tokens = TokenRange::new(last.tokens.start(), capacity).ok()?;
        Some(shards)
    }

    /// The split once output comes: over fewer instances, where the leader has room to take what it lacks.
    #[must_use]
    pub fn for_output(&self, shards: &[Shard], leader: &GroupCandidate) -> Option<Vec<Shard>> {
        let members = instances_of(shards);
        let size = self.output_members.max(1);
        if members.len() <= size || leader.kv_utilization >= self.low_utilization {
            return None;
        }
        // Those next to the end stay, because they have what is nearest to the leader's part.
        let mut group: Vec<&BaseUri> = Vec::new();
        for shard in shards.iter().rev() {
            if shard.instance != leader.instance && !group.contains(&&shard.instance) {
                group.push(&shard.instance);
            }
        }
        group.truncate(size - 1);
        group.reverse();
        group.push(&leader.instance);
        Some(split(capacity(shards)?, &group))
    }

    /// The split where a member short of memory gives half of its largest part to one that has room.
    #[must_use]
    pub fn with_help(
        &self,
        shards: &[Shard],
        pressed: &GroupCandidate,
        candidates: &[GroupCandidate],
    ) -> Option<Vec<Shard>> {
        let members = instances_of(shards);
        if pressed.kv_utilization <= self.high_utilization || members.len() >= self.max_members {
            return None;
        }
        let has_room = |candidate: &&GroupCandidate| {
            candidate.kv_utilization < self.low_utilization && !members.contains(&candidate.instance)
        };
        let helper = least_used(candidates.iter().filter(has_room))?;
        let own = shards.iter().enumerate().filter(|(_, shard)| shard.instance == pressed.instance);
        let (at, largest) = own.max_by_key(|(_, shard)| shard.tokens.tokens())?;
        let (start, end) = (largest.tokens.start(), largest.tokens.end());
        let middle = start + largest.tokens.tokens() / 2;
        let mut next = shards.to_vec();
        // The first half goes: the second one may be where the output comes to lie.
        next[at].tokens = TokenRange::new(middle, end).ok()?;
        let tokens = TokenRange::new(start, middle).ok()?;
        next.insert(at, Shard { tokens, instance: helper.instance.clone() });
        Some(next)
    }

    /// The split where `leaving` have nothing: their parts go to the members that stay, the last one to the leader where
    /// it may be given parts; where nobody stays, to the candidates with most room. `None` where there is nobody.
    #[must_use]
    pub fn without(
        &self,
        shards: &[Shard],
        leaving: &BTreeSet<BaseUri>,
        leader: Option<&BaseUri>,
        candidates: &[GroupCandidate],
    ) -> Option<Vec<Shard>> {
        let members = instances_of(shards);
        let may = candidates.iter().filter(|candidate| !leaving.contains(&candidate.instance));
        let mut heirs: Vec<&GroupCandidate> =
            may.clone().filter(|candidate| members.contains(&candidate.instance)).collect();
        if heirs.is_empty() {
            heirs = may.clone().collect();
        }
        heirs.sort_by(|a, b| {
            let by_use = a.kv_utilization.total_cmp(&b.kv_utilization);
            by_use.then_with(|| a.instance.cmp(&b.instance))
        });
        heirs.truncate(self.max_members.max(1));
        let leader = leader.filter(|leader| may.clone().any(|candidate| candidate.instance == **leader));
        let mut turn = heirs.iter().cycle();
        let mut next: Vec<Shard> = Vec::with_capacity(shards.len());
        for (at, shard) in shards.iter().enumerate() {
            let instance = if !leaving.contains(&shard.instance) {
                &shard.instance
            } else if let Some(leader) = leader.filter(|_| at + 1 == shards.len()) {
                leader
            } else {
                &turn.next()?.instance
            };
            push(&mut next, shard.tokens, instance)?;
        }
        Some(next)
    }
}

fn least_used<'a>(candidates: impl Iterator<Item = &'a GroupCandidate>) -> Option<&'a GroupCandidate> {
    candidates.min_by(|a, b| {
        a.kv_utilization.total_cmp(&b.kv_utilization).then_with(|| a.instance.cmp(&b.instance))
    })
}

fn capacity(shards: &[Shard]) -> Option<u64> {
    shards.last().map(|shard| shard.tokens.end())
}

/// Equal parts in the order of the group; the first ones are a token longer where it does not divide.
fn split(tokens: u64, group: &[&BaseUri]) -> Vec<Shard> {
    let count = group.len() as u64;
    let mut at = 0;
    let mut shards = Vec::with_capacity(group.len());
    for (n, instance) in (0_u64..).zip(group) {
        let end = at + tokens / count + u64::from(n < tokens % count);
        // Fewer tokens than instances: the first ones have none left.
        if let Ok(tokens) = TokenRange::new(at, end) {
            shards.push(Shard { tokens, instance: (*instance).clone() });
        }
        at = end;
    }
    shards
}

/// Adds a part behind the last, as one with it where both are the same instance's.
fn push(shards: &mut Vec<Shard>, tokens: TokenRange, instance: &BaseUri) -> Option<()> {
    match shards.last_mut() {
        Some(last) if last.instance == *instance => {
            last.tokens = TokenRange::new(last.tokens.start(), tokens.end()).ok()?;
        }
        _ => shards.push(Shard { tokens, instance: instance.clone() }),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use kvsp_proto::message::check_shards;
    use proptest::prelude::*;

    use super::*;

    const POLICY: GroupPolicy = GroupPolicy {
        min_tokens: 100,
        max_members: 3,
        output_members: 1,
        high_utilization: 0.8,
        low_utilization: 0.5,
    };

    fn uri(n: usize) -> BaseUri {
        format!("http://i{n}/kvsp/").parse().unwrap()
    }

    fn shards(parts: &[(u64, usize)]) -> Vec<Shard> {
        let mut at = 0;
        let shard = |&(end, n): &(u64, usize)| {
            let tokens = TokenRange::new(at, end).unwrap();
            at = end;
            Shard { tokens, instance: uri(n) }
        };
        parts.iter().map(shard).collect()
    }

    fn candidate(n: usize, kv_utilization: f64) -> GroupCandidate {
        GroupCandidate { instance: uri(n), kv_utilization }
    }

    #[test]
    fn a_long_prompt_is_shared_in_equal_parts_and_the_leader_has_the_end() {
        let others = [uri(2), uri(1), uri(3), uri(4)];
        let split = POLICY.for_prompt(100, 7, &uri(1), &others);
        assert_eq!(split, Some(shards(&[(34, 2), (67, 3), (107, 1)])));
        assert_eq!(POLICY.for_prompt(99, 7, &uri(1), &others), None, "short");
        assert_eq!(POLICY.for_prompt(100, 7, &uri(1), &[uri(1)]), None, "alone");
        assert_eq!(POLICY.for_prompt(u64::MAX, 7, &uri(1), &others), None, "beyond what can be told");
        let never = GroupPolicy { min_tokens: 0, ..POLICY };
        assert_eq!(never.for_prompt(1 << 40, 7, &uri(1), &others), None);
    }

    #[test]
    fn output_needs_fewer_and_they_need_room() {
        let three = shards(&[(34, 2), (67, 3), (107, 1)]);
        assert_eq!(POLICY.for_output(&three, &candidate(1, 0.4)), Some(shards(&[(107, 1)])));
        assert_eq!(POLICY.for_output(&three, &candidate(1, 0.5)), None);
        assert_eq!(POLICY.for_output(&shards(&[(107, 1)]), &candidate(1, 0.1)), None);
        let two = GroupPolicy { output_members: 2, ..POLICY };
        assert_eq!(two.for_output(&three, &candidate(1, 0.4)), Some(shards(&[(54, 3), (107, 1)])));
        assert_eq!(POLICY.for_output(&three, &candidate(9, 0.4)), Some(shards(&[(107, 9)])), "a new leader");
    }

    #[test]
    fn who_is_short_of_memory_gets_help_from_who_has_most() {
        let one = shards(&[(100, 1)]);
        let all = [candidate(1, 0.9), candidate(2, 0.4), candidate(3, 0.2), candidate(4, 0.6)];
        let helped = POLICY.with_help(&one, &all[0], &all);
        assert_eq!(helped, Some(shards(&[(50, 3), (100, 1)])));
        assert_eq!(POLICY.with_help(&one, &candidate(1, 0.8), &all), None, "not short");
        assert_eq!(POLICY.with_help(&one, &all[0], &all[3..]), None, "nobody has room");
        let three = shards(&[(10, 5), (20, 6), (100, 1)]);
        assert_eq!(POLICY.with_help(&three, &all[0], &all), None, "as many as may be");
    }

    #[test]
    fn parts_of_those_who_leave_go_to_those_who_stay() {
        let three = shards(&[(30, 1), (60, 2), (90, 3)]);
        let all = [candidate(1, 0.2), candidate(2, 0.1), candidate(3, 0.3), candidate(4, 0.0)];
        let leave = |leaving: &[usize], leader: usize, candidates: &[GroupCandidate]| {
            let leaving = leaving.iter().map(|n| uri(*n)).collect();
            POLICY.without(&three, &leaving, Some(&uri(leader)), candidates)
        };
        assert_eq!(leave(&[2], 3, &all), Some(shards(&[(60, 1), (90, 3)])));
        assert_eq!(
            leave(&[3], 1, &all),
            Some(shards(&[(30, 1), (60, 2), (90, 1)])),
            "the end is the leader's"
        );
        assert_eq!(leave(&[1, 2], 3, &all), Some(shards(&[(90, 3)])));
        assert_eq!(leave(&[1, 2, 3], 9, &all), Some(shards(&[(90, 4)])), "nobody stays");
        assert_eq!(leave(&[1, 2, 3], 9, &all[..3]), None);
        assert_eq!(leave(&[], 3, &all), Some(three.clone()));
    }

    fn some_split() -> impl Strategy<Value = Vec<(u64, usize)>> {
        proptest::collection::vec((1..40_u64, 0..5_usize), 1..6).prop_map(|parts| {
            let mut at = 0;
            parts
                .into_iter()
                .map(|(tokens, n)| {
                    at += tokens;
                    (at, n)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_split_is_one(
            parts in some_split(), uses in proptest::collection::vec(0.0..1.0_f64, 7),
            leaving in proptest::collection::btree_set(0..5_usize, 0..4), leader in 0..6_usize, members in 1..4_usize,
        ) {
            let before = shards(&parts);
            let total = parts.last().unwrap().0;
            let policy = GroupPolicy { output_members: members, max_members: members + 1, ..POLICY };
            let all: Vec<_> = uses.iter().enumerate().map(|(n, used)| candidate(n, *used)).collect();
            let leaving: BTreeSet<BaseUri> = leaving.into_iter().map(uri).collect();
            let next = [
                policy.for_output(&before, &all[leader]),
                policy.with_help(&before, &all[parts[0].1], &all),
                policy.without(&before, &leaving, Some(&uri(leader)), &all),
            ];
            for split in next.iter().flatten() {
                prop_assert_eq!(check_shards(split).ok(), Some(total));
            }
            let without = next[2].as_ref().unwrap();
            prop_assert!(instances_of(without).is_disjoint(&leaving));
        }
    }
}
