//! The task that tells the index what it should know.

use std::sync::Arc;
use std::time::Duration;

use kvsp_client::ClientError;
use kvsp_core::time::Time;
use kvsp_proto::message::{BatchAnswer, BatchRequest, ReplicaName};
use kvsp_proto::problem::BatchItem;
use kvsp_proto::uri::BaseUri;
use kvsp_store::BlockName;
use tokio_util::sync::CancellationToken;

use super::desired::{Answer, Job, JobKind};
use crate::service::BlockService;

/// Items of one batch at most.
const MAX_ITEMS: usize = 1000;

/// ms for which a `Retry-After` of the index is believed at most.
const MAX_RETRY_MS: u64 = 60_000;

/// Octets of JSON of one batch, about: a record is as long as its list of layer digests.
const MAX_BATCH_OCTETS: u64 = 8 << 20;
const RECORD_OCTETS: u64 = 1024;
const LAYER_OCTETS: u64 = 67;

/// ms between two batches: what happens meanwhile goes in one.
const GATHER_MS: u64 = 2;

/// Longest sleep in ms; the clock of the service may be another than that of the runtime.
const MAX_SLEEP_MS: u64 = 1000;

/// ms that a stop waits for the batch that is on its way.
const FINISH_MS: u64 = 1000;

/// ms that a stop waits for the index.
const STOP_MS: u64 = 5000;

/// Drives the desired states of a service's blocks.
pub(crate) struct Publisher {
    service: Arc<BlockService>,
    /// Items of one batch that this index takes, as far as is known.
    max_items: usize,
}

impl Publisher {
    pub(crate) const fn new(service: Arc<BlockService>) -> Self {
        Self { service, max_items: MAX_ITEMS }
    }

