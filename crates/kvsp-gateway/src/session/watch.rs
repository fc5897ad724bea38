//! The long poll by which a session's driver learns of a raised epoch.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use kvsp_client::{Client, ClientError};
use kvsp_proto::message::SessionView;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use tokio::time::Instant;
use uuid::Uuid;

/// The longest wait that the controller allows.
const WAIT: Duration = Duration::from_secs(30);
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

/// One poll after the other, for as long as it is asked.
pub(crate) struct Watch {
    client: Client,
    controller: BaseUri,
    session: Uuid,
    /// The highest epoch told.
    after: u64,
    asked: Instant,
    pause: Duration,
    pending: Pin<Box<dyn Future<Output = Answer> + Send>>,
}

impl Watch {
    /// Watches for an epoch above `epoch`.
    pub(crate) fn new(client: Client, controller: BaseUri, session: Uuid, epoch: u64) -> Self {
        let pending = poll(client.clone(), controller.clone(), session, epoch, Duration::ZERO);
        let asked = Instant::now();
        Self { client, controller, session, after: epoch, asked, pause: FIRST_PAUSE, pending }
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
        let (client, controller) = (self.client.clone(), self.controller.clone());
        self.pending = poll(client, controller, self.session, self.after, pause);
    }
}

fn poll(
    client: Client,
    controller: BaseUri,
    session: Uuid,
    after: u64,
    pause: Duration,
) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
    Box::pin(async move {
        tokio::time::sleep(pause).await;
        client.await_epoch(&controller, session, after, WAIT).await
    })
}
