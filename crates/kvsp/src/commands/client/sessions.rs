//! `kvsp sessions`.

use kvsp_proto::message::{SessionList, SessionView};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use uuid::Uuid;

use super::Answer;
use super::error::CommandError;
use super::peers::PeerArgs;

/// What is asked about sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// All that the caller may see, ordered by identifier.
    List,
    /// One.
    Show,
}

/// Arguments of `kvsp sessions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp sessions --controller http://127.0.0.1:7703/kvsp/
  kvsp sessions show 6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11 --controller http://127.0.0.1:7703/kvsp/ --json

A session's epoch is raised with each attempt to have another instance go on with it, and once more where that is
given up. A session is done when its answer was delivered, or when nobody came back for it. Its tokens are not shown.
Exit status 5 where the session is unknown.")]
pub(crate) struct SessionsArgs {
    /// `list`, or `show` with a session's identifier.
    #[arg(value_enum, default_value_t = What::List)]
    what: What,
    /// The session, a UUID.
    #[arg(value_name = "ID", required_if_eq("what", "show"), value_parser = session_id)]
    session: Option<Uuid>,
    /// The Placement Controller.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: BaseUri,
    #[command(flatten)]
    peers: PeerArgs,
}

fn session_id(text: &str) -> Result<Uuid, &'static str> {
    text.parse().map_err(|_| "a session's name is a UUID, such as `kvsp sessions` lists")
}

impl SessionsArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let controller = &self.controller;
        let client = self.peers.client([controller])?;
        let failed = CommandError::peer(controller);
        match (self.what, self.session) {
            (What::List, None) => {
                let list = client.sessions(controller).await.map_err(failed)?;
                Ok(Answer::found(json!(list), list_text(&list)))
            }
            (What::Show, Some(session)) => match client.session(controller, session).await {
                Ok(view) => Ok(Answer::found(json!(view), line(&view))),
                Err(error) if error.problem_type() == Some(ProblemType::SessionUnknown) => {
                    Err(CommandError::Miss(format!("{controller} knows no session {session}")))
                }
                Err(error) => Err(failed(error)),
            },
            (What::List, Some(_)) => Err(CommandError::Usage("list takes no identifier; show does")),
            // The command line demands it.
            (What::Show, None) => Err(CommandError::Usage("show takes a session's identifier")),
        }
    }
}

fn list_text(list: &SessionList) -> String {
    if list.sessions.is_empty() {
        return "no sessions".to_owned();
    }
    let lines: Vec<String> = list.sessions.iter().map(line).collect();
    lines.join("\n")
}

fn line(view: &SessionView) -> String {
    let mut text = format!(
        "{}  {:<8}  epoch {}, {} output tokens recorded, at {}",
        view.session,
        view.state.as_str(),
        view.epoch,
        view.output_offset,
        view.instance,
    );
    if let Some(needs) = view.needs {
        text.push_str(&format!(", waits for the {}", needs.as_str()));
    }
    if let Some(reason) = &view.reason {
        text.push_str(&format!(": {reason}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use kvsp_proto::message::{Needs, SessionState};

    use super::*;

    #[test]
    fn a_session_is_one_line() {
        let view = SessionView {
            session: Uuid::nil(),
            epoch: 2,
            instance: "http://127.0.0.1:9/kvsp/".parse().unwrap(),
            state: SessionState::Resuming,
            output_offset: 7,
            needs: Some(Needs::Prompt),
            reason: None,
        };
        let told =
            "resuming  epoch 2, 7 output tokens recorded, at http://127.0.0.1:9/kvsp/, waits for the prompt";
        assert_eq!(line(&view), format!("{}  {told}", Uuid::nil()));
        let failed = SessionView {
            state: SessionState::Failed,
            needs: None,
            reason: Some("no instance".to_owned()),
            ..view
        };
        assert!(line(&failed).ends_with("/kvsp/: no instance"));
        assert_eq!(list_text(&SessionList { sessions: Vec::new() }), "no sessions");
        assert_eq!(list_text(&SessionList { sessions: vec![failed.clone(), failed] }).lines().count(), 2);
    }
}
