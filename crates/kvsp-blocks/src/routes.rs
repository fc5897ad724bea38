//! The resources of draft sections 6.6 and 6.7 and profile section 5 "Holder", below a base URI.

mod blocks;
mod descriptors;
mod leases;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use kvsp_proto::path::{BLOCK_ROUTE, BLOCKS_ROUTE, DESCRIPTOR_ROUTE, LEASE_ROUTE, LEASES};

use crate::service::BlockService;

/// Extensions of the protocol that the router offers, for the root document.
pub const EXTENSIONS: &[&str] = &["layer-stream"];

impl BlockService {
    /// The routes of blocks, leases and descriptors, relative to the base URI.
    pub fn router(self: Arc<Self>) -> Router {
        let block = get(blocks::get).head(blocks::head).put(blocks::put).delete(blocks::delete);
        let lease = get(leases::get).put(leases::renew).delete(leases::release);
        let route = |path: &str| format!("/{path}");
        Router::new()
            .route(&route(BLOCK_ROUTE), block)
            .route(&route(BLOCKS_ROUTE), post(stream::layers))
            .route(&route(LEASES), post(leases::create))
            .route(&route(LEASE_ROUTE), lease)
            .route(&route(DESCRIPTOR_ROUTE), get(descriptors::get).put(descriptors::put))
            .with_state(self)
    }
}
