//! The administration listener: liveness, readiness and metrics. Nothing that it tells is secret, and nothing
//! can be changed through it; but it is no more for web pages than the protocol is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::metrics::{MEDIA_METRICS, Metrics};
use crate::reply::{self, Failure};

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
