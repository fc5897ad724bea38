//! Sending a request: policy, deadline, and what the network made of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use kvsp_buffer::Arena;
use kvsp_proto::path::MEDIA_JSON;
use kvsp_proto::uri::BaseUri;
use serde::Serialize;
use tokio::time::Instant;

use crate::body::StreamedBody;
use crate::config::ClientConfig;
use crate::connect::{Connect, ConnectError};
use crate::error::ClientError;
use crate::exchange::Exchange;
use crate::policy::Denied;
use crate::pool::Pool;

/// A client of KVSP services. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    pool: Arc<Pool>,
    connector: Arc<dyn Connect>,
    /// Where received blocks lie.
    arena: Arena,
    config: ClientConfig,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
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
        let shared = Shared {
            pool: Pool::new(config.max_idle_connections, config.idle_connection_timeout),
            connector: config.connector(),
            arena: Arena::new(config.pooled_octets),
            config,
        };
        Self { timeout: shared.config.timeout, shared: Arc::new(shared) }
    }

    /// The same client with another time for whole answers (of streamed ones, for their heads).
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// The time for whole answers.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// Where received blocks lie.
    pub(crate) fn arena(&self) -> &Arena {
        &self.shared.arena
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
        let target = Target::of(base, &call.path)?;
        let request = target.request(call);
        match tokio::time::timeout_at(head, self.exchange(&target, request)).await {
            Err(_) => Err(ClientError::Timeout { host }),
            Ok(Err(Failed::Denied(denied))) => Err(ClientError::Denied(denied)),
            Ok(Err(Failed::Broken(source))) => Err(ClientError::Unreachable { host, source }),
            Ok(Ok((response, exchange))) => {
                let idle = self.shared.config.idle_timeout;
                Ok(response.map(|body| StreamedBody::new(body, exchange, host, idle, whole)))
            }
        }
    }

    /// Sends a request on an idle connection, or on a new one where there is none, or where those that there are
    /// turn out to be closed before anything is sent.
    async fn exchange(
        &self,
        target: &Target,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Exchange), Failed> {
        loop {
            let idle = self.shared.pool.take(&target.authority);
            let reused = idle.is_some();
            let stream = match idle {
                Some(stream) => stream,
                None => self.shared.connector.connect(target.host.clone(), target.port).await?,
            };
            let pool = Arc::clone(&self.shared.pool);
            let mut exchange = Exchange::on(stream, pool, target.authority.clone()).await?;
            match exchange.answer(request).await {
                Ok(response) => return Ok((response, exchange)),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if reused => request = unsent,
                    _ => return Err(failed.into_error().into()),
                },
            }
        }
    }
}

/// Why there is no answer.
enum Failed {
    Denied(Denied),
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl From<ConnectError> for Failed {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Denied(denied) => Self::Denied(denied),
            ConnectError::Io(error) => Self::Broken(error.into()),
        }
    }
}

impl From<hyper::Error> for Failed {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(error.into())
    }
}

/// Where a request goes.
struct Target {
    /// Host and, where it is not the scheme's, port: the `Host` field, and the name of its connections.
    authority: String,
    field: HeaderValue,
    /// A name or a literal address, without brackets.
    host: String,
    port: u16,
    /// Path and query.
    path: Uri,
}

impl Target {
    fn of(base: &BaseUri, path: &str) -> Result<Self, ClientError> {
        let invalid = || ClientError::protocol("the request's URI is not valid");
        let uri: Uri = base.join(path).parse().map_err(|_| invalid())?;
        let path = uri.path_and_query().cloned().ok_or_else(invalid)?;
        let authority = host_of(base);
        Ok(Self {
            field: HeaderValue::try_from(&authority).map_err(|_| invalid())?,
            authority,
            host: uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            path: path.into(),
        })
    }

    fn request(&self, call: Call) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = call.method;
        *request.headers_mut() = call.headers;
        request.headers_mut().insert(HOST, self.field.clone());
        *request.uri_mut() = self.path.clone();
        request
    }
}

fn host_of(base: &BaseUri) -> String {
    let authority = base.as_str().split_once("://").map_or("", |(_, rest)| rest);
    authority.split('/').next().unwrap_or_default().to_owned()
}
