//! What was done to a store on a recording file system, and what may therefore be there after a crash.

use super::super::Inner;
use super::*;
use crate::testing::{Loss, RecordingFileSystem};

/// The blocks of all histories, told by their number.
pub(super) const BLOCKS: u8 = 4;

/// Layers of each.
pub(super) const LAYERS: u32 = 4;

pub(super) fn block(number: u8) -> StoredBlock {
    sample(number, LAYERS as u8, 11 + usize::from(number))
}

pub(super) fn config() -> DiskConfig {
    DiskConfig { dir: "/srv/kvsp".into(), quarantine_octets: 10_000 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Stores that many leading layers.
    Put(u8, u32),
    Trim(u8, u32),
    Delete(u8),
    Epoch,
}

/// What a block may be from `start` on, and what alone it may be from `end` on: layers held, 0 for none.
#[derive(Debug)]
struct Change {
    number: u8,
    start: usize,
    end: usize,
    after: Vec<u32>,
}

/// A store at work.
#[derive(Debug)]
pub(super) struct History {
    pub(super) fs: RecordingFileSystem,
    inner: Option<Inner>,
    changes: Vec<Change>,
    /// Epochs that were told, and since which step.
    epochs: Vec<(usize, u64)>,
    /// Steps after which something was acknowledged.
    pub(super) acknowledged: Vec<usize>,
    /// The first step after the store was first open.
    pub(super) opened: usize,
}

impl History {
    /// A store that was just opened on `fs`.
    pub(super) fn open(fs: RecordingFileSystem) -> Self {
        let inner = Inner::open(config(), Arc::new(fs.clone())).unwrap();
        let opened = fs.steps();
        let inner = Some(inner);
        Self { fs, inner, changes: Vec::new(), epochs: Vec::new(), acknowledged: vec![opened], opened }
    }

    fn layers(&self, number: u8) -> Vec<u32> {
        self.changes.iter().rfind(|change| change.number == number).map_or(vec![0], |c| c.after.clone())
    }

    /// Carries out an act, which may fail only where the process is to be killed in it.
    pub(super) fn act(&mut self, act: Act) {
        let start = self.fs.steps();
        let done = self.attempt(act);
        let end = self.fs.steps();
        if let Some((number, after)) = self.outcome(act) {
            match done {
                Ok(()) => self.changes.push(Change { number, start, end, after: vec![after] }),
                Err(_) => {
                    let mut after = vec![after];
                    after.extend(self.layers(number));
                    self.changes.push(Change { number, start, end, after });
                }
            }
        }
        self.acknowledged.push(end);
    }

    fn attempt(&mut self, act: Act) -> Result<(), StoreError> {
        let inner = self.inner.as_ref().unwrap();
        match act {
            Act::Put(number, layers) => match inner.put(&block(number).leading(layers).unwrap()) {
                Err(StoreError::Exists) => Ok(()),
                put => put,
            },
            Act::Trim(number, layers) => inner.trim(&block(number).meta.name, layers).map(drop),
            Act::Delete(number) => inner.delete(&block(number).meta.name).map(drop),
            Act::Epoch => {
                let epoch = inner.files.next_epoch(0)?;
                self.epochs.push((self.fs.steps(), epoch));
                Ok(())
            }
        }
    }

    /// The block that an act is about, and the layers held once it succeeded.
    fn outcome(&self, act: Act) -> Option<(u8, u32)> {
        let now = |number| self.layers(number)[0];
        match act {
            Act::Put(number, layers) => Some((number, now(number).max(layers))),
            Act::Trim(number, layers) => Some((number, now(number).min(layers))),
            Act::Delete(number) => Some((number, 0)),
            Act::Epoch => None,
        }
    }

    /// Ends the process, killed or not, and begins the next; power stays on.
    pub(super) fn restart(&mut self) {
        self.inner = None;
        self.fs.restart();
        let start = self.fs.steps();
        let inner = Inner::open(config(), Arc::new(self.fs.clone())).unwrap();
        let end = self.fs.steps();
        for number in 1..=BLOCKS {
            let before = self.layers(number);
            let seen = inner.find(&block(number).meta.name).map_or(0, |present| present.layers);
            assert!(before.contains(&seen), "block {number}: {seen} layers, not {before:?}");
            // A cut that was not acknowledged may be undone; that a block is there, or gone, may not.
            let undone = before.iter().filter(|layers| seen > 0 && **layers > seen);
            let after = std::iter::once(seen).chain(undone.copied()).collect();
            self.changes.push(Change { number, start, end, after });
        }
        self.inner = Some(inner);
        self.acknowledged.push(end);
    }

    fn permitted(&self, number: u8, steps: usize) -> Vec<u32> {
        let mut permitted = vec![0];
        for change in self.changes.iter().filter(|change| change.number == number) {
            if change.end <= steps {
                permitted.clone_from(&change.after);
            } else if change.start < steps {
                permitted.extend(&change.after);
            }
        }
        permitted
    }

    /// Whether the store is as it must be when power was lost after `steps` steps.
    pub(super) fn check(&self, steps: usize, loss: Loss) -> Result<(), String> {
        let fs = self.fs.after_power_loss(steps, loss);
        let store = Inner::open(config(), Arc::new(fs)).map_err(|error| format!("it opens: {error}"))?;
        if store.files.quarantined() > 0 {
            return Err("a file that is no block has the name of one".into());
        }
        let listed = store.list();
        for number in 1..=BLOCKS {
            let block = block(number);
            let held = listed.iter().find(|held| held.meta.name == block.meta.name);
            let layers = held.map_or(0, |held| held.layers);
            let permitted = self.permitted(number, steps);
            if !permitted.contains(&layers) {
                return Err(format!("block {number}: {layers} layers, not {permitted:?}"));
            }
            let got = store.get(&block.meta.name).map_err(|error| format!("block {number}: {error}"))?;
            let want = block.leading(layers);
            let octets = |block: Option<StoredBlock>| block.map(|block| block.container.bytes().clone());
            if octets(got) != octets(want) || held.is_some_and(|held| held.meta != block.meta) {
                return Err(format!("block {number} has other octets"));
            }
        }
        let epoch = store.files.next_epoch(0).map_err(|error| format!("an epoch: {error}"))?;
        let told = self.epochs.iter().filter(|(since, _)| *since <= steps).map(|(_, epoch)| *epoch).max();
        if told >= Some(epoch) {
            return Err(format!("epoch {epoch} again, after {told:?}"));
        }
        Ok(())
    }
}
