//! Typed client for every KVSP role with verified block retrieval.
