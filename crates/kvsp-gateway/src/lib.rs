//! An OpenAI-compatible gateway that places requests by KVSP.
//!
//! A request is tokenised here, its block keys are computed with the scope key (which neither the index nor
//! the controller ever sees), the controller names an instance and prefetches into it, and the request goes
//! there as token identifiers. The answer comes back in the form that the client asked for.
//!
//! With a scope key an answer is a session (draft section 6.8): it outlives the instance that gives it, the
//! connection of the client that reads it, and the gateway.

mod answer;
mod chat;
mod completions;
mod config;
mod error;
mod form;
mod models;
mod open;
mod prompt;
mod service;
mod session;
mod streams;
mod upstream;

use std::sync::Arc;

use kvsp_client::Client;
use kvsp_engine::Tokenizer;
use kvsp_net::random::Random;
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::id::CompatId;
use kvsp_proto::uri::BaseUri;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::GatewayConfig;
pub use service::{GatewayModel, GatewayParts, serve};

/// What the handlers share.
pub(crate) struct Gateway {
    config: GatewayConfig,
    controller: BaseUri,
    served_name: String,
    compat: CompatId,
    block_tokens: u32,
    max_context: usize,
    tokenizer: Arc<dyn Tokenizer>,
    scope: Option<Arc<ScopeKey>>,
    client: Client,
    random: Arc<dyn Random>,
    started_s: u64,
    counters: service::Counters,
    registry: session::Registry,
    polls: session::Polls,
    /// What runs beside requests.
    tasks: TaskTracker,
    /// The gateway stops: what runs beside requests ends.
    stop: CancellationToken,
}
