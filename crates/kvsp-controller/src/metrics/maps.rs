//! What is counted of shard maps.

use kvsp_core::reshard::Answer;
use kvsp_net::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::Label;

/// Something that a member was told, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Told {
    what: &'static str,
    outcome: &'static str,
}

/// The metrics of the shard maps of one Placement Controller.
#[derive(Debug)]
pub(crate) struct MapMetrics {
    maps: Family<Label, Gauge>,
    reshards: Family<Label, Counter>,
    told: Family<Told, Counter>,
}

impl MapMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let own = Self { maps: Family::default(), reshards: Family::default(), told: Family::default() };
        metrics.register("controller_maps", "Shard maps by state", own.maps.clone());
        metrics.register("controller_reshards", "Changes of shard maps by outcome", own.reshards.clone());
        metrics.register(
            "controller_reshard_messages",
            "Plans, commits and aborts sent to members by outcome",
            own.told.clone(),
        );
        own
    }

    /// How many maps are in a state.
    pub(crate) fn count(&self, state: &'static str, maps: usize) {
        let maps = i64::try_from(maps).unwrap_or(i64::MAX);
        self.maps.get_or_create(&Label("state", state)).set(maps);
    }

    /// A change of a map was decided.
    pub(crate) fn decided(&self, outcome: &'static str) {
        self.reshards.get_or_create(&Label("outcome", outcome)).inc();
    }

    /// What became of something that a member was told.
    pub(crate) fn told(&self, what: &'static str, answer: Answer) {
        let outcome = match answer {
            Answer::Ok => "taken",
            Answer::Refused(_) => "refused",
            Answer::Unreachable => "unreachable",
        };
        self.told.get_or_create(&Told { what, outcome }).inc();
    }
}
