//! `kvsp map`: the shard maps of a Placement Controller.

use std::collections::BTreeSet;
use std::str::FromStr;

use kvsp_client::{Client, ClientError};
use kvsp_proto::message::{
    MapCreate, MapId, MapList, MapView, ReshardRequest, Shard, TokenRange, check_shards,
};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use uuid::Uuid;

use super::Answer;
use super::error::CommandError;
use super::peers::{PeerArgs, SpaceArgs};
use super::wait::{Patience, WaitArgs};
use crate::progress;

/// Arguments of `kvsp map`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp map show --controller http://127.0.0.1:7703/kvsp/

A map says which instance holds the keys and values of which tokens of one long context. Exit status 5 where it is
unknown.")]
pub(crate) struct MapArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show one map, or all.
    Show(ShowArgs),
    /// Create a map.
    Create(CreateArgs),
    /// Split a map anew while it is in use.
    Reshard(ReshardArgs),
    /// End a map; its members free their memory.
    End(EndArgs),
}

#[derive(Debug, clap::Args)]
struct ControllerArgs {
    /// The Placement Controller.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: BaseUri,
    #[command(flatten)]
    peers: PeerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp map show --controller http://127.0.0.1:7703/kvsp/
  kvsp map show 6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11 --json")]
struct ShowArgs {
    /// The map; without one all are shown.
    #[arg(value_name = "MAP", value_parser = map_id)]
    map: Option<MapId>,
    #[command(flatten)]
    at: ControllerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp map create book --compat $COMPAT --scope $SCOPE \\
      --shards 0-4096=http://127.0.0.1:7704/kvsp/ --shards 4096-8192=http://127.0.0.1:7705/kvsp/")]
struct CreateArgs {
    /// The map: 1 to 128 of A-Z a-z 0-9 . _ -
    #[arg(value_name = "MAP", value_parser = map_id)]
    map: MapId,
    #[command(flatten)]
    space: SpaceArgs,
    /// The session whose context it is.
    #[arg(long, value_name = "UUID")]
    session: Option<Uuid>,
    #[command(flatten)]
    shards: ShardArgs,
    #[command(flatten)]
    at: ControllerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp map reshard book --shards 0-8192=http://127.0.0.1:7704/kvsp/ --deadline-ms 10000 --wait

What stays at its instance is not moved. Until every member has what it needs the old split holds; where one does
not get there within the deadline, the change is given up, and with --wait the exit status is 1.")]
struct ReshardArgs {
    /// The map.
    #[arg(value_name = "MAP", value_parser = map_id)]
    map: MapId,
    /// The version that is split anew; by default the one that holds.
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    #[command(flatten)]
    shards: ShardArgs,
    /// Milliseconds within which all members must have what they need.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    deadline_ms: u64,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    at: ControllerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp map end book --controller http://127.0.0.1:7703/kvsp/")]
struct EndArgs {
    /// The map.
    #[arg(value_name = "MAP", value_parser = map_id)]
    map: MapId,
    #[command(flatten)]
    at: ControllerArgs,
}

#[derive(Debug, clap::Args)]
struct ShardArgs {
    /// Tokens from `a` up to, not including, `b`, and who holds them; the first begins at 0, each of the others
    /// where the one before it ends. May be given several times.
    #[arg(long, value_name = "a-b=URI", required = true, num_args = 1.., value_parser = shard)]
    shards: Vec<Shard>,
}

impl ShardArgs {
    /// The shards, where they are a split.
    fn split(self) -> Result<Vec<Shard>, CommandError> {
        check_shards(&self.shards).map_err(CommandError::Shards)?;
        Ok(self.shards)
    }
}

fn map_id(text: &str) -> Result<MapId, kvsp_proto::message::BadMapId> {
    text.parse()
}

fn shard(text: &str) -> Result<Shard, String> {
    let (tokens, instance) = text.split_once('=').ok_or("a shard is a-b=URI")?;
    let tokens = TokenRange::from_str(tokens).map_err(|error| error.to_string())?;
    let instance = instance.parse().map_err(|error| format!("{instance}: {error}"))?;
    Ok(Shard { tokens, instance })
}

impl MapArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        match self.what {
            What::Show(args) => args.answer().await,
            What::Create(args) => args.answer().await,
            What::Reshard(args) => args.answer().await,
            What::End(args) => args.answer().await,
        }
    }
}

impl ControllerArgs {
    fn client(&self) -> Result<Client, CommandError> {
        Ok(self.peers.client([&self.controller])?)
    }

