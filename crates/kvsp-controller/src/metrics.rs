//! What the Placement Controller counts.

mod maps;
mod sessions;

use kvsp_core::instances::Instances;
use kvsp_net::metrics::Metrics;
use kvsp_proto::record::InstanceState;
use prometheus_client::encoding::{EncodeLabel as _, EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

pub(crate) use maps::MapMetrics;
pub(crate) use sessions::SessionMetrics;

/// How a placement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// Placed, with a directive that the instance took.
    Prefetched,
    /// Placed, with a directive that the instance did not take.
    PrefetchFailed,
    /// Placed; nothing was to be loaded.
    Placed,
    /// Placed without the index.
    Blind,
    /// No active instance.
    NoCapacity,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Prefetched => "prefetched",
            Self::PrefetchFailed => "prefetch-failed",
            Self::Placed => "placed",
            Self::Blind => "blind",
            Self::NoCapacity => "no-capacity",
        }
    }
}

/// What came of waking an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wake {
    /// It is active.
    Awake,
    /// It took up another state, or may not be told.
    Refused,
    /// It did not answer.
    Unreachable,
}

/// A step in the start of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    /// The hook runs.
    Begun,
    /// It failed.
    Failed,
    /// The instance has reported.
    Reported,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Label(&'static str, &'static str);

impl EncodeLabelSet for Label {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        (self.0, self.1).encode(encoder.encode_label())
    }
}

/// The metrics of one Placement Controller.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    placements: Family<Label, Counter>,
    instances: Family<Label, Gauge>,
    wakes: Family<Label, Counter>,
    starts: Family<Label, Counter>,
    pub(crate) sessions: SessionMetrics,
    pub(crate) maps: MapMetrics,
}

impl ControllerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let own = Self {
            placements: Family::default(),
            instances: Family::default(),
            wakes: Family::default(),
            starts: Family::default(),
            sessions: SessionMetrics::new(metrics),
            maps: MapMetrics::new(metrics),
        };
        metrics.register("controller_placements", "Placements by outcome", own.placements.clone());
        metrics.register("controller_instances", "Instances by state", own.instances.clone());
        metrics.register("controller_wakes", "Instances woken for placements, by outcome", own.wakes.clone());
        metrics.register("controller_starts", "Steps of instances that were started", own.starts.clone());
        own
    }

    pub(crate) fn woken(&self, outcome: Wake) {
        let outcome = match outcome {
            Wake::Awake => "awake",
            Wake::Refused => "refused",
            Wake::Unreachable => "unreachable",
        };
        self.wakes.get_or_create(&Label("outcome", outcome)).inc();
    }

    pub(crate) fn started(&self, step: Start) {
        let step = match step {
            Start::Begun => "begun",
            Start::Failed => "failed",
            Start::Reported => "reported",
        };
        self.starts.get_or_create(&Label("step", step)).inc();
    }

    pub(crate) fn placed(&self, outcome: Outcome) {
        self.placements.get_or_create(&Label("outcome", outcome.as_str())).inc();
    }

    pub(crate) fn count(&self, instances: &Instances) {
        use InstanceState::{Active, Draining, Failed, Sleeping};
        for state in [Active, Draining, Sleeping, Failed] {
            let count = i64::try_from(instances.count(state)).unwrap_or(i64::MAX);
            self.instances.get_or_create(&Label("state", state.as_str())).set(count);
        }
    }
}
