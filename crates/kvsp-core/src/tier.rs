//! Tiers with byte caps and eviction.
