//! The engine thread and the handle by which the rest of the agent talks to it.
//!
//! One thread owns the engine and its pages. Everything else sends commands and receives outputs and
//! events over bounded channels, so no request, fetch or status report ever touches the arithmetic.

mod gauges;
mod pages;
mod request;
mod scheduler;
mod sequence;

use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use kvsp_core::time::Time;
use kvsp_engine::{Engine, EngineInfo};
use kvsp_net::clock::Clock;
use kvsp_openai::FinishReason;
use kvsp_proto::container::LayerSections;
use kvsp_proto::id::{BlockKey, ScopeId};
use tokio::sync::{mpsc, oneshot};

pub(crate) use gauges::Gauges;
pub(crate) use pages::{DeviceChange, ScopedKey, Slot};
pub(crate) use request::{EngineRequest, Pace, PromptTokens};
use scheduler::Scheduler;

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
    /// A request needs a block that the host tier holds.
    Fill { block: ScopedKey, slot: Slot },
}

pub(crate) enum Command {
    Submit(EngineRequest, oneshot::Sender<Result<mpsc::Receiver<Output>, SubmitError>>),
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
    /// A request that was held may go on.
    Wake,
}

/// Talks to the engine thread; cheap to clone.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    commands: mpsc::Sender<Command>,
    info: Arc<EngineInfo>,
    gauges: Arc<Gauges>,
}

/// The engine thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub(crate) struct EngineStopped;

impl EngineHandle {
    /// Start the engine thread. It ends when all handles are gone.
    ///
    /// # Errors
    /// [`std::io::Error`] where no thread can be had.
    pub(crate) fn spawn<E: Engine>(
        engine: E,
        config: SchedulerConfig,
        host: Arc<dyn HostTier>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<(Self, mpsc::Receiver<EngineEvent>, JoinHandle<()>)> {
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let (outbox, events) = mpsc::channel(EVENT_QUEUE);
        let info = Arc::new(engine.info().clone());
        let gauges = Arc::new(Gauges::default());
        let scheduler = Scheduler::new(engine, config, inbox, outbox, host, clock, gauges.clone());
        let runtime = tokio::runtime::Handle::current();
        let thread =
            std::thread::Builder::new().name("kvsp-engine".into()).spawn(move || scheduler.run(&runtime))?;
        Ok((Self { commands, info, gauges }, events, thread))
    }

    pub(crate) fn info(&self) -> &EngineInfo {
        &self.info
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// Submit a request; outputs come in order, and dropping the receiver cancels it.
    pub(crate) async fn submit(&self, request: EngineRequest) -> Result<mpsc::Receiver<Output>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Submit(request, reply)).await.map_err(|_| SubmitError::Stopped)?;
        answer.await.map_err(|_| SubmitError::Stopped)?
    }

    /// Reserve pages for blocks that are about to be loaded, one answer a key.
    pub(crate) async fn expect(
        &self,
        scope: ScopeId,
        keys: Vec<BlockKey>,
        pin: Option<Pin>,
    ) -> Result<Vec<Expectation>, EngineStopped> {
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
