//! The resources of the Index Service.

mod batch;
mod descriptors;
mod events;
mod instances;
mod lookup;
mod replicas;
mod shortcut;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{get, post, put};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use kvsp_net::Failure;
use kvsp_proto::path::{self, MEDIA_JSON};

use crate::service::IndexService;

pub(crate) use shortcut::Direct;

/// The state of every handler.
type Service = axum::extract::State<Arc<IndexService>>;

/// The resources below `base`, a path that ends in a slash.
pub(crate) fn router(service: Arc<IndexService>, base: &str) -> Router {
    let at = |path: &str| format!("{base}{path}");
    Router::new()
        .route(&at(path::REPLICA_ROUTE), put(replicas::put).get(replicas::get).delete(replicas::delete))
        .route(&at(path::BLOCK_REPLICAS_ROUTE), get(replicas::list))
        .route(&at(path::REPLICAS), post(batch::batch))
        .route(&at(path::HOLDER_ROUTE), axum::routing::delete(replicas::delete_holder))
        .route(&at(path::LOOKUP), post(lookup::lookup))
        .route(&at(path::EVENTS), get(events::follow))
        .route(&at(path::DESCRIPTOR_ROUTE), put(descriptors::put).get(descriptors::get))
        .route(&at(path::INSTANCE_STATUS_ROUTE), put(instances::put_status))
        .with_state(service)
}

/// Runs what may take long on a thread where it stalls no other request.
async fn offload<T: Send + 'static>(
    heavy: bool,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if !heavy {
        return work();
    }
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a request's work broke");
        Err(Failure::blank(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be worked on"))
    })
}

/// A body beyond this is read off the reactor; one of this size takes some tens of µs.
const HEAVY_OCTETS: usize = 128 << 10;

/// An answer 200 of `application/kvsp+json` that is written already.
fn json_octets(octets: Bytes) -> Response {
    let mut response = Response::new(Body::from(octets));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_JSON));
    response
}
