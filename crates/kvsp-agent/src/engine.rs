//! The engine thread and the handle by which the rest of the agent talks to it.
//!
//! One thread owns the engine and its pages. Everything else sends commands and receives outputs and
//! events over bounded channels, so no request, fetch or status report ever touches the arithmetic.

mod contexts;
mod gauges;
mod pages;
mod request;
mod scheduler;
mod sequence;
mod start;

use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use kvsp_core::time::Time;
use kvsp_engine::{Engine, EngineInfo};
use kvsp_net::clock::Clock;
use kvsp_openai::FinishReason;
use kvsp_proto::container::LayerSections;
use kvsp_proto::id::{BlockKey, ScopeId};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use contexts::{Advanced, ContextError, PassId, SectionsError, VerifiedSections};
pub(crate) use gauges::Gauges;
pub(crate) use pages::{DeviceChange, ScopedKey, Slot};
pub(crate) use request::{EngineRequest, Pace, PromptTokens};
use scheduler::Scheduler;
pub use start::{BuildError, EngineDiffers, EngineSource};
use start::{Early, Opener};

/// Commands that may wait for the engine thread.
const COMMAND_QUEUE: usize = 1024;
/// Events that may wait for the agent.
const EVENT_QUEUE: usize = 256;

/// How the engine thread schedules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchedulerConfig {
    /// Most sequences that run at once.
    pub(crate) max_running: usize,
    /// Most sequences that wait.
    pub(crate) max_queued: usize,
    /// Prompt tokens of one prefill pass.
    pub(crate) chunk_tokens: usize,
}

/// What asks for blocks in the host tier; called from the engine thread, so it must not block.
pub(crate) trait HostTier: Send + Sync + 'static {
    /// Whether the host tier has the whole block.
    fn holds(&self, block: &ScopedKey) -> bool;

    /// Whether a load is bringing the block there.
    fn expects(&self, _block: &ScopedKey) -> bool {
        false
    }
}

/// What a request gets back, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// The prompt is computed; first of all.
    Started {
        /// Prompt tokens whose KV was reused.
        reused: usize,
    },
    /// One output token.
    Token(u32),
    /// The output ended.
    Finished(FinishReason),
    /// Blocks of the prompt that are known by their keys alone are gone; nothing follows.
    NeedsPrompt,
    /// The engine failed.
    Failed(String),
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// The queue is full.
    #[error("the queue of requests is full")]
    QueueFull,
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// What the pool says of a block that is to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// It is there.
    Resident,
    /// Somebody else is loading it.
    Arriving,
    /// Its layers go into this slot.
    Slot(Slot),
    /// The pool has no page for it now.
    NoRoom,
}

/// Pages kept for a request that is on its way.
#[derive(Debug, Clone)]
pub(crate) struct Pin {
    pub(crate) request_ref: String,
    pub(crate) until: Time,
}

/// What the engine thread tells the agent.
#[derive(Debug)]
pub(crate) enum EngineEvent {
    /// A block was computed; `container` is codec `raw`, and `wanted` that something relies on its copy
    /// outside the process.
    Computed { block: ScopedKey, container: Bytes, wanted: bool },
    /// A block came into or left the pool.
    Device(DeviceChange),
    /// A request needs a block that the host tier holds, or that is on its way there.
    Fill { block: ScopedKey, slot: Slot },
}

pub(crate) enum Command {
    /// A request, where its outputs go, and who hears whether it was taken; nobody where it was taken already,
    /// before the engine was there.
    Submit(EngineRequest, mpsc::Sender<Output>, Option<oneshot::Sender<Result<(), SubmitError>>>),
    Expect {
        scope: ScopeId,
        keys: Vec<BlockKey>,
        pin: Option<Pin>,
        reply: oneshot::Sender<Vec<Expectation>>,
    },
    Write {
        slot: Slot,
        layer: u32,
        sections: LayerSections,
    },
    EndLoad(Slot),
    /// Something about a context that is split over instances.
    Context(Box<contexts::ContextCommand>),
    /// A request that was held may go on.
    Wake,
}

/// Talks to the engine thread; cheap to clone.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    commands: mpsc::Sender<Command>,
    info: Arc<EngineInfo>,
    gauges: Arc<Gauges>,
    max_queued: usize,
    early: Arc<Early>,
    up: watch::Receiver<bool>,
}

