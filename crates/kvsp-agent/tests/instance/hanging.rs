//! A source that hangs holds up nobody but the request that waits for its blocks, and that one only until
//! the deadline.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvsp_proto::message::{DirectiveState, FailureReason, PrefetchDirective};
use kvsp_testkit::{Behaviour, Hostile};

use crate::support::{Ask, Index, Instance, Setup, client, ended, eventually, prompt};

const DEADLINE_MS: u64 = 3000;
/// Tokens of another session that must arrive while the load hangs; alone it makes thousands in that time.
const MEANWHILE: usize = 40;

/// Sessions one after another, with the time of every token.
struct Chatter {
    seen: Arc<Mutex<Vec<Instant>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Chatter {
    fn start(instance: Arc<Instance>) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            for nth in 0.. {
                let mut session = instance.stream(&Ask::new(&prompt(500 + nth, 20), 2000)).await;
                while session.next().await.is_some() {
                    told.lock().unwrap().push(Instant::now());
                }
            }
        });
        Self { seen, task }
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The longest silence between two times.
    fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap();
        let inside = seen.iter().copied().filter(|at| (from..to).contains(at));
        let times: Vec<Instant> = std::iter::once(from).chain(inside).chain([to]).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn hangs(behaviour: Behaviour, layer_stream: bool) {
    let index = Index::start().await;
    let a = Instance::start(Setup::at(&index)).await;
    let b = Arc::new(Instance::start(Setup::at(&index)).await);
    let tokens = prompt(1, 200);
    let cold = a.ask(&Ask::new(&tokens, 24)).await;
    let prefix = a.prefix(&tokens).await;
    let source = Hostile::start(&prefix).await;
    source.behave(behaviour);
    source.offer_layer_stream(layer_stream);
    index.record(&prefix, source.base()).await;

    let chatter = Chatter::start(b.clone());
    eventually("another session's first tokens", async || (chatter.count() > 10).then_some(())).await;
    let begin = Instant::now();
    let directive = PrefetchDirective {
        request_ref: Some("waiting".into()),
        ..b.directive(&prefix.keys, &[source.base()], DEADLINE_MS)
    };
    let uri = b.order(&directive).await;
    let waiting = tokio::spawn({
        let (b, ask) = (b.clone(), Ask::new(&tokens, 24).referring("waiting"));
        async move { b.ask(&ask).await }
    });
    let before = chatter.count();
    eventually("other tokens", async || (chatter.count() >= before + MEANWHILE).then_some(())).await;
    let status = client().directive_status(&uri).await.unwrap();
    assert_eq!(status.state, DirectiveState::Pending, "the other session waited for the load");
    assert!(!waiting.is_finished(), "the request did not wait for its blocks");

    let status = ended(&uri).await;
    let gap = chatter.longest_gap(begin, Instant::now());
    assert!(gap < Duration::from_millis(DEADLINE_MS / 2), "a session was silent for {gap:?}");
    assert_eq!(status.state, DirectiveState::Partial);
    assert!(status.loaded.is_empty() && status.failed.len() == prefix.keys.len(), "{status:?}");
    assert!(status.failed.iter().all(|f| f.reason == FailureReason::Deadline), "{status:?}");
    let recomputed = waiting.await.unwrap();
    assert_eq!((recomputed.text, recomputed.cached), (cold.text, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_never_answers() {
    hangs(Behaviour::HangBeforeAnswer, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_stops_within_a_layer_stream() {
    hangs(Behaviour::HangInBody, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_stops_within_a_block() {
    hangs(Behaviour::HangInBody, false).await;
}
