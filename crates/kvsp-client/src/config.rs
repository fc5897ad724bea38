//! What a client may be told.

use std::sync::Arc;
use std::time::Duration;

use crate::connect::{Connect, TcpConnector};
use crate::policy::{DestinationPolicy, LoopbackOnly};

/// The settings of a [`crate::Client`].
#[derive(Clone)]
pub struct ClientConfig {
    /// Where requests may go. Default: loopback hosts only.
    pub policy: Arc<dyn DestinationPolicy>,
    /// How connections are made; `None`: by TCP, under `policy` and `connect_timeout`.
    pub connector: Option<Arc<dyn Connect>>,
    /// Time to resolve and connect.
    pub connect_timeout: Duration,
    /// Time from sending a request to its whole answer; of a streamed answer, to its head.
    pub timeout: Duration,
    /// Longest silence within an answer.
    pub idle_timeout: Duration,
    /// Octets of a JSON answer.
    pub max_json_octets: u64,
    /// Octets of a container.
    pub max_container_octets: u64,
    /// Layers of a container.
    pub max_layers: u32,
    /// Octets of received blocks whose memory comes from one pool and is used again. Blocks beyond it, at a
    /// time, have memory of their own.
    pub pooled_octets: u64,
    /// Idle connections kept for each peer.
    pub max_idle_connections: usize,
    /// Time after which an idle connection is closed; below what servers wait, so that a request seldom
    /// meets a closing connection.
    pub idle_connection_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            policy: Arc::new(LoopbackOnly),
            connector: None,
            connect_timeout: Duration::from_secs(2),
            timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(10),
            max_json_octets: 64 << 20,
            max_container_octets: 1 << 30,
            max_layers: 4096,
            pooled_octets: 128 << 20,
            max_idle_connections: 32,
            idle_connection_timeout: Duration::from_secs(10),
        }
    }
}

impl ClientConfig {
    pub(crate) fn connector(&self) -> Arc<dyn Connect> {
        self.connector
            .clone()
            .unwrap_or_else(|| Arc::new(TcpConnector::new(Arc::clone(&self.policy), self.connect_timeout)))
    }
}

impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig")
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("max_json_octets", &self.max_json_octets)
            .field("max_container_octets", &self.max_container_octets)
            .finish_non_exhaustive()
    }
}
