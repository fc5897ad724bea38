//! The configuration file (TOML): one table a service. Flags and `KVSP_*` variables override it.

use std::path::{Path, PathBuf};

use kvsp_agent::AgentConfig;
use kvsp_blocks::BlocksConfig;
use kvsp_controller::ControllerConfig;
use kvsp_gateway::GatewayConfig;
use kvsp_index::IndexServiceConfig;
use kvsp_net::service::ServiceConfig;
use serde::Deserialize;

/// Largest configuration file, in octets.
const MAX_OCTETS: u64 = 1 << 20;

/// The whole file; every table may be absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FileConfig {
    /// Listeners and their limits.
    pub(crate) service: ServiceConfig,
    /// The Index Service.
    pub(crate) index: IndexServiceConfig,
    /// Tiers, leases and publication of a holder.
    pub(crate) holder: BlocksConfig,
    /// The Placement Controller.
    pub(crate) controller: ControllerConfig,
    /// The instance.
    pub(crate) instance: AgentConfig,
    /// Tiers and publication of the instance's own blocks.
    pub(crate) instance_blocks: BlocksConfig,
    /// The gateway.
    pub(crate) gateway: GatewayConfig,
    /// The model of instance and gateway.
    pub(crate) model: ModelConfig,
}

/// The model of instance and gateway.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ModelConfig {
    /// A folder, a GGUF file, or `tiny`.
    pub(crate) path: Option<String>,
    /// The descriptor's `model`.
    pub(crate) name: Option<String>,
    /// Tokens of a block.
    pub(crate) block_tokens: Option<u32>,
    /// Element type of the cache.
    pub(crate) kv_dtype: Option<String>,
    /// Octets of the engine's page pool.
    pub(crate) pool_octets: Option<u64>,
    /// Files of scope keys.
    pub(crate) scope_keys: Vec<PathBuf>,
}

/// The configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{0}: a configuration file has at most {MAX_OCTETS} octets")]
    TooLarge(PathBuf),
    /// It is not what it should be.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
}

impl FileConfig {
    /// Read a file; without one everything has its default.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let read = |source| ConfigError::Read { path: path.into(), source };
        if std::fs::metadata(path).map_err(read)?.len() > MAX_OCTETS {
            return Err(ConfigError::TooLarge(path.into()));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        toml::from_str(&text).map_err(|e| ConfigError::Syntax { path: path.into(), source: Box::new(e) })
    }
}
