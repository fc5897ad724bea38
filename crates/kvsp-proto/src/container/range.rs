//! Inclusive ranges of layers.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// An inclusive range of layers, never empty; `first-last` in a query (draft section 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerRange {
    first: u32,
    last: u32,
}

/// A text or a pair is not a range (`kvsp-invalid-range`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a range is a-b in unsigned decimals 0..=4294967295 with a <= b")]
pub struct RangeError;

impl LayerRange {
    /// The layers `first..=last`.
    ///
    /// # Errors
    /// `first` is greater than `last`.
    pub const fn new(first: u32, last: u32) -> Result<Self, RangeError> {
        if first > last { Err(RangeError) } else { Ok(Self { first, last }) }
    }

    /// The `count` layers from `first`; `None` for no layers or layers beyond 2^32 − 1.
    #[must_use]
    pub const fn from_count(first: u32, count: u32) -> Option<Self> {
        let Some(more) = count.checked_sub(1) else { return None };
        match first.checked_add(more) {
            Some(last) => Some(Self { first, last }),
            None => None,
        }
    }

    /// The first layer.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.first
    }

    /// The last layer, itself in the range.
    #[must_use]
    pub const fn last(self) -> u32 {
        self.last
    }

    /// How many layers: 1 to 2^32.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.last as u64 - self.first as u64 + 1
    }

    /// Whether `layer` is in the range.
    #[must_use]
    pub const fn contains(self, layer: u32) -> bool {
        self.first <= layer && layer <= self.last
    }

    /// Whether every layer of `other` is in the range.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// The layers in ascending order.
    pub const fn layers(self) -> RangeInclusive<u32> {
        self.first..=self.last
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for LayerRange {
    type Err = RangeError;

    /// Each range has one spelling: no signs, no spaces and no leading zeros.
    fn from_str(text: &str) -> Result<Self, RangeError> {
        let (first, last) = text.split_once('-').ok_or(RangeError)?;
        Self::new(decimal(first)?, decimal(last)?)
    }
}

fn decimal(text: &str) -> Result<u32, RangeError> {
    let canonical = text.bytes().all(|c| c.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().map_err(|_| RangeError) } else { Err(RangeError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_spelling() {
        for text in ["0-0", "0-4294967295", "7-30", "4294967295-4294967295"] {
            assert_eq!(text.parse::<LayerRange>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "2-1",
            "1--2",
            "+1-2",
            "1-+2",
            " 1-2",
            "1-2 ",
            "1 -2",
            "01-2",
            "0-02",
            "00-1",
            "a-b",
            "0x1-2",
            "0-4294967296",
            "1-2-3",
            "1-2,4-5",
            "1.0-2",
            "١-٢",
            "99999999999999999999-0",
        ] {
            assert_eq!(text.parse::<LayerRange>(), Err(RangeError), "{text}");
        }
    }

    #[test]
    fn the_extremes_are_counted() {
        let all = LayerRange::new(0, u32::MAX).unwrap();
        assert_eq!(all.count(), 1 << 32);
        assert_eq!(LayerRange::from_count(u32::MAX, 1), LayerRange::new(u32::MAX, u32::MAX).ok());
        assert_eq!(LayerRange::from_count(u32::MAX, 2), None);
        assert_eq!(LayerRange::from_count(0, 0), None);
        assert!(all.covers(LayerRange::new(3, 4).unwrap()) && all.contains(5));
    }
}
