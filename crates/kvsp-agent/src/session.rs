//! Sessions at the instance (draft section 6.8, profile section 7): what runs here, at which epoch, and what of
//! it may be shown.
//!
//! When a checkpoint is due and when a token may be shown is decided by [`kvsp_core::session::Output`]. A task
//! for each session ([`driver`]) feeds it with tokens of the engine and answers of the controller; the token
//! streams read from it.

mod acquire;
mod driver;
mod routes;
mod start;
mod stored;
mod stream;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvsp_core::session::{Finish, Output};
use kvsp_core::time::Time;
use kvsp_engine::Sampler;
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::MapId;
use kvsp_proto::record::SamplerState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::engine::Pace;
use crate::group::LeadOrder;

pub(crate) use routes::{end, prompt, resume, tokens};
pub(crate) use start::{SessionHeaders, start};
pub(crate) use table::{Sessions, keep};

/// What does not change while a session runs here.
pub(crate) struct Facts {
    pub(crate) id: Uuid,
    pub(crate) epoch: u64,
    /// The controller brought it, with a checkpoint.
    pub(crate) resumed: bool,
    pub(crate) scope: Arc<ScopeKey>,
    /// The principal that placed it, where that is known: a resumed session is brought by the controller.
    pub(crate) owner: Option<String>,
    /// Keys of the complete blocks of the prompt.
    pub(crate) prompt_blocks: Vec<BlockKey>,
    /// Prompt tokens after them.
    pub(crate) prompt_tail: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) sampler: Sampler,
    /// The sampler's step at output index 0.
    pub(crate) first_step: u64,
    pub(crate) deterministic: bool,
    /// Most output tokens.
    pub(crate) max_tokens: usize,
    /// The map over which its context is split; none: it is all in this engine.
    pub(crate) map: Option<MapId>,
}

impl Facts {
    /// The sampler's state after `offset` output tokens.
    fn sampler_at(&self, offset: u64) -> SamplerState {
        SamplerState {
            method: self.sampler.method(),
            params: self.sampler.params_json(),
            seed: self.sampler.seed(),
            step: self.first_step.wrapping_add(offset),
            deterministic: self.deterministic,
        }
    }
}

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Computing, or about to.
    Running,
    /// Waiting, since then, for the tokens of its prompt.
    NeedsPrompt(Time),
    /// All of it is released.
    Finished(Time),
    /// Another instance has it, or it has ended elsewhere.
    Fenced(Time),
    /// It cannot go on here.
    Failed(Time),
}

impl Phase {
    /// When it ended here.
    const fn ended(self) -> Option<Time> {
        match self {
            Self::Running | Self::NeedsPrompt(_) => None,
            Self::Finished(at) | Self::Fenced(at) | Self::Failed(at) => Some(at),
        }
    }
}

struct State {
    output: Output,
    phase: Phase,
    /// Prompt tokens whose KV was reused.
    reused: u64,
    /// The prompt as the front end supplied it.
    prompt: Option<Vec<u32>>,
    /// The engine has taken it.
    in_engine: bool,
}

/// A session at one epoch.
pub(crate) struct Session {
    pub(crate) facts: Facts,
    state: Mutex<State>,
    /// Tells of everything that a token stream, or who waits for the prompt, may want to see.
    changed: watch::Sender<()>,
    /// Ends the task that drives it, and with it the request in the engine.
    cancel: CancellationToken,
    pace: Arc<Pace>,
    /// Times that the engine lost blocks that it cannot compute.
    lost: AtomicU64,
}

/// What a stream sees next.
pub(crate) struct Seen {
    /// Released tokens from the index asked for on.
    tokens: Vec<u32>,
    /// Prompt tokens whose KV was reused, once there are tokens.
    reused: u64,
    next: Next,
}

/// What follows the tokens seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// More may come.
    More,
    /// More may come once the prompt is supplied.
    Prompt,
    /// Nothing: it is complete.
    Done(Finish),
    /// Nothing: it has ended here.
    Broken,
}

