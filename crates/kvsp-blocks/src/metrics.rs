//! What a holder counts.

use kvsp_net::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

/// Metrics named `kvsp_<role>_*`, so that the services of one process are told apart.
#[derive(Debug)]
pub(crate) struct BlockMetrics {
    pub(crate) blocks: Gauge,
    octets: Family<TierLabel, Gauge>,
    pub(crate) leases: Gauge,
    pub(crate) leased_octets: Gauge,
    pub(crate) gets: Counter,
    pub(crate) misses: Counter,
    pub(crate) puts: Counter,
    pub(crate) evictions: Counter,
    pub(crate) demotions: Counter,
    pub(crate) promotions: Counter,
    pub(crate) trims: Counter,
    pub(crate) copies: Counter,
    pub(crate) refused: Counter,
    pub(crate) quarantined: Counter,
    pub(crate) scrubbed: Counter,
    pub(crate) scrub_rounds: Counter,
    pub(crate) transcodes: Counter,
    pub(crate) transcode_hits: Counter,
    pub(crate) buffers: Gauge,
    pub(crate) disk_only: Gauge,
    pub(crate) publish_failures: Counter,
}

impl BlockMetrics {
    pub(crate) fn new(metrics: &Metrics, role: &str) -> Self {
        let octets = Family::default();
        metrics.register(&format!("{role}_octets"), "Octets used in a tier", octets.clone());
        let gauge = |name: &str, help: &str| metrics.gauge(&format!("{role}_{name}"), help);
        let counter = |name: &str, help: &str| metrics.counter(&format!("{role}_{name}"), help);
        Self {
            blocks: gauge("blocks", "Blocks held"),
            octets,
            leases: gauge("leases", "Leases granted and not ended"),
            leased_octets: gauge("leased_octets", "Octets of distinct blocks under lease"),
            gets: counter("block_gets", "Blocks served"),
            misses: counter("block_misses", "Requests for blocks or layers that are not held"),
            puts: counter("block_puts", "Blocks stored"),
            evictions: counter("evictions", "Blocks evicted"),
            demotions: counter("demotions", "Times that a block lost layers in a tier and stayed in another"),
            promotions: counter("promotions", "Times that layers of a block came back to a faster tier"),
            trims: counter("trims", "Times that a tier kept the leading layers of a block only"),
            copies: counter("copies", "Cold blocks copied from disk to the object store"),
            refused: counter("refused_frees", "Times that a device refused to free octets"),
            quarantined: counter("quarantined", "Blocks lost to rot"),
            scrubbed: counter("scrubbed_octets", "Octets read in the background to verify them"),
            scrub_rounds: counter("scrub_rounds", "Times that every block was verified in the background"),
            transcodes: counter("transcodes", "Representations made in another codec"),
            transcode_hits: counter(
                "transcode_hits",
                "Representations in another codec that were made before",
            ),
            buffers: gauge(
                "buffer_octets",
                "Octets of memory of blocks that are held, coming in or being sent",
            ),
            disk_only: gauge("disk_only_octets", "Octets on disk of blocks that no other tier has whole"),
            publish_failures: counter("publish_failures", "Records that the index did not take"),
        }
    }

    pub(crate) fn set_octets(&self, tier: &'static str, octets: u64) {
        self.octets.get_or_create(&TierLabel { tier }).set(i64::try_from(octets).unwrap_or(i64::MAX));
    }
}
