//! Futures and services that run beside a test.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use kvsp_net::auth::Development;
use kvsp_net::metrics::Metrics;
use kvsp_net::service::{Bound, ServeError, Service, ServiceConfig, ServiceFacts};
use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest time that a stop may take before the test fails.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A future that runs until it is told to stop. Dropping it tells it to stop and does not wait.
#[derive(Debug)]
pub struct Running<T> {
    stop: CancellationToken,
    task: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Running<T> {
    /// Runs the future that `start` makes of the token by which it is stopped.
    pub fn spawn<F>(start: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = Some(tokio::spawn(start(stop.clone())));
        Self { stop, task }
    }

    /// The token by which the future is stopped.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.stop
    }

    /// Stops the future and takes what it returned.
    ///
    /// # Panics
    /// The future panicked, or did not end in time.
    pub async fn stop(mut self) -> T {
        self.stop.cancel();
        let task = self.task.take().expect("only `stop` takes the task");
        tokio::time::timeout(STOP_TIMEOUT, task)
            .await
            .expect("the stop takes too long")
            .expect("the service panicked")
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Binds on free loopback ports with credential-free development authentication.
///
/// # Panics
/// No port can be bound.
pub async fn bind(config: ServiceConfig) -> Bound {
    Service::bind(config, Arc::new(Development::new())).await.expect("a loopback port is free")
}

/// A router served on loopback.
#[derive(Debug)]
pub struct TestService {
    /// Its base URI.
    pub base: BaseUri,
    /// The base URI of its administration listener.
    pub admin: BaseUri,
    /// What `/readyz` tells.
    pub ready: Arc<AtomicBool>,
    /// Its metrics.
    pub metrics: Metrics,
    running: Running<Result<(), ServeError>>,
}

impl TestService {
    /// Serves a router as the role `holder` with default settings.
    ///
    /// # Panics
    /// No port can be bound.
    pub async fn start(router: Router) -> Self {
        Self::start_with(router, ServiceConfig::default()).await
    }

    /// Serves a router with these settings.
    ///
    /// # Panics
    /// No port can be bound.
    pub async fn start_with(router: Router, config: ServiceConfig) -> Self {
        let bound = bind(config).await;
        let (base, admin) = (bound.base(), bound.admin());
        let facts = ServiceFacts { roles: vec!["holder"], extensions: vec![], limits: Limits::default() };
        let (metrics, ready) = (Metrics::new(), Arc::new(AtomicBool::new(true)));
        let served = (metrics.clone(), Arc::clone(&ready));
        let running = Running::spawn(|stop| bound.serve(router, facts, served.0, served.1, stop));
        Self { base, admin, ready, metrics, running }
    }

    /// Begins the stop without waiting for its end.
    pub fn begin_stop(&self) {
        self.running.token().cancel();
    }

    /// Stops the service.
    ///
    /// # Panics
    /// It failed, panicked, or did not end in time.
    pub async fn stop(self) {
        self.running.stop().await.expect("the service served");
    }

    /// `host:port` of the base URI.
    #[must_use]
    pub fn authority(&self) -> String {
        let rest = self.base.as_str().trim_start_matches("http://");
        rest.split('/').next().unwrap_or_default().to_owned()
    }
}
