//! The KVSP Index Service.
