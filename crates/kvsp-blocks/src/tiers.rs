//! The stores of the tiers, and what blocks take in them.

use std::sync::Arc;

use kvsp_core::tier::{Block, Level};
use kvsp_proto::id::ScopeId;
use kvsp_proto::uri::BaseUri;
use kvsp_store::{
    BlockMeta, BlockStore, DiskConfig, DiskStore, MemoryStore, ObjectConfig, ObjectStore, StoreError,
};

use crate::config::{BlocksConfig, ObjectTier};

/// The stores of the tiers below host memory.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    /// The disk tier.
    pub disk: Option<Arc<DiskStore>>,
    /// The object tier.
    pub object: Option<Arc<dyn BlockStore>>,
}

impl Stores {
    /// Opens what the configuration names, for the holder at `base`.
    ///
    /// # Errors
    /// A tier cannot be used.
    pub async fn open(config: &BlocksConfig, base: &BaseUri) -> Result<Self, StoreError> {
        let mut stores = Self::default();
        if let Some(tier) = &config.disk {
            let config = DiskConfig { dir: tier.dir.clone(), quarantine_octets: tier.quarantine_octets() };
            stores.disk = Some(Arc::new(DiskStore::open(config).await?));
        }
        if let Some(tier) = &config.object {
            let opened = ObjectStore::open(tier.store(base)).await;
            stores.object = Some(Arc::new(opened.map_err(|error| out_of_reach(tier, error))?));
        }
        Ok(stores)
    }
}

/// Without its object tier a holder does not start: it could not tell which leading layers on its disk belong to
/// blocks that are whole there, and would delete them.
fn out_of_reach(tier: &ObjectTier, error: StoreError) -> StoreError {
    match error {
        StoreError::Io(error) => StoreError::Unusable(format!(
            "the object store {} cannot be opened: {error}; start again once it can be reached and its credentials \
             are right, or take `object` out of the configuration, which loses the blocks that are whole there alone",
            tier.url
        )),
        error => error,
    }
}

impl ObjectTier {
    fn store(&self, base: &BaseUri) -> ObjectConfig {
        ObjectConfig {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style,
            credentials_file: self.credentials_file.clone(),
            quarantine_octets: self.quarantine_octets(),
            ..ObjectConfig::new(self.url.clone(), self.owner.as_deref().unwrap_or(base.as_str()))
        }
    }
}

/// All stores of a service; which of them are tiers is the configuration's matter.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) host: MemoryStore,
    pub(crate) below: Stores,
}

impl Tiers {
    /// The store of a tier, where there is one.
    pub(crate) fn store(&self, level: Level) -> Option<&dyn BlockStore> {
        match level {
            Level::Host => Some(&self.host),
            Level::Disk => self.below.disk.as_deref().map(|disk| disk as _),
            Level::Object => self.below.object.as_deref(),
        }
    }
}

/// A block as the tiers count it.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) meta: Arc<BlockMeta>,
    pub(crate) tiers: Arc<Tiers>,
}

impl Block for Counted {
    fn scope(&self) -> ScopeId {
        self.meta.name.scope
    }

    fn layers(&self) -> u32 {
        self.meta.layer_count()
    }

    fn octets(&self, level: Level, layers: u32) -> u64 {
        self.tiers.store(level).map_or(0, |store| store.charge(&self.meta, layers))
    }
}
