//! The Holder service: keeps blocks in host memory, on disk and in an object store, serves them, and publishes them (draft
//! sections 6.1, 6.6 and 6.7).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvsp_blocks::{BlockService, BlocksConfig, BlocksDeps, EXTENSIONS, Stores};
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// Settings of a holder.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HolderConfig {
    /// Tiers, leases, limits and the index.
    pub blocks: BlocksConfig,
}

/// Serves a holder on `bound` until `stop`; then finishes the requests in flight and withdraws every
/// replica. `ready` is called once blocks of an earlier process are taken up and requests are answered.
///
/// # Errors
/// A tier cannot be used, or a listener broke.
pub async fn serve(
    config: HolderConfig,
    bound: Bound,
    deps: BlocksDeps,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let stores = Stores::open(&config.blocks, &bound.base()).await.map_err(ServeError::setup)?;
    serve_on(stores, config, bound, deps, ready, stop).await
}

/// The same with the stores of the tiers opened already.
///
/// # Errors
/// As [`serve`].
pub async fn serve_on(
    stores: Stores,
    config: HolderConfig,
    bound: Bound,
    deps: BlocksDeps,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let metrics = deps.metrics.clone();
    let limits = config.blocks.limits;
    let service = BlockService::open_on(config.blocks, stores, bound.base(), "holder", deps).await;
    let service = service.map_err(ServeError::setup)?;
    let facts = ServiceFacts { roles: vec!["holder"], extensions: EXTENSIONS.to_vec(), limits };
    // Replicas are withdrawn first: a client that asks the index then is not sent to a closing door.
    let publisher = tokio::spawn(service.clone().run(stop.clone()));
    let is_ready = Arc::new(AtomicBool::new(false));
    let serving = bound.serve(service.router(), facts, metrics, is_ready.clone(), stop.clone());
    is_ready.store(true, Ordering::Release);
    ready();
    let outcome = serving.await;
    // Where the listener broke, nobody asked for a stop yet.
    stop.cancel();
    publisher.await.map_err(ServeError::from)?;
    outcome
}
