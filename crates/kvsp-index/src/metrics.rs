//! What the Index Service counts.

use kvsp_net::metrics::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The metrics of one Index Service.
#[derive(Debug)]
pub(crate) struct IndexMetrics {
    pub(crate) replicas: Gauge,
    pub(crate) lookups: Counter,
    pub(crate) looked_up: Counter,
    pub(crate) matched: Counter,
    pub(crate) expired: Counter,
    pub(crate) subscribers: Gauge,
    pub(crate) snapshots: Counter,
    pub(crate) snapshot_failures: Counter,
}

impl IndexMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            replicas: metrics.gauge("index_replicas", "Replica records held"),
            lookups: metrics.counter("index_lookups", "Lookups answered"),
            looked_up: metrics.counter("index_lookup_keys", "Keys looked up"),
            matched: metrics.counter("index_matched_keys", "Keys matched by lookups"),
            expired: metrics.counter("index_expired_replicas", "Replica records that expired"),
            subscribers: metrics.gauge("index_subscribers", "Followers of the feed of changes"),
            snapshots: metrics.counter("index_snapshots", "Snapshots written"),
            snapshot_failures: metrics
                .counter("index_snapshot_failures", "Snapshots that could not be written or read"),
        }
    }
}
