//! What a figure should be. Information, never an exit status: a figure that misses is reported as it is.

use serde_json::{Value, json};

/// A bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Goal {
    /// Whether a figure is within the bound; what is not a number is not.
    pub(super) fn met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    /// The bound and how the figure stands to it.
    pub(super) fn to_text(self, value: f64) -> String {
        let (sign, bound) = match self {
            Self::AtLeast(bound) => (">=", bound),
            Self::AtMost(bound) => ("<=", bound),
        };
        format!("{sign} {bound} {}", if self.met(value) { "met" } else { "missed" })
    }

    /// The same as JSON.
    pub(super) fn to_json(self, value: f64) -> Value {
        match self {
            Self::AtLeast(bound) => json!({ "at_least": bound, "met": self.met(value) }),
            Self::AtMost(bound) => json!({ "at_most": bound, "met": self.met(value) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_goal() {
        assert_eq!(Goal::AtLeast(0.9).to_text(0.9), ">= 0.9 met");
        assert_eq!(Goal::AtLeast(0.9).to_text(0.89), ">= 0.9 missed");
        assert_eq!(Goal::AtMost(1.25).to_json(1.3), json!({ "at_most": 1.25, "met": false }));
        assert!(!Goal::AtMost(1.0).met(f64::NAN) && !Goal::AtLeast(1.0).met(f64::NAN));
    }
}
