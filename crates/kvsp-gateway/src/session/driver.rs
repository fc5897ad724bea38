//! One session's way from the instances that serve it, one after the other, into its transcript.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::TokenStream;
use kvsp_core::session::{Delivery, Taken};
use kvsp_openai::FinishReason;
use kvsp_proto::message::{SessionState, SessionView, TokenEvent};
use kvsp_proto::problem::ProblemType;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connect::{NoStream, Original};
use super::render::Renderer;
use super::transcript::End;
use super::watch::{Told, Watch};
use super::{Continuation, Session};
use crate::Gateway;

/// First pause before an instance is tried again; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time for the controller to take a report: it asks the instance before it answers.
const REPORT: Duration = Duration::from_millis(500);
/// Time for the end to follow the last token that the limit allows.
const LAST_WORD: Duration = Duration::from_millis(500);

/// What a driver starts with.
pub(crate) struct Start {
    pub(crate) session: Arc<Session>,
    pub(crate) continuation: Continuation,
    pub(crate) delivery: Delivery,
    pub(crate) watch: Watch,
    /// Absent after a restart of the gateway.
    pub(crate) original: Option<Original>,
    /// The stream from the first token on, where it is open.
    pub(crate) stream: Option<TokenStream>,
    pub(crate) room: OwnedSemaphorePermit,
}

/// Reads the tokens of one session.
pub(crate) struct Driver {
    gateway: Arc<Gateway>,
    session: Arc<Session>,
    delivery: Delivery,
    renderer: Renderer,
    original: Option<Original>,
    watch: Watch,
    pause: Duration,
    /// The last sign of progress before the stream was lost, until there is progress again.
    cut: Option<Instant>,
    /// Whether the loss of the stream was told, until there is progress again.
    is_told: bool,
    progress: Instant,
    /// When the last token came that the limit allows.
    full: Option<Instant>,
    /// Prompt tokens whose KV was reused, where an instance has told.
    cached: Option<u64>,
}

/// What a driver does next.
#[derive(Debug)]
enum Step {
    /// The answer is over.
    End(End),
    /// Connect at once: the session has moved.
    Moved,
    /// Connect again after a pause.
    Retry,
    /// Tell the controller that the stream is lost, then connect again.
    Report(String),
}

impl Driver {
    /// Runs a session until its answer is delivered or nobody waits for it any more. Where the gateway stops
    /// first, the session stays as it is at the controller, for a gateway that comes after.
    pub(crate) fn start(gateway: &Arc<Gateway>, start: Start) {
        let Start { session, continuation, delivery, watch, original, stream, room } = start;
        session.charge(original.as_ref().map_or(0, Original::octets));
        let stops = continuation.front_end.stops;
        let driver = Self {
            renderer: Renderer::new(gateway.tokenizer.clone(), stops, continuation.max_tokens),
            gateway: Arc::clone(gateway),
            session,
            delivery,
            original,
            watch,
            pause: FIRST_PAUSE,
            cut: None,
            is_told: false,
            progress: Instant::now(),
            full: None,
            cached: None,
        };
        gateway.counters.sessions.inc();
        gateway.tasks.spawn(async move {
            driver.run(stream).await;
            drop(room);
        });
    }

    async fn run(mut self, stream: Option<TokenStream>) {
        let (gateway, session) = (Arc::clone(&self.gateway), Arc::clone(&self.session));
        let over = gateway.stop.run_until_cancelled(self.serve(stream)).await.is_some();
        gateway.counters.sessions.dec();
        if !over && !session.is_delivered() {
            tracing::info!(session = %session.id(), "a session is left to the gateway that comes after");
            return;
        }
        gateway.end_session(session.id(), self.delivery.instance()).await;
        if session.is_kept() {
            gateway.registry.retire(session.id());
        } else {
            gateway.registry.remove(session.id());
        }
    }

    /// Until the session is to be ended.
    async fn serve(&mut self, stream: Option<TokenStream>) {
        let session = Arc::clone(&self.session);
        let ended = tokio::select! {
            end = self.deliver(stream) => Some(end),
            () = session.abandoned() => None,
        };
        let Some(end) = ended else {
            self.gateway.counters.sessions_abandoned.inc();
            tracing::info!(session = %session.id(), "nobody came back for an answer: its session is ended");
            self.gateway.registry.remove(session.id());
            session.finish(End::Failed("the client went away, and the session was ended".into()));
            return;
        };
        if let End::Failed(why) = &end {
            tracing::warn!(session = %session.id(), why, "a session broke off");
            self.gateway.counters.session_failures.inc();
        }
        session.finish(end);
        // A client that has not got the answer may come back for it, also to a gateway that was started again.
        tokio::select! {
            () = session.delivered() => {}
            () = session.abandoned() => {}
        }
    }

