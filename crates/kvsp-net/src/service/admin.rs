//! The administration listener: liveness, readiness and metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use kvsp_proto::problem::Problem;

use crate::auth::Authenticator;
use crate::metrics::{MEDIA_METRICS, Metrics};
use crate::principal::Principal;
use crate::reply::{self, Failure};

/// Nothing that this listener tells is secret, and nothing can be changed through it.
pub(super) struct Anyone;

impl Authenticator for Anyone {
    fn authenticate(&self, _parts: &Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        Ok(Principal::anonymous())
    }
}

pub(super) fn routes(metrics: Metrics, ready: Arc<AtomicBool>) -> Router {
    Router::new()
        .route("/livez", get(async || reply::empty(StatusCode::OK)))
        .route("/readyz", get(async move || readiness(ready.load(Ordering::Acquire))))
        .route("/metrics", get(async move || exposition(&metrics)))
}

fn readiness(ready: bool) -> Response {
    if ready {
        return reply::empty(StatusCode::OK);
    }
    Failure::blank(StatusCode::SERVICE_UNAVAILABLE, "the service is not ready").into_response()
}

fn exposition(metrics: &Metrics) -> Response {
    let mut response = Response::new(metrics.encode().into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_METRICS));
    response
}
