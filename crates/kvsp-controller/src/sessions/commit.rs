//! One change of one session on its way to the disk.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use kvsp_core::session::{Change, Ticket};
use kvsp_store::state::StateError;
use tokio::runtime::Handle;

use super::codec::{self, HeadRows};
use crate::service::ControllerService;

/// Resolves once the change is on stable storage, and the machine knows. It cannot be abandoned: a request that
/// goes away leaves it to a task of its own, because a session takes no other change before this one has ended.
pub(crate) struct Commit {
    service: Arc<ControllerService>,
    shard: usize,
    ticket: Ticket,
    heads: HeadRows,
    committing: Option<Committing>,
    /// It is a task's already, which ends early with the runtime only.
    detached: bool,
}

type Committing = Pin<Box<dyn Future<Output = Result<(), StateError>> + Send>>;

impl Commit {
    /// The commit of `changes` of sessions of one shard, whose heads take so many rows before.
    pub(super) fn new(
        service: &Arc<ControllerService>,
        shard: usize,
        ticket: Ticket,
        changes: &[Change],
        mut heads: HeadRows,
    ) -> Self {
        let committing: Committing = match codec::rows(changes, &mut heads) {
            Ok(rows) => {
                let commits = service.sessions.commits.clone();
                Box::pin(async move { commits.commit(rows).await })
            }
            Err(error) => {
                tracing::error!(%error, "a session could not be written as rows");
                Box::pin(std::future::ready(Err(StateError::BadRow("not JSON"))))
            }
        };
        Self {
            service: Arc::clone(service),
            shard,
            ticket,
            heads,
            committing: Some(committing),
            detached: false,
        }
    }

    /// Leaves it to a task of its own; its outcome is told to the machine.
    pub(super) fn detach(mut self, runtime: &Handle) {
        self.detached = true;
        let tasks = self.service.sessions.tasks.clone();
        tasks.spawn_on(async move { drop(self.await) }, runtime);
    }
}

impl Future for Commit {
    type Output = Result<(), StateError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(committing) = &mut self.committing else { return Poll::Ready(Err(StateError::Stopped)) };
        let result = ready!(committing.as_mut().poll(context));
        self.committing = None;
        self.service.committed(self.shard, self.ticket, &self.heads, result.as_ref().err());
        Poll::Ready(result)
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        // Without a runtime the process is at its end, and with it the machine.
        if let (Some(committing), Ok(runtime)) = (self.committing.take(), Handle::try_current()) {
            let rest = Self {
                service: Arc::clone(&self.service),
                shard: self.shard,
                ticket: self.ticket,
                heads: std::mem::take(&mut self.heads),
                committing: Some(committing),
                detached: true,
            };
            rest.detach(&runtime);
        }
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit")
            .field("shard", &self.shard)
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}
