//! Tables of the state store beside those of the sessions: the first octet of a row's key.

/// What is remembered of instances.
pub(crate) const INSTANCES: u8 = 4;
/// Shard maps, one row a map.
pub(crate) const MAPS: u8 = 5;
