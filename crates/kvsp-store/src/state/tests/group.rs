//! Commits in groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::io::ErrorKind;

use tokio::sync::Barrier;

use super::script::{all, grow, losses, open};
use crate::state::conformance::rows;
use crate::state::{
    GroupBounds, GroupCommit, MAX_VALUE_OCTETS, MemoryState, RowChange, StateError, StateStore,
};
use crate::testing::{FailingFileSystem, Faults, Operation, RecordingFileSystem, SlowFileSystem};

/// Rows that belong together, told by a number.
fn list(number: u32) -> Vec<RowChange> {
    let row =
        |table: u8| RowChange::set([&[table][..], &number.to_be_bytes()].concat(), vec![number as u8; 200]);
    vec![row(1), row(2), row(3)]
}

fn group(store: impl StateStore) -> (GroupCommit, super::super::GroupThread) {
    GroupCommit::start(Arc::new(store), GroupBounds::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_wait_share_a_commit() {
    let recorded = RecordingFileSystem::new();
    let slow = SlowFileSystem::new(Arc::new(recorded.clone()));
    let store = Arc::new(open(slow.clone()).unwrap());
    grow(&store);
    let (commit, thread) = group(store.clone());
    let before = recorded.syncs().len();
    slow.stop();
    let first = tokio::spawn({
        let commit = commit.clone();
        async move { commit.commit(list(0)).await }
    });
    // The first is on its way to the device; the others come meanwhile.
    tokio::task::spawn_blocking({
        let slow = slow.clone();
        move || slow.wait_for(1)
    })
    .await
    .unwrap();
    let come = Arc::new(Barrier::new(65));
    let others: Vec<_> = (1..=64)
        .map(|number| {
            let (commit, come) = (commit.clone(), come.clone());
            tokio::spawn(async move {
                come.wait().await;
                commit.commit(list(number)).await
            })
        })
        .collect();
    come.wait().await;
    while commit.waiting() < 64 {
        tokio::task::yield_now().await;
    }
    slow.go();
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap().unwrap();
    }
    assert_eq!(recorded.syncs().len() - before, 2);
    let counts = commit.counts();
    assert_eq!((counts.transactions, counts.lists, counts.rows, counts.failed), (2, 65, 195, 0));
    drop(commit);
    thread.join();
    assert_eq!(all(&store).len(), 195);
}

#[tokio::test]
async fn a_bad_list_fails_alone() {
    let store = Arc::new(MemoryState::new());
    let (commit, thread) = group(store.clone());
    let bad = vec![RowChange::set(b"".as_slice(), b"".as_slice())];
    let long = vec![RowChange::set(b"a".as_slice(), vec![0; MAX_VALUE_OCTETS]); 100];
    let (good, bad, long) = tokio::join!(commit.commit(list(1)), commit.commit(bad), commit.commit(long));
    good.unwrap();
    assert!(matches!(bad, Err(StateError::BadRow(_))));
    assert!(matches!(long, Err(StateError::BadRow(_))));
    commit.commit(vec![]).await.unwrap();
    drop(commit);
    thread.join();
    assert_eq!(rows(&store, b"").unwrap().len(), 3);
}

#[tokio::test]
async fn a_fenced_handle_fails_and_stays_so() {
    let store = MemoryState::new();
    let newer = store.reopen();
    let (commit, thread) = group(store);
    for _ in 0..2 {
        assert!(matches!(commit.commit(list(1)).await, Err(StateError::Fenced { .. })));
    }
    assert_eq!(commit.counts().failed, 2);
    drop(commit);
    thread.join();
    assert_eq!(rows(&newer, b"").unwrap().len(), 0);
}

/// Panics at the second commit.
struct Panics(AtomicUsize);

impl StateStore for Panics {
    fn term(&self) -> u64 {
        1
    }

    fn commit(&self, _: &[RowChange]) -> Result<(), StateError> {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "as it should in this test");
        Ok(())
    }

    fn scan(&self, _: &[u8], _: &mut crate::state::EachRow<'_>) -> Result<(), StateError> {
        Ok(())
    }
}

#[tokio::test]
async fn whoever_waits_is_told_when_the_thread_ends() {
    let (commit, thread) = group(Panics(AtomicUsize::new(0)));
    commit.commit(list(1)).await.unwrap();
    assert!(matches!(commit.commit(list(2)).await, Err(StateError::Stopped)));
    assert!(matches!(commit.commit(list(3)).await, Err(StateError::Stopped)));
    drop(commit);
    thread.join();
}

/// No more waits than may; who comes then waits outside, and is served.
#[tokio::test]
async fn a_full_queue_holds_back() {
    let slow = SlowFileSystem::new(Arc::new(RecordingFileSystem::new()));
    let store = Arc::new(open(slow.clone()).unwrap());
    let bounds = GroupBounds { waiting: 3, ..GroupBounds::default() };
    let (commit, thread) = GroupCommit::start(store.clone(), bounds).unwrap();
    slow.stop();
    let callers: Vec<_> = (0..20)
        .map(|number| {
            let commit = commit.clone();
            tokio::spawn(async move { commit.commit(list(number)).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(commit.waiting() <= 3);
    }
    slow.go();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    drop(commit);
    thread.join();
    assert_eq!(all(&store).len(), 60);
}

/// Each list is there whole or not at all at every crash point, and all that was acknowledged is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_group_acknowledged_survives_a_loss_of_power_at_every_step() {
    let fs = RecordingFileSystem::new();
    let (commit, thread) = group(open(fs.clone()).unwrap());
    let begin = fs.steps();
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (commit, fs) = (commit.clone(), fs.clone());
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for at in 0..6 {
                    let number = caller * 100 + at;
                    commit.commit(list(number)).await.unwrap();
                    acknowledged.push((fs.steps(), number));
                }
                acknowledged
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for caller in callers {
        acknowledged.extend(caller.await.unwrap());
    }
    drop(commit);
    thread.join();
    for steps in begin..=fs.steps() {
        for loss in losses(steps) {
            let found = all(&open(fs.after_power_loss(steps, loss)).unwrap());
            for (at, number) in &acknowledged {
                let there = list(*number).iter().filter(|row| found.contains_key(&row.key[..])).count();
                assert!(there == 3 || there == 0, "half of {number} after {steps} steps with {loss:?}");
                assert!(there == 3 || *at > steps, "{number} is lost after {steps} steps with {loss:?}");
            }
        }
    }
}

/// Those in a failed transaction fail, each of them and nobody else; the next ones are committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_fails_those_in_the_transaction() {
    let recorded = RecordingFileSystem::new();
    let fs = FailingFileSystem::new(Arc::new(recorded.clone()));
    let store = Arc::new(open(fs.clone()).unwrap());
    let (commit, thread) = group(store.clone());
    commit.commit(list(0)).await.unwrap();
    fs.fail(Faults { first: 0, count: u64::MAX, only: Some(Operation::Grow), kind: ErrorKind::StorageFull });
    let refused = futures_util::future::join_all((1..=8).map(|number| commit.commit(list(number)))).await;
    assert!(refused.iter().all(|result| matches!(result, Err(StateError::Full))), "{refused:?}");
    fs.heal();
    commit.commit(list(9)).await.unwrap();
    drop(commit);
    thread.join();
    let found = all(&store);
    let expected: Vec<_> = [list(0), list(9)].concat().iter().map(|row| row.key.to_vec()).collect();
    assert_eq!(found.len(), 6);
    assert!(expected.iter().all(|key| found.contains_key(key)));
}
