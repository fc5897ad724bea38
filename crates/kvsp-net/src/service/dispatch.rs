//! From a request to its answer: authentication first, the routes, and problems for all that goes wrong.

use std::any::Any;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use kvsp_proto::path::MEDIA_PROBLEM;
use tower::ServiceExt as _;

use super::{ServiceConfig, Shortcut};
use crate::auth::{Authenticator, Caller};
use crate::inbound::{InboundBody, InboundLimits};
use crate::metrics::{Metrics, RoleMetrics};
use crate::reply::Failure;

pub(super) struct Dispatch {
    routes: Router,
    shortcut: Option<Arc<dyn Shortcut>>,
    authenticator: Arc<dyn Authenticator>,
    metrics: RoleMetrics,
    inbound: InboundLimits,
}

impl Dispatch {
    pub(super) fn new(
        routes: Router,
        authenticator: Arc<dyn Authenticator>,
        metrics: &Metrics,
        role: &'static str,
        config: &ServiceConfig,
    ) -> Self {
        Self {
            routes,
            shortcut: None,
            authenticator,
            metrics: metrics.of_role(role),
            inbound: config.inbound(),
        }
    }

    pub(super) fn with_shortcut(self, shortcut: Option<Arc<dyn Shortcut>>) -> Self {
        Self { shortcut, ..self }
    }

    pub(super) async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response {
        let start = Instant::now();
        let method = request.method().clone();
        let handled = AssertUnwindSafe(self.handle(request, peer)).catch_unwind().await;
        let response = as_problem(handled.unwrap_or_else(|panic| panicked(panic.as_ref())));
        self.metrics.answered(&method, response.status().as_u16(), start.elapsed());
        response
    }

    async fn handle(&self, request: Request<Incoming>, peer: SocketAddr) -> Response {
        let (parts, incoming) = request.into_parts();
        let body = InboundBody::new(&parts, incoming, self.inbound);
        let principal = match self.authenticator.authenticate(&parts, peer) {
            Ok(principal) => principal,
            Err(problem) => return Failure(problem).into_response(),
        };
        if !parts.uri.path().starts_with('/') {
            return Failure::blank(StatusCode::NOT_FOUND, "there is no such resource").into_response();
        }
        let caller = Caller(Arc::new(principal));
        let mut request = Request::from_parts(parts, Body::new(body));
        if let Some(answer) = self.shortcut.as_ref().and_then(|way| way.answer(&caller, &mut request)) {
            return answer.await;
        }
        request.extensions_mut().insert(caller);
        let Ok(response) = self.routes.clone().oneshot(request).await;
        response
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Response {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("not a text"), "a handler panicked");
    Failure::blank(StatusCode::INTERNAL_SERVER_ERROR, "the request failed within the service").into_response()
}

/// Gives an error that no handler made (no route, no such method) the body of a problem.
fn as_problem(response: Response) -> Response {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || is_typed(&response) {
        return response;
    }
    let detail = match status {
        StatusCode::NOT_FOUND => "there is no such resource",
        StatusCode::METHOD_NOT_ALLOWED => "the resource does not have this method",
        _ => "the request could not be served",
    };
    let mut problem = Failure::blank(status, detail).into_response();
    if let Some(allow) = response.headers().get(ALLOW) {
        problem.headers_mut().insert(ALLOW, allow.clone());
    }
    problem
}

/// Whether a handler chose the form of its error: a problem, or the JSON of another API.
fn is_typed(response: &Response) -> bool {
    response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|media| media == MEDIA_PROBLEM || media.as_bytes().starts_with(b"application/json"))
}