    /// Runs until `stop`, then withdraws everything.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let Some(index) = self.service.config.index.clone() else {
            stop.cancelled().await;
            return;
        };
        self.service.state().desired.set_canary(self.service.config.canary_ms);
        while !stop.is_cancelled() {
            let next = self.service.state().desired.next();
            let wait =
                next.map_or(MAX_SLEEP_MS, |next| millis_until(self.service.now(), next).min(MAX_SLEEP_MS));
            if wait > 0 {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.service.news.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                }
                continue;
            }
            let mut step = std::pin::pin!(self.step(&index));
            tokio::select! {
                () = stop.cancelled() => {
                    // What is on its way must not arrive after the withdrawal of everything.
                    let _ = tokio::time::timeout(Duration::from_millis(FINISH_MS), step).await;
                    break;
                }
                () = &mut step => {}
            }
            tokio::time::sleep(Duration::from_millis(GATHER_MS)).await;
        }
        let withdrawn = self.service.client.delete_holder(&index, &self.service.holder);
        match tokio::time::timeout(Duration::from_millis(STOP_MS), withdrawn).await {
            Ok(Ok(_)) => tracing::info!("all replicas are withdrawn"),
            // They expire by themselves.
            Ok(Err(error)) => tracing::warn!(%error, "the replicas could not be withdrawn"),
            Err(_) => tracing::warn!("the index does not answer; the replicas are not withdrawn"),
        }
    }

    /// Sends what is due: one batch, or one withdrawal of everything.
    async fn step(&mut self, index: &BaseUri) {
        if self.service.state().desired.needs_reset(self.service.now()) {
            return self.reset(index).await;
        }
        if let Some(question) = self.question() {
            return self.ask(index, question).await;
        }
        let (jobs, batch) = self.prepare();
        if jobs.is_empty() {
            return;
        }
        let sent = self.service.now();
        match self.service.client.batch(index, &batch).await {
            Ok(answer)
                if answer.put.len() == batch.put.len() && answer.delete.len() == batch.delete.len() =>
            {
                self.take_answer(&jobs, &answer, sent);
            }
            Ok(_) => self.no_answer(&jobs, None, &"the answer has another number of items than the batch"),
            Err(error) if is_too_large(&error) => self.send_less(&jobs, sent),
            Err(error) => self.no_answer(&jobs, retry_ms(&error), &error),
        }
    }

    async fn reset(&self, index: &BaseUri) {
        match self.service.client.delete_holder(index, &self.service.holder).await {
            Ok(()) => {
                let now = self.service.now();
                self.service.state().desired.was_reset(now, self.service.random.u64());
            }
            Err(error) => self.no_answer(&[], retry_ms(&error), &error),
        }
    }

    fn question(&self) -> Option<(BlockName, u64)> {
        self.service.state().desired.question(self.service.now())
    }

    /// Asks whether the index still has a record as it was told.
    async fn ask(&self, index: &BaseUri, (name, seq): (BlockName, u64)) {
        let (sent, holder) = (self.service.now(), &self.service.holder);
        let found = self.service.client.get_replica(index, name.compat, name.scope, name.key, holder).await;
        let known = match found {
            // An index that does not return `seq` has the record at least.
            Ok(record) => record.seq.is_none_or(|known| known >= seq),
            Err(error) if error.is_not_found() => false,
            Err(error) => return self.no_answer(&[], retry_ms(&error), &error),
        };
        if !known {
            tracing::warn!("the index has lost records; telling it everything again");
        }
        let (now, jitter) = (self.service.now(), self.service.random.u64());
        self.service.state().desired.is_known(known, sent, now, jitter);
    }

    /// The index takes smaller batches only. A record that is too large alone is refused like any other.
    fn send_less(&mut self, jobs: &[Job<BlockName>], sent: Time) {
        let alone = jobs.len() <= 1;
        self.max_items = (jobs.len() / 2).max(1);
        tracing::warn!(
            items = self.max_items,
            "the index refuses a batch as too large; sending smaller ones"
        );
        let now = self.service.now();
        let mut state = self.service.state();
        state.desired.heard(sent, now, self.service.random.u64());
        for job in jobs {
            let answer = if alone { Answer::Refused } else { Answer::Repeat };
            state.desired.answered(*job, answer, sent, now, self.service.random.u64());
        }
    }

    /// The jobs of a batch, puts first, and the batch.
    fn prepare(&self) -> (Vec<Job<BlockName>>, BatchRequest) {
        let mut state = self.service.state();
        let now = self.service.now();
        let (mut octets, mut items, max_items) = (0_u64, 0_usize, self.max_items);
        let state = &mut *state;
        let entries = &state.entries;
        let jobs = state.desired.take(now, |name| {
            let layers = entries.get(name).map_or(0, |entry| entry.meta.layers().count());
            octets = octets.saturating_add(RECORD_OCTETS).saturating_add(layers.saturating_mul(LAYER_OCTETS));
            items += 1;
            items == 1 || (items <= max_items && octets <= MAX_BATCH_OCTETS)
        });
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        let mut batch = BatchRequest::default();
        for job in jobs {
            // A block is in the entries as long as it is wanted, both being changed under one lock.
            let put = match job.kind {
                JobKind::Put => state.record(&job.key, &self.service.facts),
                JobKind::Delete => None,
            };
            let seq = put.as_ref().and_then(|record| record.seq).unwrap_or_default();
            match put.map(serde_json::to_value) {
                Some(Ok(record)) => {
                    batch.put.push(record);
                    puts.push(Job { seq, ..job });
                }
                _ => {
                    batch.delete.push(self.name_of(&job.key, state.next_sequence()));
                    deletes.push(Job { kind: JobKind::Delete, ..job });
                }
            }
        }
        puts.append(&mut deletes);
        (puts, batch)
    }

    fn name_of(&self, name: &BlockName, seq: u64) -> serde_json::Value {
        let name = ReplicaName {
            compat_id: name.compat,
            scope_id: name.scope,
            block_key: name.key,
            holder: self.service.holder.clone(),
            seq: Some(seq),
        };
        // A struct of strings and a number always has a JSON form.
        serde_json::to_value(name).unwrap_or_default()
    }

    fn take_answer(&self, jobs: &[Job<BlockName>], answer: &BatchAnswer, sent: Time) {
        let now = self.service.now();
        let mut state = self.service.state();
        state.desired.heard(sent, now, self.service.random.u64());
        for (job, item) in jobs.iter().zip(answer.put.iter().chain(&answer.delete)) {
            let judged = judge(job.kind, item, self.service.facts.ttl_ms);
            if judged == Answer::Refused {
                self.service.metrics.publish_failures.inc();
                tracing::warn!(block = ?job.key, status = item.status, "the index refuses a record");
            }
            state.desired.answered(*job, judged, sent, now, self.service.random.u64());
        }
    }

    fn no_answer(&self, jobs: &[Job<BlockName>], retry_ms: Option<u64>, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, "the index does not answer; trying again");
        self.service.metrics.publish_failures.inc_by(jobs.len().max(1) as u64);
        let mut state = self.service.state();
        let (ttl_ms, jitter) = (self.service.facts.ttl_ms, self.service.random.u64());
        state.desired.unanswered(jobs, ttl_ms, retry_ms, self.service.now(), jitter);
    }
}

/// What a 429 or 503 asks to wait, in ms.
fn retry_ms(error: &ClientError) -> Option<u64> {
    match error {
        ClientError::Problem(problem) => {
            problem.retry_after_s.map(|seconds| seconds.saturating_mul(1000).min(MAX_RETRY_MS))
        }
        _ => None,
    }
}

const fn is_too_large(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if problem.status() == 413)
}

fn judge(kind: JobKind, item: &BatchItem, asked_ms: u64) -> Answer {
    match (kind, item.status) {
        (JobKind::Put, status @ (200 | 201)) => {
            Answer::Published { ttl_ms: item.ttl_ms.unwrap_or(asked_ms), created: status == 201 }
        }
        (JobKind::Delete, 200 | 204 | 404) => Answer::Withdrawn,
        _ => Answer::Refused,
    }
}

/// Whole ms, rounded up: what is due in less than one is not due yet.
fn millis_until(now: Time, due: Time) -> u64 {
    u64::try_from(due.since(now).as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}
