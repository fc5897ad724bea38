//! Counters, gauges and histograms named `kvsp_*`, in the text format of OpenMetrics.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::Method;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

/// Media type of the exposition.
pub const MEDIA_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A registry of metrics; clones share it. The services of one process may share one too: their requests
/// are told apart by the label `role`.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    connections: Gauge,
    refused: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RequestLabels {
    role: &'static str,
    method: &'static str,
    status: u16,
}

impl EncodeLabelSet for RequestLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeLabel as _;
        ("role", self.role).encode(encoder.encode_label())?;
        ("method", self.method).encode(encoder.encode_label())?;
        ("status", u64::from(self.status)).encode(encoder.encode_label())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DurationLabels {
    role: &'static str,
    method: &'static str,
}

impl EncodeLabelSet for DurationLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeLabel as _;
        ("role", self.role).encode(encoder.encode_label())?;
        ("method", self.method).encode(encoder.encode_label())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry with the metrics of the listener.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix("kvsp"))),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 4.0, 10))),
            connections: Gauge::default(),
            refused: Counter::default(),
        };
        metrics.register("requests", "Requests answered", metrics.requests.clone());
        metrics.register("request_seconds", "Time to the head of the answer", metrics.durations.clone());
        metrics.register("connections", "Connections open", metrics.connections.clone());
        metrics.register(
            "connections_refused",
            "Connections closed for want of room",
            metrics.refused.clone(),
        );
        metrics
    }

    /// Registers a metric as `kvsp_<name>` (a counter as `kvsp_<name>_total`).
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.lock().register(name, help, metric);
    }

    /// A registered counter.
    #[must_use]
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.register(name, help, counter.clone());
        counter
    }

    /// Figures that are kept elsewhere and read at every scrape.
    pub fn collect(&self, collector: Box<dyn Collector>) {
        self.lock().register_collector(collector);
    }

    /// A registered gauge.
    #[must_use]
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.register(name, help, gauge.clone());
        gauge
    }

    /// A registered histogram of seconds, with buckets from 0.1 ms to 26 s.
    #[must_use]
    pub fn seconds(&self, name: &str, help: &str) -> Histogram {
        let histogram = Histogram::new(exponential_buckets(0.0001, 4.0, 10));
        self.register(name, help, histogram.clone());
        histogram
    }

    /// All metrics in the text format of OpenMetrics.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.lock()).is_err() {
            // Only a metric whose own encoding fails comes here; what was written before it stands.
            let _ = writeln!(text, "# EOF");
        }
        text
    }

    /// The metrics of the requests of one role.
    pub(crate) fn of_role(&self, role: &'static str) -> RoleMetrics {
        RoleMetrics { metrics: self.clone(), role, kept: Default::default() }
    }

    pub(crate) const fn connections(&self) -> &Gauge {
        &self.connections
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.inc();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A closed set: a peer that invents methods must not invent time series.
const METHODS: [(Option<Method>, &str); 7] = [
    (Some(Method::GET), "GET"),
    (Some(Method::HEAD), "HEAD"),
    (Some(Method::PUT), "PUT"),
    (Some(Method::POST), "POST"),
    (Some(Method::DELETE), "DELETE"),
    (Some(Method::PATCH), "PATCH"),
    (None, "other"),
];

/// The usual statuses, whose counters are kept at hand.
const STATUSES: [u16; 6] = [200, 201, 204, 304, 404, 412];

/// The metrics of the requests of one role: looked up by their labels once, not with every request.
#[derive(Debug)]
pub(crate) struct RoleMetrics {
    metrics: Metrics,
    role: &'static str,
    kept: [OfMethod; METHODS.len()],
}

#[derive(Debug, Default)]
struct OfMethod {
    durations: OnceLock<Histogram>,
    requests: [OnceLock<Counter>; STATUSES.len()],
}

impl RoleMetrics {
    /// A request was answered.
    pub(crate) fn answered(&self, method: &Method, status: u16, took: Duration) {
        let place = METHODS.iter().position(|(known, _)| known.as_ref() == Some(method));
        let place = place.unwrap_or(METHODS.len() - 1);
        let (role, method) = (self.role, METHODS[place].1);
        let kept = &self.kept[place];
        let find = || self.metrics.requests.get_or_create(&RequestLabels { role, method, status }).clone();
        match STATUSES.iter().position(|usual| *usual == status) {
            Some(usual) => kept.requests[usual].get_or_init(find).inc(),
            None => find().inc(),
        };
        let find = || self.metrics.durations.get_or_create(&DurationLabels { role, method }).clone();
        kept.durations.get_or_init(find).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_named_and_labelled() {
        let metrics = Metrics::new();
        metrics.counter("evictions", "Blocks evicted").inc_by(3);
        let of_role = metrics.of_role("index");
        of_role.answered(&Method::GET, 200, Duration::from_millis(1));
        of_role.answered(&Method::from_bytes(b"BREW").unwrap(), 405, Duration::from_millis(1));
        let text = metrics.encode();
        assert!(text.contains("kvsp_evictions_total 3"), "{text}");
        assert!(text.contains(r#"kvsp_requests_total{role="index",method="GET",status="200"} 1"#), "{text}");
        assert!(text.contains(r#"method="other",status="405""#), "{text}");
        assert!(text.contains("kvsp_request_seconds_bucket"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
