//! The long poll by which a session's driver learns of a raised epoch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::{Client, ClientError};
use kvsp_proto::message::SessionView;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Gateway;

/// The longest wait that the controller allows.
const LONG_WAIT: Duration = Duration::from_secs(30);
/// The wait where sessions take turns, because the polls of a gateway are few.
const SHORT_WAIT: Duration = Duration::from_millis(500);
/// First pause after a failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// An answer without news that came faster than this was no long poll's.
const HASTY: Duration = Duration::from_millis(200);

type Answer = Result<SessionView, ClientError>;

/// What the controller told.
#[derive(Debug)]
pub(crate) enum Told {
    /// How the session stands.
    View(SessionView),
    /// It does not know the session.
    Unknown,
}

/// The polls of a gateway. Each takes a connection of the controller, which needs some for placements, too.
#[derive(Clone)]
pub(crate) struct Polls {
    room: Arc<Semaphore>,
    max: usize,
}

impl Polls {
    /// At most `max` at a time, and at least one.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(max)), max }
    }

    /// How long a poll may wait while so many others go on.
    fn wait(&self) -> Duration {
        if self.room.available_permits() >= self.max / 2 && self.max > 1 { LONG_WAIT } else { SHORT_WAIT }
    }
}

/// One poll after the other, for as long as it is asked.
pub(crate) struct Watch {
    client: Client,
    controller: BaseUri,
    polls: Polls,
    session: Uuid,
    /// The highest epoch told.
    after: u64,
    asked: Instant,
    pause: Duration,
    pending: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

impl Watch {
    /// Watches for an epoch above `epoch`.
    pub(crate) fn new(gateway: &Gateway, session: Uuid, epoch: u64) -> Self {
        let mut watch = Self {
            client: gateway.client.clone(),
            controller: gateway.controller.clone(),
            polls: gateway.polls.clone(),
            session,
            after: epoch,
            asked: Instant::now(),
            pause: FIRST_PAUSE,
            pending: Box::pin(std::future::pending()),
        };
        watch.again(false);
        watch
    }

    /// What the controller tells next. It may be away meanwhile; then it is asked again and again. Dropping
    /// the future loses nothing.
    pub(crate) async fn next(&mut self) -> Told {
        loop {
            let answer = (&mut self.pending).await;
            let hasty = self.asked.elapsed() < HASTY;
            let told = match answer {
                Ok(view) => {
                    let news = view.epoch > self.after || view.state.is_final();
                    self.after = self.after.max(view.epoch);
                    self.again(hasty && !news);
                    Some(Told::View(view))
                }
                Err(error) if error.problem_type() == Some(ProblemType::SessionUnknown) => {
                    self.again(true);
                    Some(Told::Unknown)
                }
                Err(error) => {
                    tracing::debug!(session = %self.session, %error, "the controller does not tell the epoch");
                    self.again(true);
                    None
                }
            };
            if let Some(told) = told {
                return told;
            }
        }
    }

    fn again(&mut self, pausing: bool) {
        let pause = if pausing { self.pause } else { Duration::ZERO };
        self.pause = if pausing { (self.pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        self.asked = Instant::now() + pause;
        let (client, controller, polls) = (self.client.clone(), self.controller.clone(), self.polls.clone());
        let (session, after) = (self.session, self.after);
        self.pending = Box::pin(async move {
            tokio::time::sleep(pause).await;
            // The semaphore is never closed.
            let _turn = polls.room.acquire().await.ok();
            client.await_epoch(&controller, session, after, polls.wait()).await
        });
    }
}
