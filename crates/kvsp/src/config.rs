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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<FileConfig, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        FileConfig::load(Some(file.path()))
    }

    #[test]
    fn lifecycle_and_split_contexts_are_configured_in_the_file() {
        let config = read(
            "[instance]\nsleep_below = 2\nsleep_after_ms = 60000\n\
             [controller]\nmin_active = 3\nsleep_max_load = 0.25\nacceptable_cost_ms = 5000\n\
             [controller.start]\ncommand = [\"start\", \"an instance\"]\nmax_starts = 2\nwait_ms = 1000\n\
             [controller.groups]\nmin_tokens = 4096\nmax_members = 2\n",
        )
        .unwrap();
        assert_eq!((config.instance.sleep_below, config.instance.sleep_after_ms), (2, 60_000));
        let controller = &config.controller;
        assert_eq!((controller.min_active, controller.acceptable_cost_ms), (3, Some(5000)));
        assert!((controller.sleep_max_load - 0.25).abs() < f64::EPSILON);
        assert_eq!(controller.start.command, ["start", "an instance"]);
        assert_eq!((controller.start.max_starts, controller.start.wait_ms), (2, 1000));
        assert_eq!((controller.groups.min_tokens, controller.groups.max_members), (4096, 2));
        for unknown in ["[instance]\nsleeps = true\n", "[controller.start]\nshell = \"sh\"\n"] {
            assert!(matches!(read(unknown), Err(ConfigError::Syntax { .. })), "{unknown}");
        }
    }
}
