//! The instance agent: an inference engine as a KVSP instance and holder.
//!
//! The engine runs on a thread of its own; everything that waits for the network runs beside
//! it. A request's prompt is matched against the engine's pages and the host tier by block key; a prefetch
//! directive brings blocks in from other holders, layer by layer, while the engine computes; and every
//! block that the engine completes becomes a replica that others can find.

mod completions;
mod config;
mod copies;
mod engine;
mod events;
mod generation;
mod group;
mod lifecycle;
mod links;
mod load;
mod metrics;
mod prefetch;
mod service;
mod session;
mod state;
mod status;

use std::sync::Arc;

use kvsp_blocks::BlockService;
use kvsp_client::Client;
use kvsp_engine::Tokenizer;
use kvsp_net::clock::Clock;
use kvsp_net::random::Random;
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::uri::BaseUri;
use tokio_util::task::TaskTracker;

pub use config::AgentConfig;
pub use engine::{BuildError, EngineDiffers, EngineSource};
pub use service::{AgentParts, serve};

/// What the parts of an instance share.
pub(crate) struct Agent {
    config: AgentConfig,
    base: BaseUri,
    /// Start time in ms since the Unix epoch, or above what the controller remembers.
    epoch: u64,
    served_name: String,
    descriptor: Arc<Descriptor>,
    engine: engine::EngineHandle,
    blocks: Arc<BlockService>,
    tokenizer: Arc<dyn Tokenizer>,
    scopes: Vec<Arc<ScopeKey>>,
    client: Client,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    lifecycle: lifecycle::Lifecycle,
    links: links::Links,
    directives: prefetch::Directives,
    coming: load::Coming,
    load_counters: load::LoadCounters,
    status_seq: status::StatusSeq,
    resident: events::Resident,
    /// Copies of computed blocks in a holder; none where no holder is configured.
    copies: Option<Arc<copies::Copies>>,
    sessions: session::Sessions,
    /// Contexts that are split over instances.
    group: group::Group,
    tasks: TaskTracker,
}

impl Agent {
    /// Most tokens of a sequence, prompt and output together.
    fn context(&self) -> usize {
        let info = self.engine.info();
        info.max_context.min(info.pages.saturating_mul(info.descriptor.block_tokens as usize))
    }

    fn host_holds(&self, block: &engine::ScopedKey) -> bool {
        self.blocks.contains(self.descriptor.compat_id(), block.scope, block.key)
    }
}
