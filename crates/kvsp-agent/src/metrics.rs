//! The instance's own metrics, read from its gauges at every scrape.

use std::sync::{Arc, Weak};

use kvsp_net::metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Agent;
use crate::engine::Gauges;

/// Register the metrics of an instance.
pub(crate) fn register(metrics: &Metrics, agent: &Arc<Agent>) {
    metrics.collect(Box::new(Figures(Arc::downgrade(agent))));
}

struct Figures(Weak<Agent>);

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(agent) = self.0.upgrade() else { return Ok(()) };
        let gauges = agent.engine.gauges();
        let loads = &agent.load_counters;
        let sessions = &agent.sessions.counters;
        let read = Gauges::read;
        let counters = [
            (
                "instance_prompt_tokens_computed",
                "Prompt tokens computed",
                read(&gauges.prompt_tokens_computed),
            ),
            (
                "instance_prompt_tokens_reused",
                "Prompt tokens whose KV was reused",
                read(&gauges.prompt_tokens_reused),
            ),
            (
                "instance_output_tokens_recomputed",
                "Output tokens of resumed sessions computed once more",
                read(&gauges.output_tokens_recomputed),
            ),
            ("instance_tokens_generated", "Output tokens", read(&gauges.tokens_generated)),
            ("instance_preemptions", "Sequences that gave up their pages", read(&gauges.preemptions)),
            (
                "instance_prefixes_broken",
                "Prefixes that failed to arrive and were recomputed",
                read(&gauges.prefixes_broken),
            ),
            ("sessions_started", "Sessions begun by a request", read(&sessions.started)),
            ("sessions_resumed", "Sessions taken over from another instance", read(&sessions.resumed)),
            (
                "session_prompts_needed",
                "Times that a session asked for its prompt",
                read(&sessions.prompts_needed),
            ),
            ("sessions_fenced", "Sessions given up to another epoch", read(&sessions.fenced)),
            ("session_checkpoints", "Checkpoints sent", read(&sessions.checkpoints)),
            (
                "session_checkpoints_failed",
                "Checkpoints that were not acknowledged",
                read(&sessions.checkpoints_failed),
            ),
            (
                "session_blocks_not_stored",
                "First checkpoints whose blocks were in this process alone",
                read(&sessions.blocks_not_stored),
            ),
            ("prefetch_octets_fetched", "Octets of layers fetched from sources", read(&loads.octets_fetched)),
            (
                "prefetch_octets_verified",
                "Octets of sections that passed their layer digest",
                read(&loads.octets_verified),
            ),
            ("prefetch_blocks_loaded", "Blocks loaded by directives", read(&loads.blocks_loaded)),
            (
                "prefetch_digest_mismatches",
                "Blocks discarded because a layer digest differed",
                read(&loads.digest_mismatches),
            ),
            ("prefetch_sources_failed", "Sources given up for a block", read(&loads.sources_failed)),
            ("prefetch_directives_complete", "Directives that loaded all", read(&loads.complete)),
            ("prefetch_directives_partial", "Directives that loaded some", read(&loads.partial)),
            ("prefetch_directives_failed", "Directives that loaded none", read(&loads.failed)),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        let figures = [
            ("instance_running", "Requests running", read(&gauges.running) as f64),
            ("instance_sessions", "Sessions that are not over", agent.sessions.open_count() as f64),
            ("instance_queued", "Requests waiting", agent.engine.queued() as f64),
            (
                "context_tokens_reserved",
                "Tokens of split contexts for which memory is kept",
                read(&gauges.context_tokens_reserved) as f64,
            ),
            (
                "context_tokens_held",
                "Tokens of split contexts whose keys and values are here",
                read(&gauges.context_tokens_held) as f64,
            ),
            ("instance_kv_utilization", "Share of the page pool in use", gauges.kv_utilization()),
            ("instance_prefill_tokens_per_second", "Prefill rate", gauges.prefill_tokens_per_s.get()),
            ("instance_decode_tokens_per_second", "Decode rate", gauges.decode_tokens_per_s.get()),
        ];
        for (name, help, value) in figures {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }
}
