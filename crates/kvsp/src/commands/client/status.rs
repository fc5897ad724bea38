//! `kvsp status`.

use std::fmt::Write as _;

use kvsp_proto::message::{InstanceList, InstanceView, ServiceRoot};
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
    let lines: Vec<String> = list.instances.iter().map(view_text).collect();
    lines.join("\n")
}

/// What the instance says of itself, and what the controller knows beside it.
fn view_text(view: &InstanceView) -> String {
    let mut text = instance_text(&view.status);
    for (count, what) in [(view.sessions, "session"), (view.shards, "shard")] {
        if let Some(count) = count {
            text.push_str(&format!(", {count} {what}{}", if count == 1 { "" } else { "s" }));
        }
    }
    if let Some(wanted) = view.wanted.filter(|wanted| *wanted != view.status.state) {
        text.push_str(&format!(", is to be {}", wanted.as_str()));
    }
    text
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
    if let Some(requested) = status.requested_state {
        let _ = write!(text, ", asks to be {}", requested.as_str());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_one_line_with_what_is_known_of_it() {
        let record = json!({
            "instance": "http://127.0.0.1:9/kvsp/", "epoch": 3, "state": "draining", "running": 2, "queued": 1,
            "kv_utilization": 0.25, "ttl_ms": 3000, "wanted": "sleeping", "sessions": 2, "shards": 1,
        });
        let view: InstanceView = serde_json::from_value(record.clone()).unwrap();
        let line = "http://127.0.0.1:9/kvsp/  draining, epoch 3, 2 running, 1 queued, 25 % of KV memory, \
                    2 sessions, 1 shard, is to be sleeping";
        assert_eq!(list_text(&InstanceList { instances: vec![view] }), line);
        let mut bare = record;
        for member in ["wanted", "sessions", "shards"] {
            bare.as_object_mut().unwrap().remove(member);
        }
        bare["requested_state"] = json!("sleeping");
        bare["state"] = json!("active");
        let view: InstanceView = serde_json::from_value(bare).unwrap();
        assert!(view_text(&view).ends_with("25 % of KV memory, asks to be sleeping"));
        assert_eq!(list_text(&InstanceList { instances: Vec::new() }), "no instances");
    }
}
