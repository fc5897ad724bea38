//! The blocks as the process itself uses them, without HTTP: for an instance and its engine.

use std::sync::Arc;

use bytes::Bytes;
use kvsp_core::descriptors::DescriptorRefusal;
use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::problem::Problem;
use kvsp_proto::record::LayerSpan;
use kvsp_store::BlockName;

use crate::ingest::Claims;
use crate::problems;
use crate::service::{BlockService, PutOutcome};

impl BlockService {
    /// Stores a block of this process's own, with all checks of a PUT, and publishes it. The producer is
    /// this holder.
    ///
    /// # Errors
    /// The problem that a PUT of the same container would have met; a block that is held already is no
    /// error.
    pub async fn put_local(
        self: &Arc<Self>,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        container: Bytes,
    ) -> Result<PutOutcome, Problem> {
        // Its own buffer, in the memory that has a cap: a slice would keep all of what it was taken from.
        let container = self.buffers.copy_of(&container).ok_or_else(problems::no_memory)?;
        let claims =
            Claims { producer: self.base.as_str().to_owned(), repr_digest: None, if_none_match: true };
        self.ingest(BlockName { compat, scope, key }, container, claims).await
    }

    /// A block that is held, from host memory or verified from disk; a device that fails is a miss.
    pub async fn get_local(&self, compat: CompatId, scope: ScopeId, key: BlockKey) -> Option<Container> {
        match self.find(BlockName { compat, scope, key }).await {
            Ok(block) => block.map(|block| block.container),
            Err(error) => {
                problems::store(&error);
                None
            }
        }
    }

    /// Whether a block is held.
    #[must_use]
    pub fn contains(&self, compat: CompatId, scope: ScopeId, key: BlockKey) -> bool {
        self.meta(&BlockName { compat, scope, key }).is_some()
    }

    /// Deletes and withdraws a block; whether it was held.
    ///
    /// # Errors
    /// 409 `kvsp-block-leased`, or 500 where the device fails.
    pub async fn delete_local(
        self: &Arc<Self>,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
    ) -> Result<bool, Problem> {
        self.discard(BlockName { compat, scope, key }).await.map_err(problems::keep)
    }

    /// Tells which layers of a block the engine has in its own memory too, so that the record says so
    /// (tier `device`); `None` for none. Whether the block is held here: only then is there a record.
    pub fn set_device_layers(
        &self,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        layers: Option<LayerSpan>,
    ) -> bool {
        let held = self.state().set_device(BlockName { compat, scope, key }, layers, self.now());
        self.news.notify_one();
        held
    }

    /// Registers a descriptor: from now on, containers that claim its compatibility are checked against it.
    /// Whether it is new.
    ///
    /// # Errors
    /// [`DescriptorRefusal::Full`].
    pub fn register_descriptor(&self, descriptor: Descriptor) -> Result<bool, DescriptorRefusal> {
        self.lock_descriptors().register(descriptor.compat_id(), descriptor)
    }
}