    async fn deliver(&mut self, mut stream: Option<TokenStream>) -> End {
        loop {
            let step = match stream.take() {
                Some(open) => self.read(open).await,
                None => match self.connect().await {
                    Ok(open) => {
                        stream = Some(open);
                        continue;
                    }
                    Err(step) => step,
                },
            };
            if !matches!(step, Step::End(_)) {
                self.cut.get_or_insert(self.progress);
                if self.full.is_some() {
                    return self.finished(FinishReason::Length, None);
                }
            }
            if let Some(end) = self.take(step).await {
                return end;
            }
        }
    }

    /// Does what comes before the next connection; the end, where there will be none.
    async fn take(&mut self, step: Step) -> Option<End> {
        let reported = match step {
            Step::End(end) => return Some(end),
            Step::Moved => return None,
            Step::Retry => Ok(()),
            Step::Report(why) => {
                self.tell_loss(&why);
                self.report().await
            }
        };
        let patience = Duration::from_millis(self.gateway.config.stalled_ms);
        if self.cut.is_some_and(|cut| cut.elapsed() >= patience) {
            return Some(failed("no instance went on with the answer in time"));
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        let paused = match reported {
            Ok(()) => self.unless_told(sleep(pause)).await,
            Err(step) => Err(step),
        };
        match paused {
            Err(Step::End(end)) => Some(end),
            // Whatever else was told, the next thing is to connect.
            Ok(()) | Err(_) => None,
        }
    }

    /// Waits for a future, unless the controller tells something that makes it void.
    async fn unless_told<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Step> {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                told = self.watch.next() => match told {
                    Told::View(view) => self.told(view).map_or(Ok(()), Err)?,
                    Told::Unknown => return Err(Step::End(forgotten())),
                },
                output = &mut future => return Ok(output),
            }
        }
    }

    /// The controller tells how the session stands.
    fn told(&mut self, view: SessionView) -> Option<Step> {
        if view.epoch < self.delivery.epoch() {
            return None;
        }
        match view.state {
            SessionState::Failed => {
                let reason = view.reason.unwrap_or_else(|| "no instance could go on with it".into());
                return Some(Step::End(failed(&format!("the session failed: {reason}"))));
            }
            SessionState::Done => return Some(Step::End(failed("the session was ended elsewhere"))),
            SessionState::Running | SessionState::Resuming => {}
        }
        if !self.delivery.raised(view.epoch, view.instance) {
            return None;
        }
        self.gateway.counters.session_failovers.inc();
        self.pause = FIRST_PAUSE;
        Some(Step::Moved)
    }

    /// Once for each cut: what follows are attempts to mend it.
    fn tell_loss(&mut self, why: &str) {
        let (session, instance) = (self.session.id(), self.delivery.instance());
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(%session, %instance, why, "no stream of the session again");
        } else {
            tracing::info!(%session, %instance, why, "the stream of a session is lost");
        }
    }

    async fn report(&mut self) -> Result<(), Step> {
        let gateway = Arc::clone(&self.gateway);
        let (session, epoch) = (self.session.id(), self.delivery.epoch());
        let report = timeout(REPORT, gateway.client.report_broken(&gateway.controller, session, epoch));
        match self.unless_told(report).await? {
            Ok(Ok(view)) => self.told(view).map_or(Ok(()), Err),
            Ok(Err(error)) if error.problem_type() == Some(ProblemType::SessionUnknown) => {
                Err(Step::End(forgotten()))
            }
            // The controller is away, lacks the extension, or knows better: the watch goes on.
            Ok(Err(_)) | Err(_) => Ok(()),
        }
    }

    async fn connect(&mut self) -> Result<TokenStream, Step> {
        let gateway = Arc::clone(&self.gateway);
        let original = self.original.take();
        let (session, epoch, from) = (self.session.id(), self.delivery.epoch(), self.delivery.next());
        let instance = self.delivery.instance().clone();
        let connecting = gateway.reconnect(session, epoch, &instance, from, original.as_ref());
        let connected = self.unless_told(connecting).await;
        self.original = original;
        match connected? {
            Ok(stream) => {
                self.gateway.counters.session_reconnects.inc();
                Ok(stream)
            }
            Err(NoStream::NotYet(why)) => {
                tracing::debug!(%session, why, "no stream yet");
                Err(Step::Retry)
            }
            Err(NoStream::Lost(why)) => Err(Step::Report(why)),
            Err(NoStream::Moved(view)) => Err(self.told(view).unwrap_or(Step::Retry)),
            Err(NoStream::Unknown) => Err(Step::End(forgotten())),
            Err(NoStream::Never(why)) => Err(Step::End(failed(&why))),
        }
    }

    /// Reads a stream to its end, or until the session moves.
    async fn read(&mut self, mut stream: TokenStream) -> Step {
        let mut known = true;
        loop {
            let last_word = self.full.map(|full| full + LAST_WORD);
            let step = tokio::select! {
                biased;
                told = self.watch.next() => match told {
                    Told::View(view) => self.told(view),
                    // What streams may go on; once it ends nothing will follow.
                    Told::Unknown => {
                        known = false;
                        None
                    }
                },
                event = stream.next() => match event {
                    Some(Ok(event)) => self.event(event),
                    Some(Err(_)) | None if !known => Some(Step::End(forgotten())),
                    Some(Err(error)) => Some(Step::Report(error.to_string())),
                    None => Some(Step::Report("the stream ended before the answer did".into())),
                },
                () = sleep_until(last_word.unwrap_or_else(Instant::now)), if last_word.is_some() => {
                    Some(Step::End(self.finished(FinishReason::Length, None)))
                }
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    fn event(&mut self, event: TokenEvent) -> Option<Step> {
        match event {
            TokenEvent::Token { index, epoch, token, reused, .. } => {
                // What the instance that took the prompt says counts, whoever goes on with it.
                self.cached = self.cached.or(reused);
                self.token(epoch, index, token)
            }
            TokenEvent::Done { epoch, .. } if epoch.is_some_and(|epoch| epoch < self.delivery.epoch()) => {
                None
            }
            TokenEvent::Done { done, reused, .. } => Some(Step::End(match done.as_str() {
                "stop" => self.finished(FinishReason::Stop, reused),
                "length" => self.finished(FinishReason::Length, reused),
                other => failed(&format!("the instance ended the output: {other}")),
            })),
        }
    }

    fn token(&mut self, epoch: u64, index: u64, token: u32) -> Option<Step> {
        match self.delivery.token(epoch, index, token) {
            Ok(Taken::New) => {}
            Ok(Taken::Duplicate | Taken::Stale) => return None,
            Ok(Taken::Ahead) => return Some(Step::Retry),
            Err(mismatch) => return Some(Step::End(failed(&mismatch.to_string()))),
        }
        if self.renderer.is_full() {
            return Some(Step::End(self.finished(FinishReason::Length, None)));
        }
        let rendered = match self.renderer.push(token) {
            Ok(rendered) => rendered,
            Err(error) => return Some(Step::End(failed(&error.to_string()))),
        };
        self.session.push(&rendered.text);
        self.advanced();
        if rendered.stopped {
            let (rest, reason) = (String::new(), FinishReason::Stop);
            return Some(Step::End(End::Finished { rest, reason, cached: self.cached }));
        }
        if self.renderer.is_full() {
            self.full = Some(Instant::now());
        }
        None
    }

    /// A token has come, the first after a cut perhaps.
    fn advanced(&mut self) {
        self.progress = Instant::now();
        self.pause = FIRST_PAUSE;
        self.is_told = false;
        if let Some(cut) = self.cut.take() {
            self.gateway.counters.session_gaps.observe(cut.elapsed().as_secs_f64());
        }
    }

    /// The end of an output that ends by itself.
    fn finished(&mut self, reason: FinishReason, cached: Option<u64>) -> End {
        match self.renderer.finish() {
            Ok(rest) => {
                let reason = if rest.stopped { FinishReason::Stop } else { reason };
                End::Finished { rest: rest.text, reason, cached: self.cached.or(cached) }
            }
            Err(error) => failed(&error.to_string()),
        }
    }
}

fn failed(why: &str) -> End {
    End::Failed(why.to_owned())
}

fn forgotten() -> End {
    failed("the controller does not know the session any more")
}