/// The engine thread; its error is why there is no engine.
pub(crate) type EngineThread = JoinHandle<Result<(), BuildError>>;

/// The engine thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub(crate) struct EngineStopped;

impl EngineHandle {
    /// Start the engine thread, which builds the engine first. It ends when all handles are gone.
    ///
    /// # Errors
    /// [`std::io::Error`] where no thread can be had.
    pub(crate) fn spawn<E: Engine>(
        source: EngineSource<E>,
        config: SchedulerConfig,
        host: Arc<dyn HostTier>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<(Self, mpsc::Receiver<EngineEvent>, EngineThread)> {
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let (outbox, events) = mpsc::channel(EVENT_QUEUE);
        let (opener, early, up) = Opener::new();
        let info = source.info().clone();
        let gauges = Arc::new(Gauges::default());
        let measured = gauges.clone();
        let runtime = tokio::runtime::Handle::current();
        let thread = std::thread::Builder::new().name("kvsp-engine".into()).spawn(move || {
            let engine = source.run()?;
            Scheduler::new(engine, config, inbox, outbox, host, clock, measured).run(&runtime, &opener);
            Ok(())
        })?;
        let max_queued = config.max_queued;
        Ok((Self { commands, info, gauges, max_queued, early, up }, events, thread))
    }

    pub(crate) fn info(&self) -> &EngineInfo {
        &self.info
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// Whether the engine is there.
    pub(crate) fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Waits for the engine.
    ///
    /// # Errors
    /// [`EngineStopped`] where it never comes.
    pub(crate) async fn until_up(&self) -> Result<(), EngineStopped> {
        self.up.clone().wait_for(|up| *up).await.map(drop).map_err(|_| EngineStopped)
    }

    /// Requests that wait, those for an engine that is not there yet among them.
    pub(crate) fn queued(&self) -> u64 {
        Gauges::read(&self.gauges.queued) + self.early.waiting() as u64
    }

    /// Submit a request; outputs come in order, and dropping the receiver cancels it.
    pub(crate) async fn submit(&self, request: EngineRequest) -> Result<mpsc::Receiver<Output>, SubmitError> {
        let (output, outputs) = mpsc::channel(request.most_outputs());
        let later = self.early.submit(self.max_queued, (request, output), |request, output| {
            self.commands.try_send(Command::Submit(request, output, None)).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SubmitError::QueueFull,
                mpsc::error::TrySendError::Closed(_) => SubmitError::Stopped,
            })
        })?;
        if let Some((request, output)) = later {
            let (reply, answer) = oneshot::channel();
            let command = Command::Submit(request, output, Some(reply));
            self.commands.send(command).await.map_err(|_| SubmitError::Stopped)?;
            answer.await.map_err(|_| SubmitError::Stopped)??;
        }
        Ok(outputs)
    }

    /// Reserve pages for blocks that are about to be loaded, one answer a key. While the engine is not there yet
    /// it has no room for any.
    pub(crate) async fn expect(
        &self,
        scope: ScopeId,
        keys: Vec<BlockKey>,
        pin: Option<Pin>,
    ) -> Result<Vec<Expectation>, EngineStopped> {
        if !self.is_up() {
            return Ok(vec![Expectation::NoRoom; keys.len()]);
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Expect { scope, keys, pin, reply };
        self.commands.send(command).await.map_err(|_| EngineStopped)?;
        answer.await.map_err(|_| EngineStopped)
    }

    /// Hand over the sections (codec `raw`) of the next layer of a slot.
    pub(crate) async fn write(
        &self,
        slot: Slot,
        layer: u32,
        sections: LayerSections,
    ) -> Result<(), EngineStopped> {
        self.commands.send(Command::Write { slot, layer, sections }).await.map_err(|_| EngineStopped)
    }

    /// Loading of a slot is over, with all layers or without.
    pub(crate) async fn end_load(&self, slot: Slot) -> Result<(), EngineStopped> {
        self.commands.send(Command::EndLoad(slot)).await.map_err(|_| EngineStopped)
    }

    /// Let a request that was held go on: its [`Pace`] was raised.
    pub(crate) async fn wake(&self) -> Result<(), EngineStopped> {
        self.commands.send(Command::Wake).await.map_err(|_| EngineStopped)
    }
}
