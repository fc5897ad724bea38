//! Half-open ranges of token positions.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::json;

/// Token positions `start..end`, never empty; `[start, end]` in a body, `start-end` in a query, where the end is not
/// in the range either (profile section 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenRange {
    start: u64,
    end: u64,
}

/// A pair or a text is not a range (in a query `kvsp-invalid-range`, in a body `kvsp-invalid-shard-map`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a range of tokens is a-b in unsigned decimals 0..=4294967295 with a < b")]
pub struct BadTokenRange;

impl TokenRange {
    /// The positions `start..end`.
    ///
    /// # Errors
    /// `start` is not below `end`, or `end` is beyond 2^32 − 1, above which no query can name it.
    pub const fn new(start: u64, end: u64) -> Result<Self, BadTokenRange> {
        if start < end && end <= u32::MAX as u64 { Ok(Self { start, end }) } else { Err(BadTokenRange) }
    }

    /// The first position.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The position after the last.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// How many positions.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.end - self.start
    }

    /// Whether the two have a position in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The positions that both have.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end)).ok()
    }
}

impl From<TokenRange> for Range<u64> {
    fn from(range: TokenRange) -> Self {
        range.start..range.end
    }
}

impl TryFrom<Range<u64>> for TokenRange {
    type Error = BadTokenRange;

    fn try_from(range: Range<u64>) -> Result<Self, BadTokenRange> {
        Self::new(range.start, range.end)
    }
}

impl fmt::Display for TokenRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

impl FromStr for TokenRange {
    type Err = BadTokenRange;

    /// Each range has one spelling: no signs, no spaces and no leading zeros.
    fn from_str(text: &str) -> Result<Self, BadTokenRange> {
        let (start, end) = text.split_once('-').ok_or(BadTokenRange)?;
        Self::new(decimal(start)?, decimal(end)?)
    }
}

fn decimal(text: &str) -> Result<u64, BadTokenRange> {
    let canonical = text.bytes().all(|c| c.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().map_err(|_| BadTokenRange) } else { Err(BadTokenRange) }
}

impl Serialize for TokenRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.start, self.end).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TokenRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (start, end) = <(u64, u64)>::deserialize(deserializer)?;
        // Two numbers are well-formed; that they are no range makes the body false.
        Self::new(start, end).map_err(|_| {
            let mark = json::UNREGISTERED_MARK;
            D::Error::custom(format_args!("{mark}a range of tokens is [a, b] with a < b < 2^32"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_spelling_and_is_never_empty() {
        for text in ["0-1", "7-30", "0-4294967295"] {
            assert_eq!(text.parse::<TokenRange>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "2-1",
            "1-1",
            "0-0",
            "+1-2",
            " 1-2",
            "01-2",
            "1-02",
            "1-2-3",
            "a-b",
            "0-4294967296",
        ] {
            assert_eq!(text.parse::<TokenRange>(), Err(BadTokenRange), "{text}");
        }
    }

    #[test]
    fn what_two_ranges_share() {
        let range = |a, b| TokenRange::new(a, b).unwrap();
        assert_eq!(range(0, 5).intersection(range(3, 9)), Some(range(3, 5)));
        assert_eq!(range(0, 5).intersection(range(5, 9)), None);
        assert!(range(0, 5).overlaps(range(4, 5)) && !range(0, 5).overlaps(range(5, 6)));
    }
}
