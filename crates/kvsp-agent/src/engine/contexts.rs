//! Contexts that are split over instances (draft section 6.9), as the engine thread keeps them: pages reserved
//! for ranges of positions, which of them hold K and V in which layer, attention over them, and passes whose
//! attention is put together elsewhere.

mod context;
#[cfg(test)]
mod tests;
mod thread;
mod work;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvsp_core::reshard::Ranges;
use kvsp_core::time::Time;
use kvsp_engine::{EngineError, Partial, Queries};
use kvsp_proto::container::{Container, GeometryError, LayerSections};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::MapId;
use kvsp_proto::registry::Codec;
use tokio::sync::oneshot;

use super::{Command, EngineHandle};
pub(super) use thread::Contexts;

/// Why the engine thread did not do what it was asked with a context.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum ContextError {
    /// There are no pages for the ranges: what is running or reserved has them.
    #[error("the engine has no memory for the range")]
    NoRoom,
    /// Positions are not reserved here.
    #[error("the range is not kept here")]
    NotReserved,
    /// K and V are not here, and did not come in time.
    #[error("keys and values of the range are not here")]
    Missing,
    /// As much waits already as may.
    #[error("too much work on split contexts is waiting")]
    Busy,
    /// The pass is not known any more, or its memory was taken away.
    #[error("the pass has ended")]
    PassEnded,
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// For whom positions are kept. Memory is given back once it is kept for nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The instance as a member of the map: its shards.
    Member,
    /// The instance as the context's leader: what it has not stored at the owner yet.
    Leader,
}

/// K and V of consecutive tokens, all layers, codec `raw`, of the right sizes.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedSections(Vec<LayerSections>);

/// A container is not one of all layers of a range of tokens in codec `raw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SectionsError {
    /// Another codec.
    #[error("the codec is {0}, not raw")]
    Codec(Codec),
    /// Not all layers.
    #[error("the container has not all layers")]
    Layers,
    /// Other sizes.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

impl VerifiedSections {
    /// The sections of a container of `tokens` tokens, which shares its octets.
    ///
    /// # Errors
    /// [`SectionsError`].
    pub(crate) fn of(
        container: &Container,
        descriptor: &Descriptor,
        tokens: u32,
    ) -> Result<Self, SectionsError> {
        if container.codec() != Codec::RAW {
            return Err(SectionsError::Codec(container.codec()));
        }
        container.check_geometry_of(descriptor, tokens)?;
        if container.layers().first() != 0 || container.layers().count() != u64::from(descriptor.layers) {
            return Err(SectionsError::Layers);
        }
        let layers = (0..descriptor.layers).map(|layer| container.layer(layer));
        layers.collect::<Option<Vec<_>>>().map(Self).ok_or(SectionsError::Layers)
    }
}

/// A pass under way on the engine thread. It ends with the last clone of this.
#[derive(Debug, Clone)]
pub(crate) struct PassId {
    id: u64,
    /// The thread looks whether anybody still has it.
    _owner: Arc<()>,
}

/// How far a pass has come.
#[derive(Debug)]
pub(crate) enum Advanced {
    /// A layer is projected and waits for its attention.
    Layer {
        /// The layer.
        layer: u32,
        /// Its queries.
        queries: Queries,
        /// Attention over the ranges asked for, which are held here.
        local: Vec<(Range<u64>, Partial)>,
    },
    /// All layers are computed.
    Done,
}

type Reply<T> = oneshot::Sender<Result<T, ContextError>>;

/// What the engine thread is asked.
pub(crate) enum ContextCommand {
    Reserve { map: MapId, keeper: Keeper, ranges: Ranges, reply: Reply<()> },
    Free { map: MapId, keeper: Option<Keeper>, ranges: Option<Ranges>, reply: oneshot::Sender<()> },
    Held { map: MapId, reply: oneshot::Sender<Ranges> },
    Forget { map: MapId, from: u64, reply: oneshot::Sender<()> },
    Read { map: MapId, range: Range<u64>, reply: Reply<Bytes> },
    Write { map: MapId, range: Range<u64>, sections: VerifiedSections, reply: Reply<()> },
    Attend(Attention),
    Begin { map: MapId, position: u64, tokens: Vec<u32>, reply: Reply<PassId> },
    Advance { pass: u64, attention: Option<Vec<f32>>, local: Ranges, reply: Reply<Advanced> },
    Finish { pass: u64, logits: bool, reply: Reply<Option<Vec<f32>>> },
}

/// Attention that is asked for.
pub(crate) struct Attention {
    map: MapId,
    layer: usize,
    keys: Range<u64>,
    queries: Queries,
    /// When to give up waiting for the keys.
    until: Time,
    reply: Reply<Partial>,
}

impl Attention {
    /// Octets of the queries.
    fn octets(&self) -> usize {
        size_of_val(self.queries.values.as_slice())
    }
}

impl EngineHandle {
    /// Keep pages for these positions of a context, evicting cached blocks where need be: all of them or none.
    /// Idempotent.
    ///
    /// # Errors
    /// [`ContextError::NoRoom`], [`ContextError::Stopped`].
    pub(crate) async fn context_reserve(&self, map: &MapId, ranges: Ranges) -> Result<(), ContextError> {
        self.reserve(map, Keeper::Member, ranges).await
    }

    /// As [`Self::context_reserve`], for the leader's own purposes: what is kept so stays where the member lets
    /// go of it, and the other way round.
    ///
    /// # Errors
    /// [`ContextError::NoRoom`], [`ContextError::Stopped`].
    pub(crate) async fn context_stage(&self, map: &MapId, ranges: Ranges) -> Result<(), ContextError> {
        self.reserve(map, Keeper::Leader, ranges).await
    }

