//! Flags of `kvsp serve` and how they override the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use kvsp_proto::uri::BaseUri;

use super::tiers::TierArgs;
use super::{StartError, state};
use crate::config::FileConfig;
use crate::octets::Octets;

/// Which service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RoleName {
    /// The Index Service.
    Index,
    /// A holder of blocks.
    Holder,
    /// The Placement Controller.
    Controller,
    /// An inference instance with the reference engine.
    Instance,
    /// The OpenAI-compatible gateway.
    Gateway,
    /// All of them in one process, for a laptop.
    All,
}

/// Run a service until SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp serve all --model tiny
  kvsp serve index --listen 127.0.0.1:7701 --snapshot index.snapshot
  kvsp serve controller --listen 127.0.0.1:7703 --index http://127.0.0.1:7701/kvsp/ --state sessions
  kvsp serve holder --index http://127.0.0.1:7701/kvsp/ --disk-dir blocks --disk-octets 64GiB
  kvsp serve instance --model model.gguf --name org/model --scope-key scope.key \\
      --index http://127.0.0.1:7701/kvsp/ --controller http://127.0.0.1:7703/kvsp/")]
pub(crate) struct ServeArgs {
    /// The service.
    #[arg(value_enum)]
    pub(super) role: RoleName,
    /// A configuration file (TOML); flags and environment override it.
    #[arg(long, value_name = "FILE", env = "KVSP_CONFIG")]
    config: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one. `all` takes the ports that follow for the other roles.
    #[arg(long, value_name = "ADDR:PORT", env = "KVSP_LISTEN")]
    listen: Option<SocketAddr>,
    /// Address of /livez, /readyz and /metrics; by default a free loopback port.
    #[arg(long, value_name = "ADDR:PORT", env = "KVSP_ADMIN_LISTEN")]
    admin_listen: Option<SocketAddr>,
    /// The base URI that peers use, where it is not that of the address.
    #[arg(long, value_name = "URI", env = "KVSP_ADVERTISE")]
    advertise: Option<BaseUri>,
    /// Listen beyond loopback although no credentials are configured: everyone who reaches the address may
    /// do everything.
    #[arg(long, env = "KVSP_INSECURE", value_parser = clap::builder::FalseyValueParser::new())]
    insecure: bool,
    /// The Index Service.
    #[arg(long, value_name = "URI", env = "KVSP_INDEX")]
    index: Option<BaseUri>,
    /// The Placement Controller.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: Option<BaseUri>,
    /// The holder that gets a copy of every block that an instance computes.
    #[arg(long, value_name = "URI", env = "KVSP_HOLDER")]
    holder: Option<BaseUri>,
    #[command(flatten)]
    tiers: TierArgs,
    /// File in which an index keeps its records, so that it answers at once after a restart; absent for none.
    #[arg(long, value_name = "FILE", env = "KVSP_SNAPSHOT")]
    snapshot: Option<PathBuf>,
    /// Folder in which a controller keeps its sessions; one controller at a time. By default
    /// $XDG_STATE_HOME/kvsp/controller-PORT; with port 0 a temporary one, so that sessions end with the process.
    #[arg(long, value_name = "DIR", env = "KVSP_STATE")]
    state: Option<PathBuf>,
    /// File of the key that encrypts what is in the state folder, readable by its owner alone; by default made
    /// there at the first start.
    #[arg(long, value_name = "FILE", env = "KVSP_STATE_KEY")]
    state_key: Option<PathBuf>,
    /// The model of an instance or gateway: a Hugging Face folder, a GGUF file, or `tiny`.
    #[arg(long, value_name = "PATH|tiny", env = "KVSP_MODEL")]
    model: Option<String>,
    /// The model's name, the same at all parties; required for a path.
    #[arg(long, value_name = "NAME", env = "KVSP_NAME")]
    name: Option<String>,
    /// The model's name in the OpenAI API, where it is another.
    #[arg(long, value_name = "NAME", env = "KVSP_SERVED_NAME")]
    served_name: Option<String>,
    /// Tokens of a block.
    #[arg(long, value_name = "N", env = "KVSP_BLOCK_TOKENS")]
    block_tokens: Option<u32>,
    /// Element type of the cache: float32, float16 or bfloat16.
    #[arg(long, value_name = "TYPE", env = "KVSP_KV_DTYPE")]
    kv_dtype: Option<String>,
    /// Memory of the engine's KV pages.
    #[arg(long, value_name = "SIZE", env = "KVSP_POOL_OCTETS")]
    pool_octets: Option<Octets>,
    /// File of a scope key; may be given several times, the first is the default. Without one, `all` makes
    /// a key of its own and the other roles share nothing.
    #[arg(long, value_name = "FILE", env = "KVSP_SCOPE_KEY")]
    scope_key: Vec<PathBuf>,
    /// For instances: all that a session may go to run this program on equal hardware, so greedy tokens are the same
    /// at each of them, and are shown without waiting for a checkpoint. `all` sets it.
    #[arg(long, env = "KVSP_EQUAL_HARDWARE", value_parser = clap::builder::FalseyValueParser::new())]
    equal_hardware: bool,
    /// For an instance: how long it must have been quiet before it asks the controller to let it sleep, in ms;
    /// by default, and with 0, it never asks.
    #[arg(long, value_name = "MS", env = "KVSP_SLEEP_AFTER_MS")]
    sleep_after_ms: Option<u64>,
    /// For a controller: an instance may fall asleep at its own request while so many others are active.
    #[arg(long, value_name = "N", env = "KVSP_MIN_ACTIVE")]
    min_active: Option<usize>,
    /// End when the process that started this one ends.
    #[arg(long, hide = true)]
    pub(super) exit_with_parent: bool,
}

