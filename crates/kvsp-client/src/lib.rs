//! A typed client for every KVSP role.
//!
//! One [`Client`] serves a process: it is cheap to clone, pools HTTP/1.1 connections, and holds every answer
//! to a deadline and a size. It follows no redirect and forwards no credential. Where it connects to is for a
//! [`policy::DestinationPolicy`] to say, which sees the address that is connected to, not only the name.
//!
//! Blocks are verified: [`Client::get_block`] checks `Repr-Digest` as the octets arrive,
//! [`Client::get_verified`] also the digests of the Replica Record (draft section 6.7), and
//! [`Client::layer_stream`] hands out layer after layer while the next one is on its way.

mod answer;
mod blocks;
mod body;
mod config;
pub mod connect;
mod controller;
mod error;
mod exchange;
mod forward;
mod group;
mod index;
mod instance;
mod layer_stream;
mod leases;
pub mod policy;
mod pool;
mod sessions;
mod shards;
mod sse;
mod tokens;
mod transport;
pub mod verify;

pub use blocks::{BlockHead, BlockQuery, FetchedBlock};
pub use body::StreamedBody;
pub use config::ClientConfig;
pub use error::ClientError;
pub use index::{EventsQuery, IndexEvent, IndexEvents};
pub use layer_stream::{LayerStream, StreamedLayer};
pub use tokens::TokenStream;
pub use transport::Client;
pub use verify::VerifyError;
