//! The texts of a record that few records have of their own.

/// Producer and track namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Texts {
    pub(super) producer: Option<Box<str>>,
    pub(super) namespace: Option<Box<str>>,
}

impl Texts {
    pub(super) fn parts(&self) -> (Option<&str>, Option<&str>) {
        (self.producer.as_deref(), self.namespace.as_deref())
    }

    /// Octets in the pool, which keeps a value twice, roughly.
    pub(super) fn octets(&self) -> u64 {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len() as u64 + 16);
        2 * (text(&self.producer) + text(&self.namespace)) + 128
    }
}