    fn failed(&self, map: &MapId) -> impl FnOnce(ClientError) -> CommandError {
        let (controller, map) = (self.controller.clone(), map.clone());
        move |error| match error.problem_type() {
            Some(ProblemType::MapUnknown) => CommandError::Miss(format!("{controller} knows no map {map}")),
            _ => CommandError::peer(&controller)(error),
        }
    }
}

impl ShowArgs {
    async fn answer(self) -> Result<Answer, CommandError> {
        let (client, controller) = (self.at.client()?, &self.at.controller);
        match &self.map {
            Some(map) => {
                client.map(controller, map).await.map(|view| found(&view)).map_err(self.at.failed(map))
            }
            None => {
                let list = client.maps(controller).await.map_err(CommandError::peer(controller))?;
                Ok(Answer::found(json!(list), list_text(&list)))
            }
        }
    }
}

impl CreateArgs {
    async fn answer(self) -> Result<Answer, CommandError> {
        let client = self.at.client()?;
        let create = MapCreate {
            map: None,
            version: None,
            compat_id: self.space.compat,
            scope_id: self.space.scope,
            session: self.session,
            shards: self.shards.split()?,
        };
        let created = client.create_map(&self.at.controller, &self.map, &create).await;
        created.map(|view| found(&view)).map_err(self.at.failed(&self.map))
    }
}

impl ReshardArgs {
    async fn answer(self) -> Result<Answer, CommandError> {
        let (client, controller, map) = (self.at.client()?, &self.at.controller, &self.map);
        let shards = self.shards.split()?;
        let from = match self.from {
            Some(from) => from,
            None => client.map(controller, map).await.map_err(self.at.failed(map))?.version,
        };
        let request = ReshardRequest { from, shards, deadline_ms: self.deadline_ms };
        let view = client.reshard_map(controller, map, &request).await.map_err(self.at.failed(map))?;
        match self.wait.patience() {
            None => Ok(found(&view)),
            Some(patience) => settled(&client, &self.at, map, from, patience).await.map(|view| found(&view)),
        }
    }
}

/// Waits for the end of the change that leads from a version to the next.
async fn settled(
    client: &Client,
    at: &ControllerArgs,
    map: &MapId,
    from: u64,
    patience: Patience,
) -> Result<MapView, CommandError> {
    let bar = progress::steps("resharding");
    loop {
        let view = client.map(&at.controller, map).await.map_err(at.failed(map))?;
        let Some(pending) = view.pending.as_ref().filter(|pending| pending.to == from.saturating_add(1))
        else {
            bar.finish_and_clear();
            if view.version > from {
                return Ok(view);
            }
            let told = format!("the change was given up: version {} of map {map} holds", view.version);
            return Err(CommandError::Outcome(told));
        };
        let members: BTreeSet<&BaseUri> =
            view.shards.iter().chain(&pending.shards).map(|shard| &shard.instance).collect();
        bar.set_length(members.len() as u64);
        bar.set_position(pending.acks.len() as u64);
        bar.set_message(format!("{}, {} members", pending.phase.as_str(), members.len()));
        bar.tick();
        if !patience.pause().await {
            let told = format!("map {map} is still {} after the time to wait", pending.phase.as_str());
            return Err(CommandError::Outcome(told));
        }
    }
}

impl EndArgs {
    async fn answer(self) -> Result<Answer, CommandError> {
        let ended = self.at.client()?.end_map(&self.at.controller, &self.map).await;
        ended.map_err(self.at.failed(&self.map))?;
        Ok(Answer::found(json!({"map": self.map, "ended": true}), format!("{} has ended", self.map)))
    }
}

fn found(view: &MapView) -> Answer {
    Answer::found(json!(view), text(view))
}

fn list_text(list: &MapList) -> String {
    if list.maps.is_empty() {
        return "no maps".to_owned();
    }
    list.maps.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// One line for the map and one for each shard.
fn text(view: &MapView) -> String {
    let mut text = format!("{}  version {}", view.map, view.version);
    if let Some(session) = view.session.filter(|session| session.to_string() != view.map.as_str()) {
        text.push_str(&format!(", session {session}"));
    }
    if let Some(pending) = &view.pending {
        text.push_str(&format!(
            ", {} version {}: {} acknowledged",
            pending.phase.as_str(),
            pending.to,
            pending.acks.len()
        ));
    }
    for Shard { tokens, instance } in &view.shards {
        text.push_str(&format!("\n  {tokens}  {instance}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use kvsp_proto::id::{CompatId, ScopeId};
    use kvsp_proto::message::{PendingReshard, Phase};

    use super::*;

    #[test]
    fn shards_are_read_and_false_ones_are_not() {
        let read = shard("0-16=http://127.0.0.1:1/kvsp/").unwrap();
        assert_eq!((read.tokens.start(), read.tokens.end()), (0, 16));
        assert_eq!(read.instance.as_str(), "http://127.0.0.1:1/kvsp/");
        for bad in ["", "0-16", "16-16=http://h/", "16-0=http://h/", "a-b=http://h/", "0-16=h", "=http://h/"]
        {
            assert!(shard(bad).is_err(), "{bad}");
        }
        let gap = ["0-16=http://h/", "17-20=http://h/"].map(|text| shard(text).unwrap());
        assert!(ShardArgs { shards: gap.to_vec() }.split().is_err());
    }

    #[test]
    fn a_map_is_a_line_and_one_for_each_shard() {
        let shards = vec![shard("0-16=http://a/").unwrap(), shard("16-20=http://b/").unwrap()];
        let mut view = MapView {
            map: "book".parse().unwrap(),
            version: 4,
            shards: shards.clone(),
            compat_id: CompatId([1; 32]),
            scope_id: ScopeId([2; 16]),
            session: None,
            attempt: None,
            pending: None,
        };
        assert_eq!(text(&view), "book  version 4\n  0-16  http://a/\n  16-20  http://b/");
        view.session = Some(Uuid::nil());
        view.pending =
            Some(PendingReshard { to: 5, shards, phase: Phase::Committing, acks: Vec::new(), attempt: None });
        let first = format!("book  version 4, session {}, committing version 5: 0 acknowledged", Uuid::nil());
        assert_eq!(text(&view).lines().next(), Some(first.as_str()));
        assert_eq!(list_text(&MapList { maps: Vec::new() }), "no maps");
    }
}
