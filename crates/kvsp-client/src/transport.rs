//! Sending a request: policy, deadline, and what the network made of it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kvsp_proto::path::MEDIA_JSON;
use kvsp_proto::uri::BaseUri;
use serde::Serialize;
use tokio::time::Instant;

use crate::body::StreamedBody;
use crate::config::ClientConfig;
use crate::connect::{ConnectError, Erased};
use crate::error::ClientError;

/// Octets that the HTTP library reads at a time at most; also the limit of an answer's head.
const READ_BUFFER_OCTETS: usize = 1 << 20;
/// Header fields of an answer.
const MAX_HEADERS: usize = 100;

/// A client of KVSP services. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    http: HttpClient<Erased, Full<Bytes>>,
    config: ClientConfig,
}

/// One request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// With a JSON body.
    pub(crate) fn json<T: Serialize + ?Sized>(
        method: Method,
        path: impl Into<String>,
        body: &T,
    ) -> Result<Self, ClientError> {
        let octets = serde_json::to_vec(body)
            .map_err(|error| ClientError::protocol(format!("the request is not JSON: {error}")))?;
        Ok(Self::new(method, path).with_body(MEDIA_JSON, octets.into()))
    }

    pub(crate) fn with_body(mut self, media: &'static str, body: Bytes) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        self.body = body;
        self
    }
}

impl Client {
    /// A client with its own pool of connections.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_idle_timeout(config.idle_connection_timeout)
            .pool_max_idle_per_host(config.max_idle_connections)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_buf_size(READ_BUFFER_OCTETS)
            .http1_max_headers(MAX_HEADERS)
            .build(Erased(config.connector()));
        Self { timeout: config.timeout, shared: Arc::new(Shared { http, config }) }
    }

    /// The same client with another time for whole answers (of streamed ones, for their heads).
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// When an answer must be whole that is asked for now.
    pub(crate) fn deadline(&self) -> Instant {
        let now = Instant::now();
        // A timeout beyond what the clock can tell is none.
        now.checked_add(self.timeout).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365))
    }

    /// Sends a request; the answer's body is still to come, until `whole` at the latest where that is given.
    pub(crate) async fn send(
        &self,
        base: &BaseUri,
        call: Call,
        head: Instant,
        whole: Option<Instant>,
    ) -> Result<Response<StreamedBody>, ClientError> {
        let host = host_of(base);
        if base.is_https() {
            return Err(ClientError::Https { host });
        }
        self.shared.config.policy.allow(base)?;
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = call.method;
        *request.headers_mut() = call.headers;
        *request.uri_mut() = base
            .join(&call.path)
            .parse()
            .map_err(|_| ClientError::protocol("the request's URI is not valid"))?;
        match tokio::time::timeout_at(head, self.shared.http.request(request)).await {
            Err(_) => Err(ClientError::Timeout { host }),
            Ok(Err(error)) => Err(unreachable(host, error)),
            Ok(Ok(response)) => {
                let idle = self.shared.config.idle_timeout;
                Ok(response.map(|body| StreamedBody::new(body, host, idle, whole)))
            }
        }
    }
}

fn host_of(base: &BaseUri) -> String {
    let authority = base.as_str().split_once("://").map_or("", |(_, rest)| rest);
    authority.split('/').next().unwrap_or_default().to_owned()
}

fn unreachable(host: String, error: hyper_util::client::legacy::Error) -> ClientError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(ConnectError::Denied(denied)) = current.downcast_ref() {
            return ClientError::Denied(denied.clone());
        }
        cause = current.source();
    }
    ClientError::Unreachable { host, source: error.into() }
}
