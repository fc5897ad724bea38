//! What a listener may be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use kvsp_proto::uri::BaseUri;
use serde::Deserialize;

use crate::inbound::InboundLimits;

/// The settings of a service's listeners. Every limit protects against a peer that is slow or greedy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceConfig {
    /// Address of the protocol; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Address of `/livez`, `/readyz` and `/metrics`.
    pub admin_listen: SocketAddr,
    /// Path of the base URI, with slashes at both ends.
    pub base_path: String,
    /// The base URI that peers use, where it is not that of the address bound.
    pub advertise: Option<BaseUri>,
    /// Allows other addresses than loopback without credentials.
    pub insecure: bool,
    /// Connections served at a time, by each listener.
    pub max_connections: usize,
    /// ms that a connection waits for room before it is closed.
    pub max_connection_wait_ms: u64,
    /// ms for the head of a request to arrive; an idle connection is closed after as long.
    pub header_timeout_ms: u64,
    /// Octets of the head of a request.
    pub max_header_octets: usize,
    /// Header fields of a request.
    pub max_headers: usize,
    /// Concurrent requests of an HTTP/2 connection.
    pub max_streams: u32,
    /// ms of silence after which a body is given up.
    pub body_idle_timeout_ms: u64,
    /// ms for a whole body.
    pub body_timeout_ms: u64,
    /// ms for which a peer may leave an answer unread.
    pub write_timeout_ms: u64,
    /// ms for which an unwanted body is read so that the answer is not lost.
    pub linger_timeout_ms: u64,
    /// Octets of an unwanted body that are read so that the answer is not lost.
    pub linger_octets: u64,
    /// ms for requests in flight to finish after a stop.
    pub drain_timeout_ms: u64,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            admin_listen: (Ipv4Addr::LOCALHOST, 0).into(),
            base_path: "/kvsp/".to_owned(),
            advertise: None,
            insecure: false,
            max_connections: 1024,
            max_connection_wait_ms: 1000,
            header_timeout_ms: 30_000,
            max_header_octets: 64 << 10,
            max_headers: 100,
            max_streams: 200,
            body_idle_timeout_ms: 15_000,
            body_timeout_ms: 300_000,
            write_timeout_ms: 30_000,
            linger_timeout_ms: 5_000,
            linger_octets: 1 << 30,
            drain_timeout_ms: 10_000,
        }
    }
}

impl ServiceConfig {
    pub(super) const fn inbound(&self) -> InboundLimits {
        InboundLimits {
            idle: Duration::from_millis(self.body_idle_timeout_ms),
            total: Duration::from_millis(self.body_timeout_ms),
            linger: Duration::from_millis(self.linger_timeout_ms),
            linger_octets: self.linger_octets,
        }
    }
}
