//! One figure.

/// One figure of a bench.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// What was measured.
    pub(super) name: String,
    /// The figure; of several rounds the median.
    pub(super) value: f64,
    /// Its unit.
    pub(super) unit: &'static str,
}
