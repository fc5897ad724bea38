//! Sets of token positions as ranges.

use std::ops::Range;

use kvsp_proto::message::TokenRange;

/// A set of token positions: half-open ranges, sorted, with a gap between each two. Equal sets are equal values.
/// Empty and inverted ranges given to it hold nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The positions of one range.
    #[must_use]
    pub fn one(range: Range<u64>) -> Self {
        Self::from_iter([range])
    }

    /// Adds the positions of a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Ranges that touch it become one with it.
        let first = self.0.partition_point(|known| known.end < range.start);
        let after = self.0.partition_point(|known| known.start <= range.end);
        let touched = self.0.get(first..after).unwrap_or_default();
        let start = touched.first().map_or(range.start, |known| known.start.min(range.start));
        let end = touched.last().map_or(range.end, |known| known.end.max(range.end));
        self.0.splice(first..after.max(first), std::iter::once(start..end));
    }

    /// Takes the positions of a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|known| known.end <= range.start);
        let after = self.0.partition_point(|known| known.start < range.end).max(first);
        let cut = self.0.get(first..after).unwrap_or_default();
        let before = cut.first().map(|known| known.start..range.start);
        let behind = cut.last().map(|known| range.end..known.end);
        let left: Vec<_> = [before, behind].into_iter().flatten().filter(|part| !part.is_empty()).collect();
        self.0.splice(first..after, left);
    }

    /// Whether a position is in it.
    #[must_use]
    pub fn contains(&self, position: u64) -> bool {
        self.at(position).is_some_and(|known| known.contains(&position))
    }

    /// Whether all positions of a range are in it; so of an empty one.
    #[must_use]
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.at(range.start).is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }

    /// Whether all positions of another set are in it.
    #[must_use]
    pub fn covers_all(&self, other: &Self) -> bool {
        other.iter().all(|range| self.covers(&range))
    }

    /// Whether a position of a range is in it.
    #[must_use]
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        let known = self.at(range.start);
        !range.is_empty() && known.is_some_and(|known| known.start < range.end)
    }

    /// The first range that ends behind a position.
    fn at(&self, position: u64) -> Option<&Range<u64>> {
        self.0.get(self.0.partition_point(|known| known.end <= position))
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            let common = a.start.max(b.start)..a.end.min(b.end);
            let is_first_over = a.end <= b.end;
            if !common.is_empty() {
                both.push(common);
            }
            if is_first_over {
                ours.next();
            } else {
                theirs.next();
            }
        }
        Self(both)
    }

    /// What of it lies in a range.
    #[must_use]
    pub fn clip(&self, range: Range<u64>) -> Self {
        self.intersection(&Self::one(range))
    }

    /// What is in it and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut others = other.0.iter().peekable();
        let mut left = Vec::new();
        for range in &self.0 {
            let mut start = range.start;
            while let Some(cut) = others.peek().filter(|cut| cut.start < range.end) {
                if start < cut.start {
                    left.push(start..cut.start);
                }
                start = start.max(cut.end);
                if cut.end > range.end {
                    break;
                }
                others.next();
            }
            if start < range.end {
                left.push(start..range.end);
            }
        }
        Self(left)
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// The ranges as they are written on the wire. Positions that no range on the wire can name are left out.
    #[must_use]
    pub fn to_wire(&self) -> Vec<TokenRange> {
        self.iter().filter_map(|range| range.try_into().ok()).collect()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<u64>> + DoubleEndedIterator + '_ {
        self.0.iter().cloned()
    }

    /// How many positions are in it.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// How many ranges it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its first position.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.0.first().map(|range| range.start)
    }

    /// The position behind its last.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(|range| range.end)
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        set.extend(ranges);
        set
    }
}

impl FromIterator<TokenRange> for Ranges {
    fn from_iter<I: IntoIterator<Item = TokenRange>>(ranges: I) -> Self {
        ranges.into_iter().map(Range::from).collect()
    }
}

impl Extend<Range<u64>> for Ranges {
    fn extend<I: IntoIterator<Item = Range<u64>>>(&mut self, ranges: I) {
        ranges.into_iter().for_each(|range| self.insert(range));
    }
}

impl From<Range<u64>> for Ranges {
    fn from(range: Range<u64>) -> Self {
        Self::one(range)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(ranges: &[(u64, u64)]) -> Ranges {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(set(&[(0, 4), (8, 9), (4, 8)]), set(&[(0, 9)]));
        assert_eq!(set(&[(5, 5), (7, 3)]), Ranges::new());
        assert!(set(&[(0, 2), (4, 6), (1, 5)]).iter().eq(std::iter::once(0..6)));
        assert_eq!(set(&[(0, 2), (4, 6)]).len(), 2);
    }

    #[test]
    fn a_range_in_the_middle_leaves_two() {
        let mut ranges = set(&[(0, 10), (20, 30)]);
        ranges.remove(4..6);
        assert_eq!(ranges, set(&[(0, 4), (6, 10), (20, 30)]));
        ranges.remove(2..25);
        assert_eq!(ranges, set(&[(0, 2), (25, 30)]));
        ranges.remove(0..u64::MAX);
        assert!(ranges.is_empty() && ranges.start().is_none() && ranges.end().is_none());
    }

    #[test]
    fn the_ends_of_all_positions_do_not_overflow() {
        let all = Ranges::one(0..u64::MAX);
        assert_eq!(all.tokens(), u64::MAX);
        assert_eq!(all.difference(&set(&[(7, u64::MAX)])), set(&[(0, 7)]));
        assert!(!all.contains(u64::MAX) && all.contains(u64::MAX - 1));
    }

    /// Positions up to which the naive sets go.
    const MOST: u64 = 40;

    fn some_ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0..MOST, 0..MOST), 0..8)
    }

    fn naive(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|(start, end)| *start..*end).collect()
    }

    fn positions(ranges: &Ranges) -> BTreeSet<u64> {
        ranges.iter().flatten().collect()
    }

    fn is_canonical(ranges: &Ranges) -> bool {
        ranges.iter().all(|range| !range.is_empty()) && ranges.0.windows(2).all(|w| w[0].end < w[1].start)
    }

    proptest! {
        #[test]
        fn equal_to_a_naive_set(a in some_ranges(), b in some_ranges(), from in 0..MOST, to in 0..MOST) {
            let (left, right) = (set(&a), set(&b));
            let (one, two) = (naive(&a), naive(&b));
            let mut less = left.clone();
            b.iter().for_each(|(start, end)| less.remove(*start..*end));
            for (name, got, want) in [
                ("insert", left.clone(), one.clone()),
                ("remove", less, &one - &two),
                ("union", left.union(&right), &one | &two),
                ("intersection", left.intersection(&right), &one & &two),
                ("difference", left.difference(&right), &one - &two),
                ("clip", left.clip(from..to), one.iter().copied().filter(|p| (from..to).contains(p)).collect()),
            ] {
                prop_assert!(is_canonical(&got), "{} {:?}", name, got);
                prop_assert_eq!(positions(&got), want.clone(), "{}", name);
                prop_assert_eq!(got.tokens(), want.len() as u64);
                prop_assert_eq!(got.start(), want.first().copied());
                prop_assert_eq!(got.end(), want.last().map(|last| last + 1));
            }
            prop_assert_eq!(left.covers_all(&right), two.is_subset(&one));
            prop_assert_eq!(left.covers(&(from..to)), (from..to).all(|p| one.contains(&p)));
            prop_assert_eq!(left.intersects(&(from..to)), (from..to).any(|p| one.contains(&p)));
            prop_assert_eq!(left.contains(from), one.contains(&from));
        }
    }
}