    async fn reserve(&self, map: &MapId, keeper: Keeper, ranges: Ranges) -> Result<(), ContextError> {
        let map = map.clone();
        self.ask(|reply| ContextCommand::Reserve { map, keeper, ranges, reply }).await
    }

    /// Keep these positions no longer for the member; all of the context, also for its leader, where none are
    /// given. What is kept for nobody is forgotten, and its pages are free.
    pub(crate) async fn context_free(&self, map: &MapId, ranges: Option<Ranges>) {
        let keeper = ranges.is_some().then_some(Keeper::Member);
        self.free(map, keeper, ranges).await;
    }

    /// Keep these positions, or all, no longer for the leader.
    pub(crate) async fn context_unstage(&self, map: &MapId, ranges: Option<Ranges>) {
        self.free(map, Some(Keeper::Leader), ranges).await;
    }

    async fn free(&self, map: &MapId, keeper: Option<Keeper>, ranges: Option<Ranges>) {
        let map = map.clone();
        self.tell(|reply| ContextCommand::Free { map, keeper, ranges, reply }).await;
    }

    /// The positions whose K and V are here in all layers, whoever keeps them.
    pub(crate) async fn context_held(&self, map: &MapId) -> Ranges {
        let map = map.clone();
        self.tell(|reply| ContextCommand::Held { map, reply }).await.unwrap_or_default()
    }

    /// K and V of these positions: a whole container, all layers, codec `raw`.
    ///
    /// # Errors
    /// [`ContextError::Missing`] where they are not all held in all layers, [`ContextError::Busy`],
    /// [`ContextError::Engine`], [`ContextError::Stopped`].
    pub(crate) async fn context_read(&self, map: &MapId, range: Range<u64>) -> Result<Bytes, ContextError> {
        let map = map.clone();
        self.ask(|reply| ContextCommand::Read { map, range, reply }).await
    }

    /// Put K and V of these positions, which are reserved, into their pages.
    ///
    /// # Errors
    /// [`ContextError::NotReserved`], [`ContextError::Busy`], [`ContextError::Engine`] where the sections are not
    /// of as many tokens, [`ContextError::Stopped`].
    pub(crate) async fn context_write(
        &self,
        map: &MapId,
        range: Range<u64>,
        sections: VerifiedSections,
    ) -> Result<(), ContextError> {
        let map = map.clone();
        self.ask(|reply| ContextCommand::Write { map, range, sections, reply }).await
    }

    /// Hold nothing from this position on any more; what is reserved stays so. Passes over such positions end.
    pub(crate) async fn context_forget(&self, map: &MapId, from: u64) {
        let map = map.clone();
        self.tell(|reply| ContextCommand::Forget { map, from, reply }).await;
    }

    /// Attention over keys that are reserved here, once they are held in that layer. Keys behind the last row,
    /// which none sees, need not be.
    ///
    /// # Errors
    /// [`ContextError::Missing`] at once where a key is not reserved, or at `until`; [`ContextError::Busy`],
    /// [`ContextError::Engine`], [`ContextError::Stopped`].
    pub(crate) async fn attend(
        &self,
        map: &MapId,
        layer: u32,
        keys: Range<u64>,
        queries: Queries,
        until: Time,
    ) -> Result<Partial, ContextError> {
        let (map, layer) = (map.clone(), layer as usize);
        self.ask(|reply| ContextCommand::Attend(Attention { map, layer, keys, queries, until, reply })).await
    }

    /// Begin a pass over consecutive tokens, whose positions are reserved. It ends when its last [`PassId`] is
    /// gone.
    ///
    /// # Errors
    /// [`ContextError::NotReserved`], [`ContextError::Busy`], [`ContextError::Engine`], [`ContextError::Stopped`].
    pub(crate) async fn pass_begin(
        &self,
        map: &MapId,
        position: u64,
        tokens: Vec<u32>,
    ) -> Result<PassId, ContextError> {
        let map = map.clone();
        self.ask(|reply| ContextCommand::Begin { map, position, tokens, reply }).await
    }

    /// Complete the projected layer, where its attention is given; then project the next one, which makes its
    /// positions held there, and attend over the positions `local`. Without attention the layer is projected
    /// again, with the same result.
    ///
    /// # Errors
    /// [`ContextError::Missing`] where `local` is not held in that layer, [`ContextError::PassEnded`],
    /// [`ContextError::Busy`], [`ContextError::Engine`], [`ContextError::Stopped`].
    pub(crate) async fn pass_advance(
        &self,
        pass: &PassId,
        attention: Option<Vec<f32>>,
        local: Ranges,
    ) -> Result<Advanced, ContextError> {
        let pass = pass.id;
        self.ask(|reply| ContextCommand::Advance { pass, attention, local, reply }).await
    }

    /// End a pass whose layers are all computed; the logits after its last token where they are wanted.
    ///
    /// # Errors
    /// [`ContextError::PassEnded`], [`ContextError::Busy`], [`ContextError::Engine`] while layers remain,
    /// [`ContextError::Stopped`].
    pub(crate) async fn pass_finish(
        &self,
        pass: PassId,
        logits: bool,
    ) -> Result<Option<Vec<f32>>, ContextError> {
        let id = pass.id;
        self.ask(|reply| ContextCommand::Finish { pass: id, logits, reply }).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> ContextCommand) -> Result<T, ContextError> {
        self.tell(command).await.unwrap_or(Err(ContextError::Stopped))
    }

    /// The answer; `None` where the engine has stopped.
    async fn tell<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> ContextCommand) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Context(Box::new(command(reply)))).await.ok()?;
        answer.await.ok()
    }
}
