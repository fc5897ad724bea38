//! `kvsp events`.

use std::fmt;

use kvsp_client::{EventsQuery, IndexEvent};
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use super::error::CommandError;
use super::peers::PeerArgs;
use crate::commands::stdout;

/// Arguments of `kvsp events`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp events --index http://127.0.0.1:7701/kvsp/
  kvsp events --index http://127.0.0.1:7701/kvsp/ --scope $SCOPE --count 10 --json

One line a change: publish, withdraw, expire, or resync where changes were missed and what is kept of the index
has to be read anew. With --json each line is an object, whose `cursor` goes on from there with --after. A stream
that breaks is followed again from where it was, until it is stopped.")]
pub(crate) struct EventsArgs {
    /// The Index Service.
    #[arg(long, value_name = "URI", env = "KVSP_INDEX")]
    index: BaseUri,
    /// Go on after this cursor; without it what comes from now on.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Of this scope alone.
    #[arg(long, value_name = "HEX")]
    scope: Option<ScopeId>,
    /// Of this compatibility alone.
    #[arg(long, value_name = "HEX")]
    compat: Option<CompatId>,
    /// Stop after so many changes.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[command(flatten)]
    peers: PeerArgs,
}

impl EventsArgs {
    /// Prints changes as they come.
    pub(super) async fn follow(self, json: bool) -> Result<(), CommandError> {
        let client = self.peers.client([&self.index])?;
        let query = EventsQuery { after: self.after, scope: self.scope, compat: self.compat };
        let mut events =
            client.index_events(&self.index, query).await.map_err(CommandError::peer(&self.index))?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            let event = events.next().await.map_err(CommandError::peer(&self.index))?;
            let line = Line::of(&event);
            let open = if json {
                stdout::print_line(&line.json(events.cursor()))
            } else {
                stdout::print_line(&line)
            };
            // Whoever closed the pipe has seen enough.
            if !open.map_err(CommandError::Stdout)? {
                return Ok(());
            }
            left -= 1;
        }
        Ok(())
    }
}

/// One change.
struct Line<'a> {
    kind: &'static str,
    replica: Option<&'a ReplicaName>,
}

impl<'a> Line<'a> {
    const fn of(event: &'a IndexEvent) -> Self {
        let (kind, replica) = match event {
            IndexEvent::Publish(replica) => ("publish", Some(replica)),
            IndexEvent::Withdraw(replica) => ("withdraw", Some(replica)),
            IndexEvent::Expire(replica) => ("expire", Some(replica)),
            IndexEvent::Resync => ("resync", None),
        };
        Self { kind, replica }
    }

    fn json(&self, cursor: Option<&str>) -> Value {
        let mut line = json!({"event": self.kind, "cursor": cursor});
        if let (Some(replica), Value::Object(members)) = (self.replica, &mut line) {
            members.insert("compat_id".to_owned(), json!(replica.compat_id));
            members.insert("scope_id".to_owned(), json!(replica.scope_id));
            members.insert("block_key".to_owned(), json!(replica.block_key));
            members.insert("holder".to_owned(), json!(replica.holder));
        }
        line
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replica {
            Some(replica) => write!(f, "{} {} {}", self.kind, replica.block_key, replica.holder),
            None => f.write_str(self.kind),
        }
    }
}