impl Session {
    pub(crate) fn new(facts: Facts, output: Output) -> Self {
        let pace = Arc::new(Pace::new(output.may_compute_to()));
        Self {
            facts,
            state: Mutex::new(State {
                output,
                phase: Phase::Running,
                reused: 0,
                prompt: None,
                in_engine: false,
            }),
            changed: watch::Sender::new(()),
            cancel: CancellationToken::new(),
            pace,
            lost: AtomicU64::new(0),
        }
    }

    /// How its split context is led; none where it has no such. `fresh`: nobody can hold anything of it yet.
    fn lead_order(&self, fresh: bool) -> Option<LeadOrder> {
        let Facts { id, epoch, scope, map, .. } = &self.facts;
        let map = map.clone()?;
        Some(LeadOrder { map, scope: scope.scope_id(), epoch: *epoch, session: Some(*id), fresh })
    }

    pub(crate) fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    fn with<R>(&self, run: impl FnOnce(&mut State) -> R) -> R {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn phase(&self) -> Phase {
        self.with(|state| state.phase)
    }

    /// Go over to a phase; the first end stays.
    fn enter(&self, phase: Phase) {
        self.with(|state| {
            if state.phase.ended().is_none() {
                state.phase = phase;
            }
        });
        self.changed.send_replace(());
    }

    /// End it here in that phase.
    fn stop(&self, phase: Phase) {
        self.enter(phase);
        self.cancel.cancel();
    }

    /// What there is from `from` on.
    fn read(&self, from: u64) -> Seen {
        self.with(|state| {
            let released = usize::try_from(state.output.released()).unwrap_or(usize::MAX);
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let tokens = state.output.tokens();
            let tokens = tokens.get(from..released.min(tokens.len())).unwrap_or_default().to_vec();
            let next = match (state.phase, state.output.finished()) {
                (Phase::Fenced(_) | Phase::Failed(_), _) | (Phase::Finished(_), None) => Next::Broken,
                (_, Some(finish)) => Next::Done(finish),
                (Phase::Running, None) => Next::More,
                (Phase::NeedsPrompt(_), None) => Next::Prompt,
            };
            Seen { tokens, reused: state.reused, next }
        })
    }

    /// Whether the engine has taken it, and so has what it needs.
    fn is_in_engine(&self) -> bool {
        self.with(|state| state.in_engine)
    }

    /// Tell that the engine has taken it, or has given it back.
    fn set_in_engine(&self, in_engine: bool) {
        self.with(|state| state.in_engine = in_engine);
        self.changed.send_replace(());
    }

    /// The prompt, where it was supplied.
    fn prompt(&self) -> Option<Vec<u32>> {
        self.with(|state| state.prompt.clone())
    }

    /// Take the prompt; one is as good as another, because each was verified.
    fn supply(&self, prompt: Vec<u32>) {
        self.with(|state| {
            state.prompt.get_or_insert(prompt);
            if matches!(state.phase, Phase::NeedsPrompt(_)) {
                state.phase = Phase::Running;
            }
        });
        self.changed.send_replace(());
    }
}

/// What sessions did, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct SessionCounters {
    /// Sessions begun by a request.
    pub(crate) started: AtomicU64,
    /// Sessions taken over from another instance.
    pub(crate) resumed: AtomicU64,
    /// Times that a session had to ask for its prompt.
    pub(crate) prompts_needed: AtomicU64,
    /// Sessions that went to another epoch.
    pub(crate) fenced: AtomicU64,
    /// Checkpoints sent, retries among them.
    pub(crate) checkpoints: AtomicU64,
    /// Checkpoints that were not acknowledged.
    pub(crate) checkpoints_failed: AtomicU64,
    /// First checkpoints sent although blocks of the prompt were in this process alone.
    pub(crate) blocks_not_stored: AtomicU64,
}

impl SessionCounters {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
