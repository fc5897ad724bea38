//! One request and its answer on one connection.
//!
//! The connection is driven by whoever waits for the answer, not by a task of its own: a piece of a body costs no
//! wake-up of another thread. It lasts for one exchange; then the bare stream goes back to the pool.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use crate::connect::Stream;
use crate::pool::Pool;

/// Octets that the HTTP library reads at a time at most: they stay in the cache until they are copied. Also the
/// limit of an answer's head.
const READ_BUFFER_OCTETS: usize = 256 << 10;
/// Header fields of an answer.
const MAX_HEADERS: usize = 100;

type Io = TokioIo<Box<dyn Stream>>;
type Sent = Request<Full<Bytes>>;

/// A connection in use.
pub(crate) struct Exchange {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<Connection<Io, Full<Bytes>>>,
    pool: Arc<Pool>,
    authority: String,
    /// The connection may serve another request after a body that is taken from below the HTTP library.
    persistent: bool,
}

/// A body's stream below the HTTP library.
pub(crate) struct Bare {
    pub(crate) stream: Box<dyn Stream>,
    /// Octets that the HTTP library has read already and not handed out.
    pub(crate) read: Bytes,
    pool: Arc<Pool>,
    authority: String,
    persistent: bool,
}

impl Exchange {
    /// Prepares a connected stream for one exchange.
    pub(crate) async fn on(
        stream: Box<dyn Stream>,
        pool: Arc<Pool>,
        authority: String,
    ) -> Result<Self, hyper::Error> {
        let mut builder = Builder::new();
        builder.max_buf_size(READ_BUFFER_OCTETS).max_headers(MAX_HEADERS);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, connection: Some(connection), pool, authority, persistent: false })
    }

    /// Sends the request; the answer's body is still to come. A request that was not sent at all is given back.
    pub(crate) async fn answer(&mut self, request: Sent) -> Result<Response<Incoming>, TrySendError<Sent>> {
        let sends_body = !request.body().is_end_stream();
        let connection = &mut self.connection;
        let mut answering = pin!(self.sender.try_send_request(request));
        let response = poll_fn(|cx| {
            drive(connection, cx);
            answering.as_mut().poll(cx)
        })
        .await?;
        // A request with a body may be answered before it is sent whole.
        self.persistent = !sends_body
            && response.version() == Version::HTTP_11
            && !response.headers().contains_key(http::header::CONNECTION);
        Ok(response)
    }

    /// Lets the connection make progress.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, cx);
    }

    /// Ends an exchange whose body has ended: its connection goes back to the pool, if it may be used again.
    pub(crate) fn end(mut self) {
        // The connection has yet to see that the body has ended.
        drive(&mut self.connection, &mut Context::from_waker(Waker::noop()));
        if !self.sender.is_ready() {
            return;
        }
        if let Some(connection) = self.connection {
            let parts = connection.into_parts();
            if parts.read_buf.is_empty() {
                self.pool.put(&self.authority, parts.io.into_inner());
            }
        }
    }

    /// Takes the stream away from the HTTP library in the middle of a body; `None` where it has ended.
    pub(crate) fn into_bare(self) -> Option<Bare> {
        let parts = self.connection?.into_parts();
        Some(Bare {
            stream: parts.io.into_inner(),
            read: parts.read_buf,
            pool: self.pool,
            authority: self.authority,
            persistent: self.persistent,
        })
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Bare {
    /// Ends an exchange whose body was read to its last octet and not beyond.
    pub(crate) fn end(self) {
        if self.persistent {
            self.pool.put(&self.authority, self.stream);
        }
    }
}

fn drive(connection: &mut Option<Connection<Io, Full<Bytes>>>, cx: &mut Context<'_>) {
    // Its error, if it has one, is told to whoever waits for the answer or its body.
    if connection.as_mut().is_some_and(|connection| Pin::new(connection).poll(cx).is_ready()) {
        *connection = None;
    }
}
