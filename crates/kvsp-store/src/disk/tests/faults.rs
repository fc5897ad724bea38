//! Operations fail, one, or all from one on: nothing is half done, no file stays that nobody knows, and what
//! failed can be done again.

use std::io::ErrorKind;

use super::super::Inner;
use super::history::{LAYERS, block, config};
use super::*;
use crate::fs::FileSystem;
use crate::testing::{FailingFileSystem, Faults, Loss, Operation, RecordingFileSystem, SlowFileSystem};

const KINDS: [ErrorKind; 2] = [ErrorKind::StorageFull, ErrorKind::Other];

/// Layers held of blocks 1, 2 and 3.
type Layers = [u32; 3];

/// What every case begins with.
const BEFORE: Layers = [LAYERS, 2, 0];

type Act = fn(&Inner) -> Result<(), StoreError>;

/// What is done, and what is held then.
const ACTS: [(&str, Act, Layers); 5] = [
    ("put", |store| store.put(&block(3)), [LAYERS, 2, LAYERS]),
    ("grow", |store| store.put(&block(2)), [LAYERS, LAYERS, 0]),
    ("trim", |store| store.trim(&block(1).meta.name, 1).map(|there| assert!(there)), [1, 2, 0]),
    ("trim to nothing", |store| store.trim(&block(1).meta.name, 0).map(drop), [0, 2, 0]),
    ("delete", |store| store.delete(&block(2).meta.name).map(drop), [LAYERS, 0, 0]),
];

struct Case {
    record: RecordingFileSystem,
    failing: FailingFileSystem,
    store: Inner,
}

impl Case {
    fn new() -> Self {
        let record = RecordingFileSystem::new();
        let failing = FailingFileSystem::new(Arc::new(record.clone()));
        let store = Inner::open(config(), Arc::new(failing.clone())).unwrap();
        store.put(&block(1)).unwrap();
        store.put(&block(2).leading(2).unwrap()).unwrap();
        Self { record, failing, store }
    }

    fn files_in(&self, sub: &str) -> usize {
        self.record.read_dir(&config().dir.join(sub)).unwrap().len()
    }

    /// What another process would find, now or after a loss of power.
    fn reopened(&self, loss: Loss) -> Inner {
        let fs = self.record.after_power_loss(self.record.steps(), loss);
        Inner::open(config(), Arc::new(fs)).unwrap()
    }
}

/// The layers that are listed, each read and found right.
fn layers(store: &Inner) -> Layers {
    [1, 2, 3].map(|number| {
        let block = block(number);
        let listed = store.list().into_iter().find(|held| held.meta.name == block.meta.name);
        let layers = listed.map_or(0, |held| held.layers);
        let got = store.get(&block.meta.name).unwrap().map(|got| got.container.bytes().clone());
        assert_eq!(got, block.leading(layers).map(|block| block.container.bytes().clone()));
        layers
    })
}

#[test]
fn one_operation_fails() {
    for (what, act, after) in ACTS {
        for kind in KINDS {
            let mut first = 0;
            loop {
                let case = Case::new();
                case.failing.fail(Faults { first, count: 1, only: None, kind });
                let done = act(&case.store);
                let reached = case.failing.operations() > first;
                case.failing.heal();
                if !reached {
                    done.unwrap();
                    assert_eq!(layers(&case.store), after, "{what}");
                    break;
                }
                let at = format!("{what}, operation {first}, {kind}");
                let error = done.expect_err(&at);
                assert!(matches!(&error, StoreError::Io(error) if error.kind() == kind), "{at}: {error}");
                assert_eq!(error.is_full(), kind == ErrorKind::StorageFull, "{at}");
                // Before, or, where a cut or removal is not durable, after; to another process as well.
                let now = layers(&case.store);
                let shrinks = after < BEFORE;
                assert!(now == BEFORE || shrinks && now == after, "{at}: {now:?}");
                assert_eq!(layers(&case.reopened(Loss::Nothing)), now, "{at}");
                assert_eq!(case.files_in("tmp"), 0, "{at}");
                // Another block is stored meanwhile, and the same is done again, durably.
                case.store.put(&block(4)).unwrap();
                act(&case.store).unwrap_or_else(|error| panic!("{at}, again: {error}"));
                assert_eq!(layers(&case.store), after, "{at}, again");
                assert_eq!(layers(&case.reopened(Loss::All)), after, "{at}, again");
                assert_eq!(case.store.files.quarantined(), 0, "{at}");
                first += 1;
            }
            assert!(first > 1, "{what}: {first}");
        }
    }
}

