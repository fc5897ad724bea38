//! Block stores (memory, disk) behind one trait with one conformance suite.
