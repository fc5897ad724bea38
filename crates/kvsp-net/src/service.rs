//! Binding and serving: one listener for the protocol, one for administration.

mod accept;
mod admin;
mod config;
mod dispatch;
mod root;
mod shortcut;
mod stall;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::ServiceConfig;
pub use shortcut::Shortcut;

use crate::auth::{Authenticator, Development};
use crate::metrics::Metrics;
use accept::Listener;
use dispatch::Dispatch;

/// Why a service could not bind.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Without credentials only loopback may be bound, unless the insecure flag is given.
    #[error("{0} is not a loopback address; without credentials this needs the insecure flag (--insecure)")]
    NotLoopback(SocketAddr),
    /// The base path is not `/`, `/a/`, `/a/b/`… of unreserved characters.
    #[error("the base path {0:?} must begin and end in '/' and have only unreserved characters between")]
    BasePath(String),
    /// The system refused the address.
    #[error("{address} cannot be bound: {source}")]
    Address {
        /// The address asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
}

/// Why a service ended other than by being stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What the service needs could not be set up.
    #[error("the service could not be set up: {0}")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A listener's task broke.
    #[error("a listener broke: {0}")]
    Listener(#[from] tokio::task::JoinError),
}

impl ServeError {
    /// The error of a service that could not set up what it needs.
    pub fn setup(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Setup(error.into())
    }
}

/// What `GET {base}` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFacts {
    /// `index`, `holder`, `controller`, `instance`, `gateway`; the first also labels the metrics.
    pub roles: Vec<&'static str>,
    /// Names of the extensions offered.
    pub extensions: Vec<&'static str>,
    /// The limits enforced.
    pub limits: Limits,
}

/// Where services come from.
#[derive(Debug, Clone, Copy)]
pub struct Service;

impl Service {
    /// Binds both listeners; nothing is served yet. `config.listen` with port 0 takes any free port.
    ///
    /// # Errors
    /// [`BindError`]. An authenticator that is not [`crate::auth::Development`] lifts nothing: whether other
    /// addresses than loopback may be bound is for [`ServiceConfig::insecure`] to say.
    pub async fn bind(
        config: ServiceConfig,
        authenticator: Arc<dyn Authenticator>,
    ) -> Result<Bound, BindError> {
        if !config.insecure
            && let Some(address) =
                [config.listen, config.admin_listen].into_iter().find(|a| !a.ip().is_loopback())
        {
            return Err(BindError::NotLoopback(address));
        }
        let base_path = checked_base_path(&config.base_path)?;
        let (listener, address) = listen(config.listen).await?;
        let (admin_listener, admin_address) = listen(config.admin_listen).await?;
        let base = match &config.advertise {
            Some(uri) => uri.clone(),
            None => base_uri(address, &base_path)?,
        };
        let admin = base_uri(admin_address, "/")?;
        Ok(Bound {
            config,
            authenticator,
            listener,
            admin_listener,
            base_path,
            base,
            admin,
            extra: Router::new(),
            shortcut: None,
        })
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError::Address { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn checked_base_path(path: &str) -> Result<String, BindError> {
    let unreserved = |c: u8| c.is_ascii_alphanumeric() || b"-._~".contains(&c);
    let segment = |s: &str| !s.is_empty() && s != "." && s != ".." && s.bytes().all(unreserved);
    let inner = path.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
    if path == "/" || inner.is_some_and(|inner| inner.split('/').all(segment)) {
        return Ok(path.to_owned());
    }
    Err(BindError::BasePath(path.to_owned()))
}

fn base_uri(mut address: SocketAddr, path: &str) -> Result<BaseUri, BindError> {
    if address.ip().is_unspecified() {
        // Bound to every address; others need `advertise`, this machine reaches it by loopback.
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}{path}").parse().map_err(|_| BindError::BasePath(path.to_owned()))
}

/// A service with its listeners bound: its URIs are known, connections wait.
pub struct Bound {
    config: ServiceConfig,
    authenticator: Arc<dyn Authenticator>,
    listener: TcpListener,
    admin_listener: TcpListener,
    base_path: String,
    base: BaseUri,
    admin: BaseUri,
    extra: Router,
    shortcut: Option<Arc<dyn Shortcut>>,
}

impl Bound {
    /// The base URI by which peers reach the service.
    #[must_use]
    pub fn base(&self) -> BaseUri {
        self.base.clone()
    }

    /// The base URI of the administration listener.
    #[must_use]
    pub fn admin(&self) -> BaseUri {
        self.admin.clone()
    }

    /// The path of the base, with its slashes, as it is served.
    #[must_use]
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// With routes outside the base path, for example `/v1/completions`; authenticated like all others.
    #[must_use]
    pub fn with_extra(mut self, router: Router) -> Self {
        self.extra = self.extra.merge(router);
        self
    }

    /// With a way past the router, for requests of the protocol.
    #[must_use]
    pub fn with_shortcut(mut self, shortcut: Arc<dyn Shortcut>) -> Self {
        self.shortcut = Some(shortcut);
        self
    }

    /// Serves until `stop`, then lets requests in flight finish for at most the drain timeout.
    ///
    /// The router's paths are relative to the base (`/lookup`); it has no route `/`, which is the root document
    /// made of `facts`, and no fallback: an unknown path is 404, a known path with another method 405 with
    /// `Allow`, a panic of a handler 500, each as a problem. `ready` is what `/readyz` of the administration
    /// listener tells.
    ///
    /// # Errors
    /// [`ServeError::Listener`].
    pub async fn serve(
        self,
        router: Router,
        facts: ServiceFacts,
        metrics: Metrics,
        ready: Arc<AtomicBool>,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let role = facts.roles.first().copied().unwrap_or("none");
        tracing::info!(base = %self.base, admin = %self.admin, role, "listening");
        let routes = root::mount(&self.base_path, router, &facts).merge(self.extra);
        let dispatch = Dispatch::new(routes, self.authenticator, &metrics, role, &self.config);
        let dispatch = dispatch.with_shortcut(self.shortcut);
        let protocol = Listener::new(self.listener, dispatch, metrics.clone(), &self.config);
        let routes = admin::routes(metrics.clone(), ready);
        // Whoever may reach the address may read it; credentials are for the protocol.
        let anyone = if self.config.insecure { Development::insecure() } else { Development::new() };
        let dispatch = Dispatch::new(routes, Arc::new(anyone), &metrics, "admin", &self.config);
        let admin = Listener::new(self.admin_listener, dispatch, metrics, &self.config);

        let mut listeners = JoinSet::new();
        listeners.spawn(protocol.run(stop.clone()));
        listeners.spawn(admin.run(stop.clone()));
        let mut outcome = Ok(());
        while let Some(ended) = listeners.join_next().await {
            if let Err(error) = ended {
                // One listener without the other is half a service.
                stop.cancel();
                outcome = Err(ServeError::Listener(error));
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_path_is_made_of_plain_segments() {
        for path in ["/", "/kvsp/", "/a/b-1/"] {
            assert_eq!(checked_base_path(path).unwrap(), path);
        }
        for path in ["", "kvsp/", "/kvsp", "//", "/a//b/", "/{x}/", "/../", "/a b/", "/%61/"] {
            assert!(checked_base_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_wildcard_address_is_reached_by_loopback() {
        let uri = base_uri("0.0.0.0:81".parse().unwrap(), "/kvsp/").unwrap();
        assert_eq!(uri.as_str(), "http://127.0.0.1:81/kvsp/");
        let uri = base_uri("[::]:81".parse().unwrap(), "/").unwrap();
        assert_eq!(uri.as_str(), "http://[::1]:81/");
    }
}
