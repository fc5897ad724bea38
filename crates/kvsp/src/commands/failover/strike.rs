//! The blow, and what the controller and the client see of it.

use std::time::{Duration, Instant};

use kvsp_client::Client;
use kvsp_proto::message::{SessionState, SessionView};
use kvsp_proto::uri::BaseUri;
use nix::sys::signal::Signal;
use uuid::Uuid;

use super::FailoverError;
use super::stream::{Heard, Question, Stream};
use crate::commands::fleet::Fleet;

/// How long one question for a raised epoch waits.
const WAIT: Duration = Duration::from_secs(30);
/// Between two looks at a session that is being resumed.
const LOOK: Duration = Duration::from_millis(1);

/// Whom the question is asked, and whom the controller is.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) controller: BaseUri,
    pub(crate) gateway: BaseUri,
}

/// What is done to the instance that serves the answer, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strike {
    /// Once the client has so many output tokens.
    pub(crate) after_tokens: u64,
    /// SIGKILL or SIGSTOP.
    pub(crate) signal: Signal,
}

/// An answer whose instance was struck, and what came of it.
#[derive(Debug)]
pub(crate) struct Struck {
    pub(crate) heard: Heard,
    /// Who was struck.
    pub(crate) instance: BaseUri,
    at: Instant,
    /// Output tokens that the client had then.
    pub(crate) tokens: u64,
    after: After,
}

/// What the controller did.
#[derive(Debug)]
struct After {
    /// When its long poll told of the new epoch.
    raised: Instant,
    /// When it said that another instance serves the session.
    running: Instant,
    epoch: u64,
    recorded: u64,
}

impl Strike {
    /// Asks, strikes, and hears the answer to its end.
    ///
    /// # Errors
    /// [`FailoverError::TooLate`] where no other instance had to go on.
    pub(crate) async fn run(
        self,
        stage: &Stage,
        fleet: &Fleet,
        question: &Question,
    ) -> Result<Struck, FailoverError> {
        let mut stream = Stream::open(&stage.client, &stage.gateway, question).await?;
        let session = stream.session.ok_or(FailoverError::NoSession)?;
        let before = stage.client.session(&stage.controller, session).await?;
        let mut watching = tokio::spawn(watch(stage.clone(), session, before.epoch));
        let struck = async {
            let (mut heard, mut blow) = (Heard::default(), None);
            while stream.hear(&mut heard).await? {
                if blow.is_none() && heard.tokens() >= self.after_tokens {
                    fleet.signal(&before.instance, self.signal)?;
                    blow = Some((Instant::now(), heard.tokens()));
                }
            }
            blow.map(|blow| (heard, blow)).ok_or(FailoverError::TooLate)
        };
        let (heard, (at, tokens)) = match struck.await {
            Ok(struck) => struck,
            Err(error) => {
                watching.abort();
                return Err(error);
            }
        };
        // The answer is whole, so the epoch was raised by now or never will be.
        let after = match tokio::time::timeout(Duration::from_secs(1), &mut watching).await {
            Ok(watched) => watched.map_err(|error| FailoverError::Answer(error.to_string()))??,
            Err(_) => {
                watching.abort();
                return Err(FailoverError::TooLate);
            }
        };
        Ok(Struck { heard, instance: before.instance, at, tokens, after })
    }
}

/// Waits for a raised epoch, and until an instance serves it.
async fn watch(stage: Stage, session: Uuid, epoch: u64) -> Result<After, FailoverError> {
    let Stage { client, controller, .. } = stage;
    let mut view = client.await_epoch(&controller, session, epoch, WAIT).await?;
    while view.epoch <= epoch && !view.state.is_final() {
        view = client.await_epoch(&controller, session, epoch, WAIT).await?;
    }
    let (raised, recorded) = (Instant::now(), view.output_offset);
    while view.state == SessionState::Resuming {
        tokio::time::sleep(LOOK).await;
        view = client.session(&controller, session).await?;
    }
    let SessionView { epoch: now, state, reason, .. } = view;
    match state {
        SessionState::Failed => Err(FailoverError::Failed(reason.unwrap_or_default())),
        _ if now <= epoch => Err(FailoverError::TooLate),
        _ => Ok(After { raised, running: Instant::now(), epoch: now, recorded }),
    }
}

impl Struck {
    /// From the blow to the next token at the client: the first that the other instance generated. Those that
    /// were recorded and not delivered yet come before, and so may what was on its way when the blow fell.
    pub(crate) fn to_next_token(&self) -> Duration {
        self.next().saturating_duration_since(self.at)
    }

    /// From the blow until the controller had found another instance, with the new epoch on stable storage.
    pub(crate) fn detection(&self) -> Duration {
        self.after.raised.saturating_duration_since(self.at)
    }

    /// From there until that instance had taken the session.
    pub(crate) fn resume(&self) -> Duration {
        self.after.running.min(self.next()).saturating_duration_since(self.after.raised)
    }

    /// From there to the next token at the client: blocks loaded, the rest recomputed, one token generated,
    /// recorded and delivered.
    pub(crate) fn recompute(&self) -> Duration {
        self.next().saturating_duration_since(self.after.running.max(self.after.raised))
    }

    /// The longest time without an event that the client saw from the blow on.
    pub(crate) fn gap(&self) -> Duration {
        self.heard.longest_gap(self.at)
    }

    /// The epoch that brought the answer to its end.
    pub(crate) const fn epoch(&self) -> u64 {
        self.after.epoch
    }

    /// Output tokens that were recorded when the next instance was chosen.
    pub(crate) const fn recovered(&self) -> u64 {
        self.after.recorded
    }

    fn next(&self) -> Instant {
        let mut events = self.heard.events.iter();
        let next = events.find(|event| event.at > self.after.raised && event.tokens > self.after.recorded);
        next.or(self.heard.events.last()).map_or(self.after.running, |event| event.at)
    }
}
