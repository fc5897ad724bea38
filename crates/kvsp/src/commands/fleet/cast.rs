//! A small fleet: index, holder, controller, two instances and a gateway.

use std::path::Path;

use kvsp_proto::uri::BaseUri;
use nix::sys::signal::Signal;

use super::{Fleet, FleetError, Process};

/// The model that instances and gateway have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CastModel<'a> {
    /// A path, or `tiny`.
    pub(crate) path: &'a str,
    /// Its name; empty for that of the model itself.
    pub(crate) name: &'a str,
    /// Tokens of a block.
    pub(crate) block_tokens: u64,
}

/// A service's base URI and that of its administration listener.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
}

/// Who is who.
pub(crate) struct Cast {
    pub(crate) index: Member,
    pub(crate) controller: Member,
    pub(crate) a: Member,
    pub(crate) b: Member,
    pub(crate) gateway: Member,
    /// What the controller is started with.
    controller_args: Vec<String>,
    /// What an instance is started with.
    instance_args: Vec<String>,
}

impl From<&Process> for Member {
    fn from(process: &Process) -> Self {
        Self { base: process.base.clone(), admin: process.admin.clone() }
    }
}

impl Cast {
    /// Starts all, one after the other.
    pub(crate) async fn start(fleet: &mut Fleet, model: CastModel<'_>) -> Result<Self, FleetError> {
        let key = fleet.scope_key()?.to_string_lossy().into_owned();
        let state = fleet.dir().join("controller").to_string_lossy().into_owned();
        let block_tokens = model.block_tokens.to_string();
        let mut common = vec!["--model", model.path, "--block-tokens", &block_tokens, "--scope-key", &key];
        if !model.name.is_empty() {
            common.extend(["--name", model.name]);
        }
        let index: Member = fleet.start("index", &["index"]).await?.into();
        let to_index = ["--index", index.base.as_str()];
        let holder: Member = fleet.start("holder", &[&["holder"], &to_index[..]].concat()).await?.into();
        let args = [&["controller", "--state", &state], &to_index[..]].concat();
        let controller: Member = fleet.start("controller", &args).await?.into();
        let controller_args = owned(&args);
        let to_controller = ["--controller", controller.base.as_str()];
        let to_holder = ["--holder", holder.base.as_str()];
        // All of them run on this machine.
        let instance = ["instance", "--equal-hardware"];
        let args = [&instance[..], &to_index, &to_controller, &to_holder, &common].concat();
        let a = fleet.start("instance-a", &args).await?.into();
        let b = fleet.start("instance-b", &args).await?.into();
        let instance_args = owned(&args);
        let args = [&["gateway"], &to_controller[..], &common].concat();
        let gateway = fleet.start("gateway", &args).await?.into();
        Ok(Self { index, controller, a, b, gateway, controller_args, instance_args })
    }

    /// Starts one more instance.
    pub(crate) async fn start_instance(&self, fleet: &mut Fleet) -> Result<Member, FleetError> {
        let args: Vec<&str> = self.instance_args.iter().map(String::as_str).collect();
        fleet.start("instance-next", &args).await.map(Member::from)
    }

    /// Stops the controller and starts it again under the same URI, with what it kept and another configuration.
    pub(crate) async fn reconfigure_controller(
        &mut self,
        fleet: &mut Fleet,
        config: &Path,
    ) -> Result<(), FleetError> {
        let base = self.controller.base.clone();
        fleet.signal(&base, Signal::SIGTERM)?;
        fleet.bury(&base).await?;
        let listen = base.as_str().split('/').nth(2).unwrap_or_default();
        let config = config.to_string_lossy();
        let mut args: Vec<&str> = self.controller_args.iter().map(String::as_str).collect();
        args.extend(["--listen", listen, "--config", &config]);
        self.controller = fleet.start("controller", &args).await?.into();
        Ok(())
    }
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}
