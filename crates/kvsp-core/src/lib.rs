//! The KVSP decisions as state machines without I/O: index, leases, tiers, prefetch, cost and placement.
