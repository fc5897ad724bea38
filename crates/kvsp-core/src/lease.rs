//! Leases (draft section 6.6).
