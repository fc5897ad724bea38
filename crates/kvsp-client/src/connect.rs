//! How connections are made: by TCP under a policy, or by whatever is injected (a simulated network).

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::policy::{Denied, DestinationPolicy};

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connected stream of octets.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The policy forbids every address of the host, or one of them.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The network refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Makes connections.
pub trait Connect: Send + Sync + 'static {
    /// A connection to a host, a name or a literal address without brackets, and port.
    fn connect(&self, host: String, port: u16) -> BoxFuture<Result<Box<dyn Stream>, ConnectError>>;
}

/// Connects by TCP: resolves, has every address checked, and connects to one of those that were checked.
#[derive(Clone)]
pub struct TcpConnector {
    policy: Arc<dyn DestinationPolicy>,
    timeout: Duration,
}

impl TcpConnector {
    /// A connector that takes at most `timeout` to resolve and connect.
    #[must_use]
    pub fn new(policy: Arc<dyn DestinationPolicy>, timeout: Duration) -> Self {
        Self { policy, timeout }
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
        let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![(address, port).into()],
            Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
        };
        // One forbidden address among good ones is how a name is rebound: all or none.
        for address in &addresses {
            self.policy.allow_address(host, address.ip())?;
        }
        Ok(addresses)
    }

    async fn open(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.resolve(host, port).await? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}

impl Connect for TcpConnector {
    fn connect(&self, host: String, port: u16) -> BoxFuture<Result<Box<dyn Stream>, ConnectError>> {
        let this = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(this.timeout, this.open(&host, port)).await {
                Ok(opened) => opened.map(|stream| Box::new(stream) as Box<dyn Stream>),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time").into()),
            }
        })
    }
}