#[test]
fn the_device_goes_and_comes_back() {
    for (what, act, after) in ACTS {
        for first in 0..10 {
            let case = Case::new();
            let kind = ErrorKind::Other;
            case.failing.fail(Faults { first, count: u64::MAX, only: None, kind });
            let done = act(&case.store);
            if case.failing.operations() <= first {
                done.unwrap();
                break;
            }
            assert!(matches!(done, Err(StoreError::Io(_))), "{what}, from operation {first} on");
            for number in [1, 2] {
                // An answer that is no lie: it fails, or the block is known to be gone.
                let got = case.store.get(&block(number).meta.name);
                assert!(matches!(got, Err(StoreError::Io(_)) | Ok(None)), "{what} {first}: {got:?}");
            }
            case.failing.heal();
            layers(&case.store);
            act(&case.store)
                .or_else(|error| match error {
                    // Growing may have been done but for its durability, and cannot be done again.
                    StoreError::Exists if what == "grow" => Ok(()),
                    error => Err(error),
                })
                .unwrap_or_else(|error| panic!("{what}, from operation {first} on, again: {error}"));
            case.store.put(&block(4)).unwrap();
            assert_eq!(layers(&case.store), after, "{what}, from operation {first} on");
            assert_eq!(layers(&case.reopened(Loss::Nothing)), after, "{what}, from operation {first} on");
            assert_eq!(case.files_in("tmp"), 0, "{what}, from operation {first} on");
            assert_eq!(case.store.files.quarantined(), 0);
        }
    }
}

#[test]
fn a_read_that_fails_is_an_error_and_no_rot() {
    type Read = fn(&Inner) -> Result<bool, StoreError>;
    let reads: [Read; 3] = [
        |store| Ok(store.get(&block(1).meta.name)?.is_some()),
        |store| Ok(store.get(&block(2).meta.name)?.is_some()),
        |store| Ok(store.part(&block(1).meta.name, LayerRange::new(1, 2).unwrap())?.is_some()),
    ];
    for read in reads {
        let mut first = 0;
        loop {
            let case = Case::new();
            case.failing.fail(Faults { first, count: 1, only: None, kind: ErrorKind::Other });
            let done = read(&case.store);
            if case.failing.operations() <= first {
                assert!(done.unwrap());
                break;
            }
            assert!(matches!(done, Err(StoreError::Io(_))), "{first}: {done:?}");
            assert!(read(&case.store).unwrap());
            assert_eq!(layers(&case.store), BEFORE);
            first += 1;
        }
        assert!(first > 1);
    }
}

/// A full disk refuses what needs room; what is there is read, cut and deleted.
#[test]
fn a_full_disk_serves_and_frees() {
    let case = Case::new();
    let only = Some(Operation::Grow);
    case.failing.fail(Faults { first: 0, count: u64::MAX, only, kind: ErrorKind::StorageFull });
    for _ in 0..3 {
        assert!(case.store.put(&block(3)).unwrap_err().is_full());
    }
    assert_eq!(layers(&case.store), BEFORE);
    assert!(case.store.trim(&block(1).meta.name, 1).unwrap());
    assert!(case.store.delete(&block(2).meta.name).unwrap());
    assert_eq!(layers(&case.reopened(Loss::All)), [1, 0, 0]);
    assert_eq!(case.files_in("tmp"), 0);
    case.failing.heal();
    case.store.put(&block(3)).unwrap();
    assert_eq!(layers(&case.reopened(Loss::All)), [1, 0, LAYERS]);
}

/// Opening meets a failing operation: an error, and the next opening finds everything.
#[test]
fn an_opening_that_fails_leaves_everything() {
    let mut first = 0;
    loop {
        let Case { record, failing, store } = Case::new();
        drop(store);
        failing.fail(Faults { first, count: 1, only: None, kind: ErrorKind::Other });
        let opened = Inner::open(config(), Arc::new(failing.clone()));
        let reached = failing.operations() > first;
        assert_eq!(opened.is_err(), reached, "operation {first}");
        drop(opened);
        failing.heal();
        record.restart();
        assert_eq!(layers(&Inner::open(config(), Arc::new(failing)).unwrap()), BEFORE, "{first}");
        if !reached {
            break;
        }
        // All of the shards are the same.
        first += if (20..700).contains(&first) { 97 } else { 1 };
    }
    assert!(first > 700, "{first}");
}

/// While a disk does not answer, what is held is told, and who comes upon a changed file looks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_disk_delays_and_nothing_else() {
    let slow = SlowFileSystem::new(Arc::new(RecordingFileSystem::new()));
    let store = Arc::new(DiskStore::open_on(config(), Arc::new(slow.clone())).await.unwrap());
    let whole = block(1);
    let name = whole.meta.name;
    for round in 0..8 {
        store.put(whole.clone()).await.unwrap();
        slow.stop();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move { store.get(name).await })
            })
            .collect();
        let changing = {
            let store = store.clone();
            tokio::spawn(async move {
                if round % 2 == 0 { store.trim(name, 1).await } else { store.delete(name).await }
            })
        };
        let waited = slow.clone();
        tokio::task::spawn_blocking(move || waited.wait_for(5)).await.unwrap();
        assert!(store.list().await.unwrap().len() <= 1);
        slow.go();
        assert!(changing.await.unwrap().unwrap());
        for reader in readers {
            if let Some(got) = reader.await.unwrap().unwrap() {
                assert!([1, LAYERS].contains(&got.layers()));
                assert_eq!(got.container.bytes(), whole.leading(got.layers()).unwrap().container.bytes());
            }
        }
        store.delete(name).await.unwrap();
    }
    assert_eq!(store.quarantined(), 0);
}
