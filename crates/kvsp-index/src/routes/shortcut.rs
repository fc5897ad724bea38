//! The way past the router for single publications and lookups.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use http::Method;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::service::Shortcut;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::path;
use kvsp_proto::uri::HolderUri;

use super::{lookup, replicas};
use crate::service::IndexService;

/// The handlers of `PUT replicas/…` and `POST lookup`.
pub(crate) struct Direct {
    service: Arc<IndexService>,
    base: String,
}

impl Direct {
    /// Handlers below `base`, a path that ends in a slash.
    pub(crate) fn new(service: Arc<IndexService>, base: &str) -> Arc<Self> {
        Arc::new(Self { service, base: base.to_owned() })
    }
}

impl Shortcut for Direct {
    fn answer(&self, caller: &Caller, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
        let path = request.uri().path().strip_prefix(self.base.as_str())?;
        let service = || State(Arc::clone(&self.service));
        match *request.method() {
            Method::PUT => {
                let replica = PathOf(replica_of(path)?);
                let (service, caller, body) = (service(), caller.clone(), RequestBody::take(request));
                Some(Box::pin(async { replicas::put(service, caller, replica, body).await.into_response() }))
            }
            Method::POST if path == path::LOOKUP => {
                let (service, caller, body) = (service(), caller.clone(), RequestBody::take(request));
                Some(Box::pin(async { lookup::lookup(service, caller, body).await.into_response() }))
            }
            _ => None,
        }
    }
}

/// What a path says of a replica; `None` unless it is plainly that of one.
fn replica_of(path: &str) -> Option<(CompatId, ScopeId, BlockKey, HolderUri)> {
    let mut segments = path.strip_prefix(path::REPLICAS)?.strip_prefix('/')?.split('/');
    let (compat, scope, key) = (segments.next()?, segments.next()?, segments.next()?);
    let holder = segments.next()?;
    if segments.next().is_some() {
        return None;
    }
    let holder = HolderUri::from_uri64(holder).ok()?;
    Some((compat.parse().ok()?, scope.parse().ok()?, key.parse().ok()?, holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_path_of_a_replica_is_taken() {
        let holder: HolderUri = "https://h1.example/kvsp/".parse().unwrap();
        let (compat, scope, key) = (CompatId([0xc3; 32]), ScopeId([0x5c; 16]), BlockKey([7; 32]));
        let plain = path::replica(compat, scope, key, &holder);
        assert_eq!(replica_of(&plain), Some((compat, scope, key, holder)));
        for other in [
            format!("{plain}/"),
            format!("{plain}/x"),
            format!("/{plain}"),
            plain.replacen('/', "//", 1),
            plain.replacen("c3", "C3", 1),
            plain.replacen("c3", "%63%33", 1),
            path::block_replicas(compat, scope, key),
            path::REPLICAS.to_owned(),
            String::new(),
        ] {
            assert_eq!(replica_of(&other), None, "{other}");
        }
    }
}
