//! Instance statuses, epochs and failure by expiry (draft section 6.3).
