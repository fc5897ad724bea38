//! Authentication: the first check of every request (profile sections 3 and 4).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::Version;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use kvsp_proto::problem::{Problem, ProblemType};

use crate::principal::Principal;
use crate::reply::Failure;

/// Tells who a request is from. Called once a request, before anything else is looked at.
pub trait Authenticator: Send + Sync + 'static {
    /// The principal of a request that came from `peer`.
    ///
    /// # Errors
    /// `kvsp-unauthenticated`, or 403 where development mode refuses the origin.
    fn authenticate(&self, parts: &Parts, peer: SocketAddr) -> Result<Principal, Problem>;
}

/// Development mode: no credentials, every caller is [`Principal::development`].
///
/// A web page in the user's browser is not the user: requests with an `Origin`, or for a host that is not
/// loopback (a rebound DNS name), are refused.
#[derive(Debug, Clone, Copy)]
pub struct Development {
    any_host: bool,
}

impl Development {
    /// Development mode on loopback.
    #[must_use]
    pub const fn new() -> Self {
        Self { any_host: false }
    }

    /// Development mode for a listener that was made reachable by other hosts on purpose (the insecure
    /// flag): the host asked for can then be any.
    #[must_use]
    pub const fn insecure() -> Self {
        Self { any_host: true }
    }
}

impl Default for Development {
    fn default() -> Self {
        Self::new()
    }
}

impl Authenticator for Development {
    fn authenticate(&self, parts: &Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        if parts.headers.contains_key(ORIGIN) {
            return Err(Problem::blank(403, "development mode refuses requests that a web page makes"));
        }
        let mut hosts = parts.headers.get_all(HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(Problem::blank(400, "more than one Host"));
        }
        let host = host.map(|value| value.to_str().unwrap_or_default());
        let authority = parts.uri.authority().map(http::uri::Authority::as_str);
        if host.is_none() && authority.is_none() && parts.version >= Version::HTTP_11 {
            return Err(Problem::blank(400, "no Host"));
        }
        if !self.any_host && [host, authority].into_iter().flatten().any(|name| !is_loopback(name)) {
            return Err(Problem::blank(403, "development mode serves loopback hosts only"));
        }
        Ok(Principal::development())
    }
}

/// Whether `host[:port]` names this machine by a name that no DNS server can rebind.
fn is_loopback(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, rest)) if rest.is_empty() || rest.starts_with(':') => (v6, rest.trim_start_matches(':')),
        Some(_) => return false,
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if !port.bytes().all(|digit| digit.is_ascii_digit()) {
        return false;
    }
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The principal of the request, as an extractor: the first argument of a handler.
#[derive(Debug, Clone)]
pub struct Caller(pub Arc<Principal>);

impl std::ops::Deref for Caller {
    type Target = Principal;
    fn deref(&self) -> &Principal {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        // Absent only where a router is driven without a listener: nobody is authenticated then.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Failure(Problem::new(ProblemType::Unauthenticated, "the request did not pass authentication"))
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn ask(authenticator: Development, uri: &str, headers: &[(&str, &str)]) -> Result<Principal, u16> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        authenticator.authenticate(&parts, ([127, 0, 0, 1], 9).into()).map_err(|problem| problem.status())
    }

    #[test]
    fn loopback_hosts_are_the_user() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:1"] {
            assert_eq!(
                ask(Development::new(), "/", &[("host", host)]),
                Ok(Principal::development()),
                "{host}"
            );
        }
    }

    #[test]
    fn other_hosts_and_web_pages_are_not() {
        for host in
            ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "[::1]x", "127.0.0.1:x", "", "0"]
        {
            assert_eq!(ask(Development::new(), "/", &[("host", host)]), Err(403), "{host}");
        }
        assert_eq!(
            ask(Development::new(), "/", &[("host", "localhost"), ("origin", "http://localhost")]),
            Err(403)
        );
        assert_eq!(ask(Development::new(), "http://evil.example/", &[("host", "localhost")]), Err(403));
        assert_eq!(ask(Development::insecure(), "/", &[("host", "node7")]), Ok(Principal::development()));
        assert_eq!(ask(Development::insecure(), "/", &[("host", "node7"), ("origin", "null")]), Err(403));
    }

    #[test]
    fn there_is_exactly_one_host() {
        assert_eq!(ask(Development::new(), "/", &[]), Err(400));
        assert_eq!(ask(Development::new(), "/", &[("host", "localhost"), ("host", "localhost")]), Err(400));
    }
}
