//! What the store does, seen from the requests.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use kvsp_client::{Client, ClientConfig};
use kvsp_core::session::{Choice, NewSession};
use kvsp_net::clock::ManualClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_proto::message::CheckpointAppend;
use kvsp_proto::record::{InstanceState, InstanceStatus, SamplerState, SessionCheckpoint};
use kvsp_proto::registry::SamplerMethod;
use kvsp_store::state::{EachRow, GroupBounds, MemoryState, RowChange, StateStore};
use serde_json::json;

use super::*;
use crate::config::ControllerConfig;
use crate::service::Deps;

/// A store that does what it is told.
#[derive(Default)]
struct Told {
    rows: MemoryState,
    how: Mutex<How>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum How {
    #[default]
    Commits,
    Waits,
    IsFull,
    Breaks,
}

impl Told {
    fn is(&self, how: How) {
        *self.how.lock().unwrap() = how;
        self.changed.notify_all();
    }
}

impl StateStore for Told {
    fn term(&self) -> u64 {
        self.rows.term()
    }

    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError> {
        let how = self.how.lock().unwrap();
        let how = self.changed.wait_while(how, |how| *how == How::Waits).unwrap();
        match *how {
            How::IsFull => Err(StateError::Full),
            How::Breaks => Err(std::io::Error::other("broken").into()),
            How::Commits | How::Waits => self.rows.commit(changes),
        }
    }

    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError> {
        self.rows.scan(prefix, each)
    }
}

const SESSION: Uuid = Uuid::from_u128(1);

/// A controller with one session that has a checkpoint without tokens.
async fn controller() -> (Arc<ControllerService>, Arc<Told>) {
    let store = Arc::new(Told::default());
    let (commits, _thread) = GroupCommit::start(store.clone(), GroupBounds::default()).unwrap();
    let deps = Deps {
        clock: Arc::new(ManualClock::default()),
        random: Arc::new(SeededRandom::new(1)),
        client: Client::new(ClientConfig::default()),
        metrics: Metrics::new(),
    };
    let sessions = SessionSettings { busy_wait_ms: 100, ..SessionSettings::default() };
    let config = ControllerConfig { sessions, ..ControllerConfig::default() };
    let service = ControllerService::new(config, &deps, commits, Vec::new(), Vec::new(), Vec::new());
    let (scope_id, compat_id) = ("5c".repeat(16).parse().unwrap(), "2c".repeat(32).parse().unwrap());
    let new = NewSession {
        session: SESSION,
        owner: "me".into(),
        scope_id,
        compat_id,
        tokens: 2,
        block_keys: Vec::new(),
        continuation: None,
        choice: Choice {
            instance: "https://i1.example/kvsp/".parse().unwrap(),
            instance_epoch: 1,
            ttl_ms: 60_000,
        },
    };
    service.record(SESSION, |sessions, now| sessions.create(new.clone(), now)).await.unwrap();
    let first = SessionCheckpoint {
        session: SESSION,
        epoch: 1,
        compat_id,
        scope_id,
        prompt_blocks: Vec::new(),
        prompt_tail: vec![1, 2],
        generated: Vec::new(),
        output_offset: 0,
        sampler: sampler(0),
    };
    let put = service.record(SESSION, |sessions, now| sessions.checkpoint(SESSION, &first, None, now)).await;
    assert_eq!(put.unwrap().output_offset, 0);
    (service, store)
}

fn sampler(step: u64) -> SamplerState {
    let params = serde_json::Map::new();
    SamplerState { method: SamplerMethod::Greedy, params, seed: 0, step, deterministic: false }
}

/// Records the token `offset` behind the first `offset`.
async fn append(service: &Arc<ControllerService>, offset: u64) -> Result<u64, Unrecorded> {
    let token = u32::try_from(offset).unwrap();
    let body =
        CheckpointAppend { epoch: 1, from_offset: offset, append: vec![token], sampler: sampler(offset + 1) };
    let ack = service.record(SESSION, |sessions, now| sessions.append(SESSION, &body, now)).await?;
    Ok(ack.output_offset)
}

fn offset(service: &Arc<ControllerService>) -> u64 {
    service.view_session(SESSION).unwrap().output_offset
}

/// What a controller would find after a crash at this moment.
fn on_the_disk(store: &Told) -> u64 {
    let restored = codec::restore(store).unwrap();
    restored[0].stored.progress.as_ref().map_or(0, |progress| progress.output_offset)
}

#[tokio::test]
async fn what_cannot_be_written_is_not_acknowledged_and_the_next_try_is() {
    let (service, store) = controller().await;
    for how in [How::IsFull, How::Breaks] {
        let before = offset(&service);
        store.is(how);
        for _ in 0..3 {
            let error = append(&service, before).await.unwrap_err();
            assert_eq!(error, Unrecorded::Store);
            let problem = Problem::from(error);
            assert_eq!((problem.status(), problem.retry_after_s), (503, Some(1)));
            assert_eq!((offset(&service), on_the_disk(&store)), (before, before));
        }
        store.is(How::Commits);
        assert_eq!(append(&service, before).await, Ok(before + 1));
        assert_eq!((offset(&service), on_the_disk(&store)), (before + 1, before + 1));
    }
}

#[tokio::test]
async fn an_epoch_and_an_order_that_cannot_be_written_are_not_answered() {
    let (service, store) = controller().await;
    let instance: BaseUri = "https://i1.example/kvsp/".parse().unwrap();
    let status = |epoch: u64| {
        let record = json!({"instance": instance, "epoch": epoch, "state": "active", "ttl_ms": 60_000});
        InstanceStatus::from_value(record).unwrap()
    };
    let remembered =
        |store: &Told| crate::lifecycle::restore(store).unwrap().first().map(|row| (row.epoch, row.state));
    assert_eq!(service.take_status(status(1)).await, Ok(InstanceState::Active));
    assert_eq!(remembered(&store), Some((1, InstanceState::Active)));
    store.is(How::IsFull);
    assert_eq!(service.take_status(status(1)).await, Ok(InstanceState::Active), "that needs no write");
    for how in [How::IsFull, How::Breaks] {
        store.is(how);
        let refused = |problem: Problem| (problem.status(), problem.retry_after_s);
        let order = service.order(&instance, InstanceState::Draining, true).await;
        assert_eq!(order.map_err(refused), Err((503, Some(1))));
        let view = service.view_instance(&instance).unwrap();
        assert_eq!(view.wanted, Some(InstanceState::Active), "the order does not stand");
        assert_eq!(service.take_status(status(2)).await.map_err(refused), Err((503, Some(1))));
        assert_eq!(remembered(&store), Some((1, InstanceState::Active)));
    }
    store.is(How::Commits);
    assert_eq!(service.take_status(status(2)).await, Ok(InstanceState::Active));
    assert_eq!(remembered(&store), Some((2, InstanceState::Active)));
}

#[tokio::test]
async fn many_statuses_share_few_writes_and_each_is_there_when_it_is_answered() {
    let (service, store) = controller().await;
    let mut reporting = tokio::task::JoinSet::new();
    for n in 0..64_u64 {
        let (service, store) = (Arc::clone(&service), Arc::clone(&store));
        reporting.spawn(async move {
            for epoch in 1..4 {
                let instance: BaseUri = format!("https://i{n}.example/").parse().unwrap();
                let record =
                    json!({"instance": instance, "epoch": epoch, "state": "active", "ttl_ms": 60_000});
                service.take_status(InstanceStatus::from_value(record).unwrap()).await.unwrap();
                let rows = crate::lifecycle::restore(&*store).unwrap();
                let row = rows.iter().find(|row| row.instance == instance).unwrap();
                assert_eq!(row.epoch, epoch);
            }
        });
    }
    while let Some(reported) = reporting.join_next().await {
        reported.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_goes_away_leaves_its_change_to_be_recorded() {
    let (service, store) = controller().await;
    store.is(How::Waits);
    let gone = tokio::time::timeout(Duration::from_millis(20), append(&service, 0)).await;
    assert!(gone.is_err(), "the store holds it up");
    assert_eq!(offset(&service), 0, "nothing is shown that is not on the disk");
    assert_eq!(append(&service, 0).await, Err(Unrecorded::Busy), "one change at a time, and not for ever");
    let waits = tokio::spawn({
        let service = Arc::clone(&service);
        async move { append(&service, 1).await }
    });
    tokio::task::yield_now().await;
    store.is(How::Commits);
    assert_eq!(waits.await.unwrap(), Ok(2), "it waited for the one before");
    assert_eq!((offset(&service), on_the_disk(&store)), (2, 2));
    assert_eq!(service.sessions.waits.len(), 0);
}

#[tokio::test]
async fn an_acknowledgement_means_that_it_is_on_the_disk() {
    let (service, store) = controller().await;
    for n in 0..200 {
        assert_eq!(append(&service, n).await, Ok(n + 1));
        assert_eq!(on_the_disk(&store), n + 1);
    }
}