impl ServeArgs {
    /// The configuration file with the flags over it.
    pub(super) fn merged(&self) -> Result<FileConfig, StartError> {
        let mut config = FileConfig::load(self.config.as_deref())?;
        let service = &mut config.service;
        service.listen = self.listen.unwrap_or(service.listen);
        service.admin_listen = self.admin_listen.unwrap_or(service.admin_listen);
        service.insecure |= self.insecure;
        service.advertise = self.advertise.clone().or(service.advertise.take());
        for target in [
            &mut config.holder.index,
            &mut config.instance_blocks.index,
            &mut config.instance.index,
            &mut config.controller.index,
        ] {
            *target = self.index.clone().or(target.take());
        }
        for target in [&mut config.instance.controller, &mut config.gateway.controller] {
            *target = self.controller.clone().or(target.take());
        }
        config.instance.holder = self.holder.clone().or(config.instance.holder.take());
        config.instance.equal_hardware |= self.equal_hardware || self.role == RoleName::All;
        config.instance.sleep_after_ms = self.sleep_after_ms.unwrap_or(config.instance.sleep_after_ms);
        config.controller.min_active = self.min_active.unwrap_or(config.controller.min_active);
        for name in [&mut config.instance.served_name, &mut config.gateway.served_name] {
            *name = self.served_name.clone().or(name.take());
        }
        config.index.snapshot_path = self.snapshot.clone().or(config.index.snapshot_path.take());
        self.merge_state(&mut config);
        self.merge_tiers(&mut config)?;
        self.merge_model(&mut config);
        Ok(config)
    }

    fn merge_state(&self, config: &mut FileConfig) {
        let controller = &mut config.controller;
        controller.state_key = self.state_key.clone().or(controller.state_key.take());
        let default = || state::default_folder(self.role, config.service.listen.port());
        controller.state = self.state.clone().or(controller.state.take()).or_else(default);
    }

    /// The tier flags are those of the one role that has tiers; `all` gives them to its holder.
    fn merge_tiers(&self, config: &mut FileConfig) -> Result<(), StartError> {
        self.tiers.merge(match self.role {
            RoleName::Instance => &mut config.instance_blocks,
            _ => &mut config.holder,
        })
    }

    fn merge_model(&self, config: &mut FileConfig) {
        let model = &mut config.model;
        model.path = self.model.clone().or(model.path.take());
        model.name = self.name.clone().or(model.name.take());
        model.block_tokens = self.block_tokens.or(model.block_tokens);
        model.kv_dtype = self.kv_dtype.clone().or(model.kv_dtype.take());
        model.pool_octets = self.pool_octets.map(|o| o.0).or(model.pool_octets);
        if !self.scope_key.is_empty() {
            model.scope_keys.clone_from(&self.scope_key);
        }
    }
}
