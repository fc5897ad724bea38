//! What a controller's server allows at best: the server of every service of ours with a handler that reads a
//! checkpoint's body and acknowledges it at once, without a look at it.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::routing::patch;
use http::StatusCode;
use kvsp_net::auth::Development;
use kvsp_net::extract::RequestBody;
use kvsp_net::metrics::Metrics;
use kvsp_net::service::{Service, ServiceConfig, ServiceFacts};
use kvsp_net::{Failure, reply};
use kvsp_proto::message::{Limits, SessionAck};
use kvsp_proto::path;
use tokio_util::sync::CancellationToken;

use super::super::child::address_of;
use super::super::error::BenchError;

const WHAT: &str = "the limit's server";

/// Serves until killed, with as many threads as a service has.
pub(super) fn serve() -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(BenchError::io(WHAT))?.block_on(async {
        let bound = Service::bind(ServiceConfig::default(), Arc::new(Development::new())).await;
        let bound = bound.map_err(|_| BenchError::Answer(WHAT))?;
        let address = address_of(&bound.base())?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(BenchError::io("stdout"))?;
        let router = Router::new().route(&format!("/{}", path::SESSION_CHECKPOINT_ROUTE), patch(acknowledge));
        let facts =
            ServiceFacts { roles: vec!["controller"], extensions: Vec::new(), limits: Limits::default() };
        let ready = Arc::new(AtomicBool::new(true));
        let served = bound.serve(router, facts, Metrics::new(), ready, CancellationToken::new()).await;
        served.map_err(|_| BenchError::Ended(WHAT))
    })
}

async fn acknowledge(body: RequestBody) -> Result<axum::response::Response, Failure> {
    body.json(&Limits::default()).await?;
    Ok(reply::json(StatusCode::OK, &SessionAck { epoch: 1, output_offset: 1 }))
}
