//! The KVSP Holder service.
