//! The task of a session: tokens from the engine go into its output, checkpoints to the controller, one at a
//! time, and acknowledgements back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvsp_client::ClientError;
use kvsp_core::session::{Due, Finish, Refusal};
use kvsp_openai::FinishReason;
use kvsp_proto::message::{CheckpointAppend, SessionAck};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use tokio::sync::mpsc;

use super::acquire::{NoEngine, acquire};
use super::{Phase, Session, SessionCounters, stored};
use crate::Agent;
use crate::engine::Output;

/// How long a checkpoint may take before it is sent again.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Sends, where there is something to wait for; else waits for ever.
async fn pending_or<T>(future: &mut Option<Boxed<T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

struct Driver {
    agent: Arc<Agent>,
    controller: BaseUri,
    session: Arc<Session>,
    /// Tokens, while the engine computes.
    outputs: Option<mpsc::Receiver<Output>>,
    /// On its way into the engine.
    acquiring: Option<Boxed<Result<mpsc::Receiver<Output>, NoEngine>>>,
    /// A checkpoint without an answer.
    sending: Option<Boxed<Result<SessionAck, ClientError>>>,
    /// Whether the blocks of the prompt are stored elsewhere.
    storing: Option<Boxed<bool>>,
    /// Blocks of the prompt are known to be stored elsewhere.
    is_stored: bool,
    /// A checkpoint was acknowledged, here or to the instance before.
    is_recorded: bool,
    /// Tokens and end as the streams saw them last.
    shown: (u64, bool),
}

/// Begin to drive a session. `outputs`: what the engine gives, where it has taken the request; else it is brought
/// there first.
pub(super) fn spawn(
    agent: &Arc<Agent>,
    controller: BaseUri,
    session: Arc<Session>,
    outputs: Option<mpsc::Receiver<Output>>,
) {
    let is_resumed = outputs.is_none();
    let mut driver = Driver {
        agent: agent.clone(),
        controller,
        session,
        outputs,
        acquiring: None,
        sending: None,
        storing: None,
        is_stored: false,
        is_recorded: is_resumed,
        shown: (0, false),
    };
    agent.tasks.spawn(async move {
        let cancel = driver.session.cancel.clone();
        let end = tokio::select! {
            end = driver.run() => end,
            // Whoever cancels says why in the phase.
            () = cancel.cancelled() => return,
        };
        driver.session.stop(end);
    });
}

impl Driver {
    /// Run to the session's end here.
    async fn run(&mut self) -> Phase {
        if self.outputs.is_none() {
            self.begin_again();
        }
        loop {
            let wake = match self.turn().await {
                Turn::Until(wake) => wake,
                Turn::End(phase) => return phase,
            };
            tokio::select! {
                output = next_of(&mut self.outputs) => {
                    if let Some(end) = self.take(output) {
                        return end;
                    }
                    // Those that are there already cost no turn each.
                    while let Some(output) = self.outputs.as_mut().and_then(|o| o.try_recv().ok()) {
                        if let Some(end) = self.take(Some(output)) {
                            return end;
                        }
                    }
                }
                answer = pending_or(&mut self.sending) => {
                    self.sending = None;
                    self.answered(answer);
                }
                acquired = pending_or(&mut self.acquiring) => {
                    self.acquiring = None;
                    match acquired {
                        Ok(outputs) => {
                            self.outputs = Some(outputs);
                            self.session.set_in_engine(true);
                        }
                        Err(error) => return self.failed(&error.to_string()),
                    }
                }
                stored = pending_or(&mut self.storing) => {
                    self.storing = None;
                    self.is_stored = stored;
                    let now = self.agent.clock.now();
                    self.session.with(|state| state.output.blocks_stored(now));
                }
                () = until(wake) => {}
            }
        }
    }

    /// Go on where another instance stopped; that may have been at the end.
    fn begin_again(&mut self) {
        let now = self.agent.clock.now();
        let max = self.session.facts.max_tokens;
        let complete = self.session.with(|state| {
            let complete = state.output.tokens().len() >= max;
            if complete {
                state.output.finish(Finish::Length, now);
            }
            complete
        });
        if !complete {
            self.reacquire();
        }
    }

    fn reacquire(&mut self) {
        self.outputs = None;
        self.session.set_in_engine(false);
        self.acquiring = Some(Box::pin(acquire(self.agent.clone(), self.session.clone())));
    }

    /// Do what is due, and tell the streams and the engine what has changed.
    async fn turn(&mut self) -> Turn {
        let (agent, session) = (self.agent.clone(), self.session.clone());
        let now = agent.clock.now();
        let (due, seen, limit, fenced, finished, timeout) = session.with(|state| {
            let due =
                state.output.poll_checkpoint(now).map(|due| (due, tokens_of(state.output.tokens(), due)));
            let output = &state.output;
            let seen = (output.released(), output.finished().is_some());
            let timeout = output.poll_timeout();
            (due, seen, output.may_compute_to(), output.is_fenced(), output.finished(), timeout)
        });
        if let Some((due, tokens)) = due {
            self.send(due, tokens);
        }
        if session.pace.raise(limit) {
            // An engine that has stopped ends the outputs, which is heard of there.
            let _ = agent.engine.wake().await;
        }
        if let Some(refusal) = fenced {
            return Turn::End(self.fenced(refusal));
        }
        if finished.is_some() && self.sending.is_none() {
            return Turn::End(Phase::Finished(now));
        }
        if seen != self.shown {
            self.shown = seen;
            session.changed.send_replace(());
        }
        Turn::Until(timeout.map(|at| at.since(now)))
    }

    /// Take what the engine gave; the phase in which the session ends with it, if it does.
    fn take(&mut self, output: Option<Output>) -> Option<Phase> {
        let now = self.agent.clock.now();
        match output {
            Some(Output::Started { reused }) => {
                self.session.with(|state| state.reused = reused as u64);
                if self.session.facts.map.is_some() {
                    // Its blocks are its members', by token range; nothing of it is stored under block keys.
                    self.is_stored = true;
                    self.session.with(|state| state.output.blocks_stored(now));
                } else if !self.is_recorded {
                    self.storing = Some(Box::pin(stored::wait(self.agent.clone(), self.session.clone())));
                }
            }
            Some(Output::Token(token)) => self.session.with(|state| state.output.token(token, now)),
            Some(Output::Finished(reason)) => {
                self.outputs = None;
                let finish = match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                };
                self.session.with(|state| state.output.finish(finish, now));
            }
            Some(Output::NeedsPrompt) => {
                self.session.lost.fetch_add(1, Ordering::Relaxed);
                self.reacquire();
                return None;
            }
            Some(Output::Failed(why)) => return Some(self.failed(&why)),
            None => return Some(self.failed("the engine has stopped")),
        }
        None
    }

    fn send(&mut self, due: Due, tokens: Vec<u32>) {
        let counters = &self.agent.sessions.counters;
        SessionCounters::count(&counters.checkpoints);
        if !self.is_recorded && !self.is_stored && !self.session.facts.prompt_blocks.is_empty() {
            SessionCounters::count(&counters.blocks_not_stored);
            // Without a holder that was said once, at the start.
            if self.agent.copies.is_some() {
                tracing::warn!(
                    session = %self.session.facts.id,
                    "a checkpoint names blocks that are stored in this process alone"
                );
            }
        }
        let (client, controller) =
            (self.agent.client.with_timeout(CHECKPOINT_TIMEOUT), self.controller.clone());
        let facts = &self.session.facts;
        let sampler = facts.sampler_at(due.to);
        if due.whole {
            let checkpoint = SessionCheckpoint {
                session: facts.id,
                epoch: facts.epoch,
                compat_id: self.agent.descriptor.compat_id(),
                scope_id: facts.scope.scope_id(),
                prompt_blocks: facts.prompt_blocks.clone(),
                prompt_tail: facts.prompt_tail.clone(),
                generated: tokens,
                output_offset: due.to,
                sampler,
            };
            self.sending =
                Some(Box::pin(async move { client.put_checkpoint(&controller, &checkpoint).await }));
        } else {
            let id = facts.id;
            let append =
                CheckpointAppend { epoch: facts.epoch, from_offset: due.from, append: tokens, sampler };
            self.sending =
                Some(Box::pin(async move { client.patch_checkpoint(&controller, id, &append).await }));
        }
    }

    fn answered(&mut self, answer: Result<SessionAck, ClientError>) {
        let now = self.agent.clock.now();
        let refusal = match answer {
            Ok(ack) if ack.epoch == self.session.facts.epoch => {
                self.is_recorded = true;
                self.storing = None;
                return self.session.with(|state| state.output.acknowledged(ack.output_offset, now));
            }
            Ok(_) => Refusal::Failed,
            Err(error) => {
                tracing::warn!(session = %self.session.facts.id, %error, "a checkpoint was not acknowledged");
                refusal(&error)
            }
        };
        SessionCounters::count(&self.agent.sessions.counters.checkpoints_failed);
        self.session.with(|state| state.output.refused(refusal, now));
    }

    /// The session is no longer this instance's; one that has ended is forgotten.
    fn fenced(&self, refusal: Refusal) -> Phase {
        let now = self.agent.clock.now();
        tracing::warn!(session = %self.session.facts.id, ?refusal, "the session is given up");
        if refusal == Refusal::Gone {
            self.agent.sessions.forget(&self.session);
            return Phase::Failed(now);
        }
        SessionCounters::count(&self.agent.sessions.counters.fenced);
        Phase::Fenced(now)
    }

    fn failed(&self, why: &str) -> Phase {
        tracing::error!(session = %self.session.facts.id, why, "a session cannot go on here");
        Phase::Failed(self.agent.clock.now())
    }
}

/// What a turn came to.
enum Turn {
    /// Nothing more is due before this time has passed.
    Until(Option<Duration>),
    End(Phase),
}

async fn until(wake: Option<Duration>) {
    match wake {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

async fn next_of(outputs: &mut Option<mpsc::Receiver<Output>>) -> Option<Output> {
    match outputs {
        Some(outputs) => outputs.recv().await,
        None => std::future::pending().await,
    }
}

fn tokens_of(tokens: &[u32], due: Due) -> Vec<u32> {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(tokens.len());
    tokens.get(at(due.from)..at(due.to)).unwrap_or_default().to_vec()
}

/// What an error says of the session.
fn refusal(error: &ClientError) -> Refusal {
    match error.problem_type() {
        // Not this instance's session: another has it.
        Some(ProblemType::StaleEpoch | ProblemType::NotHolder) => Refusal::Stale,
        Some(ProblemType::SessionUnknown) => Refusal::Gone,
        // The same again would be refused again.
        Some(
            ProblemType::CheckpointConflict | ProblemType::InvalidCheckpoint | ProblemType::LimitExceeded,
        ) => Refusal::Conflict,
        _ => Refusal::Failed,
    }
}
