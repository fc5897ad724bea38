//! Accepting connections and serving HTTP/1.1 and HTTP/2 on them, within limits, until told to stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServiceConfig;
use super::dispatch::Dispatch;
use super::stall::StallGuard;
use crate::metrics::Metrics;

/// Pause after an error of accepting that is not a single connection's: no descriptors, no memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

pub(super) struct Listener {
    listener: TcpListener,
    room: Arc<Semaphore>,
    room_wait: Duration,
    drain: Duration,
    metrics: Metrics,
    server: Arc<Server>,
}

/// What every connection of a listener shares.
struct Server {
    http: Builder<TokioExecutor>,
    dispatch: Dispatch,
    header_timeout: Duration,
    write_timeout: Duration,
}

impl Listener {
    pub(super) fn new(
        listener: TcpListener,
        dispatch: Dispatch,
        metrics: Metrics,
        config: &ServiceConfig,
    ) -> Self {
        Self {
            listener,
            room: Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS))),
            room_wait: Duration::from_millis(config.max_connection_wait_ms),
            drain: Duration::from_millis(config.drain_timeout_ms),
            metrics,
            server: Arc::new(Server {
                http: http_builder(config),
                dispatch,
                header_timeout: Duration::from_millis(config.header_timeout_ms),
                write_timeout: Duration::from_millis(config.write_timeout_ms),
            }),
        }
    }

    /// Accepts until `stop`, then waits for the connections, at most for the drain timeout.
    pub(super) async fn run(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        while let Some((stream, peer, permit)) = stop.run_until_cancelled(self.next()).await {
            let server = Arc::clone(&self.server);
            let open = OpenConnection::new(self.metrics.clone(), permit);
            let (stop, cut) = (stop.clone(), cut.clone());
            connections.spawn(async move {
                let _open = open;
                cut.run_until_cancelled(server.serve(stream, peer, stop)).await;
            });
        }
        // New connections are refused from here on, not queued.
        drop(self.listener);
        connections.close();
        if tokio::time::timeout(self.drain, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "connections were cut off at the drain timeout");
            cut.cancel();
            connections.wait().await;
        }
    }

    /// The next connection that there is room for.
    async fn next(&self) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            match tokio::time::timeout(self.room_wait, Arc::clone(&self.room).acquire_owned()).await {
                Ok(Ok(permit)) => return (stream, peer, permit),
                // The semaphore is never closed, so this is the wait's end.
                Ok(Err(_)) | Err(_) => self.metrics.connection_refused(),
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn http_builder(config: &ServiceConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(config.header_timeout_ms))
        // The least that the HTTP library takes.
        .max_buf_size(config.max_header_octets.max(8192))
        .max_headers(config.max_headers)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(config.header_timeout_ms))
        .keep_alive_timeout(Duration::from_millis(config.header_timeout_ms))
        .max_header_list_size(u32::try_from(config.max_header_octets).unwrap_or(u32::MAX))
        .max_concurrent_streams(config.max_streams)
        .adaptive_window(true);
    builder
}

/// Counts a connection and holds its room for as long as it is open.
struct OpenConnection {
    metrics: Metrics,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(metrics: Metrics, permit: OwnedSemaphorePermit) -> Self {
        metrics.connections().inc();
        Self { metrics, _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.connections().dec();
    }
}

impl Server {
    async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, stop: CancellationToken) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let spoken = Arc::new(AtomicBool::new(false));
        let (server, said) = (Arc::clone(&self), Arc::clone(&spoken));
        let service = service_fn(move |request| {
            said.store(true, Ordering::Relaxed);
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.dispatch.answer(request, peer).await) }
        });
        let io = TokioIo::new(StallGuard::new(stream, self.write_timeout));
        let connection = self.http.serve_connection(io, service);
        tokio::pin!(connection);
        // The library times the head of a request, but not the octets by which it tells HTTP/1 from HTTP/2.
        let first = tokio::time::sleep(self.header_timeout);
        tokio::pin!(first);
        let (mut stopping, mut waiting) = (false, true);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, %peer, "a connection broke");
                    }
                    return;
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = first.as_mut(), if waiting => {
                    waiting = false;
                    if !spoken.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        }
    }
}
