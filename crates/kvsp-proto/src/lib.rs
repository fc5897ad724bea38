//! The KVSP wire: identifiers, descriptors, block keys, containers, records, problems and paths; no I/O.
