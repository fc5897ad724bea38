//! What moved and what did not.

use kvsp_net::metrics::Metrics;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Direction(&'static str);

impl EncodeLabelSet for Direction {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeLabel as _;
        ("direction", self.0).encode(encoder.encode_label())
    }
}

/// The counters of a member.
#[derive(Debug)]
pub(in crate::group) struct Counters {
    /// Octets of K and V loaded for plans.
    pub(in crate::group) fetched: Counter,
    /// Octets of K and V that leaders stored here.
    pub(in crate::group) stored: Counter,
    /// Octets of K and V given to others.
    pub(in crate::group) served: Counter,
    /// Tokens that stayed in place in plans that were acknowledged.
    pub(in crate::group) retained_tokens: Counter,
}

impl Counters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let octets = Family::<Direction, Counter>::default();
        let of = |direction| octets.get_or_create(&Direction(direction)).clone();
        let (fetched, stored, served) = (of("fetched"), of("stored"), of("served"));
        metrics.register("reshard_octets", "Octets of keys and values of split contexts that moved", octets);
        let retained = "Tokens that stayed in place when a map changed";
        Self {
            fetched,
            stored,
            served,
            retained_tokens: metrics.counter("reshard_retained_tokens", retained),
        }
    }
}
