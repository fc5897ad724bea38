//! The KVSP wire: identifiers, descriptors, block keys, containers, records, problems and paths; no I/O.

pub mod attention;
pub mod block_key;
pub mod codec;
pub mod container;
pub mod descriptor;
pub mod digest;
pub mod fast;
pub mod id;
pub mod json;
pub mod message;
pub mod path;
pub mod positional;
pub mod problem;
pub mod record;
pub mod registry;
pub mod uri;
