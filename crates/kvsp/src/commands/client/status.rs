//! `kvsp status`.

use std::fmt::Write as _;

use kvsp_proto::message::{InstanceList, ServiceRoot};
use kvsp_proto::record::InstanceStatus;
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::Answer;
use super::error::CommandError;
use super::peers::PeerArgs;

/// Arguments of `kvsp status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp status http://127.0.0.1:7701/kvsp/
  kvsp status --controller http://127.0.0.1:7703/kvsp/ --json
  kvsp status --instance http://127.0.0.1:7704/kvsp/")]
pub(crate) struct StatusArgs {
    /// A service: show its roles, extensions and limits.
    #[arg(value_name = "URI", required_unless_present_any = ["controller", "instance"])]
    service: Option<BaseUri>,
    /// A Placement Controller: show all instances that it knows.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: Option<BaseUri>,
    /// An instance: show its own status.
    #[arg(long, value_name = "URI")]
    instance: Option<BaseUri>,
    #[command(flatten)]
    peers: PeerArgs,
}

impl StatusArgs {
    /// What is named on the command line wins over the controller of the environment.
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let named = [&self.service, &self.instance, &self.controller];
        let client = self.peers.client(named.into_iter().flatten())?;
        match (self.service, self.instance, self.controller) {
            (Some(service), ..) => {
                let root = client.root(&service).await.map_err(CommandError::peer(&service))?;
                Ok(Answer::found(json!(root), root_text(&root)))
            }
            (None, Some(instance), _) => {
                let status = client.status(&instance).await.map_err(CommandError::peer(&instance))?;
                Ok(Answer::found(json!(status), instance_text(&status)))
            }
            (None, None, Some(controller)) => {
                let list = client.instances(&controller).await.map_err(CommandError::peer(&controller))?;
                Ok(Answer::found(json!(list), list_text(&list)))
            }
            // One of them is required.
            (None, None, None) => Err(CommandError::Unnamed),
        }
    }
}

fn root_text(root: &ServiceRoot) -> String {
    let limits = &root.limits;
    format!(
        "roles      {}\nextensions {}\nlimits     JSON {} octets, container {} octets, lookup {} keys, \
         batch {} items, TTL {} ms, lease TTL {} ms",
        root.roles.join(", "),
        if root.extensions.is_empty() { "none".to_owned() } else { root.extensions.join(", ") },
        limits.max_json_octets,
        limits.max_container_octets,
        limits.max_lookup_keys,
        limits.max_batch_items,
        limits.max_ttl_ms,
        limits.max_lease_ttl_ms,
    )
}

fn list_text(list: &InstanceList) -> String {
    if list.instances.is_empty() {
        return "no instances".to_owned();
    }
    let lines: Vec<String> = list.instances.iter().map(|view| instance_text(&view.status)).collect();
    lines.join("\n")
}

fn instance_text(status: &InstanceStatus) -> String {
    let mut text = format!(
        "{}  {}, epoch {}, {} running, {} queued, {:.0} % of KV memory",
        status.instance,
        status.state.as_str(),
        status.epoch,
        status.running,
        status.queued,
        100.0 * status.kv_utilization,
    );
    for (what, rate) in [("prefill", status.prefill_tokens_per_s), ("decode", status.decode_tokens_per_s)] {
        if rate > 0.0 {
            // Writing to a string does not fail.
            let _ = write!(text, ", {what} {rate:.0} tokens/s");
        }
    }
    text
}
