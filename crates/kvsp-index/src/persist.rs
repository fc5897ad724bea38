//! The service's side of snapshots: taking them in short pieces, and going on from one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kvsp_core::index::{Index, SnapshotEntry};
use kvsp_core::time::Time;
use kvsp_net::clock::BootTime;
use kvsp_store::fs::FileSystem;

use crate::service::IndexService;
use crate::snapshot::{Head, Shift, SnapshotError, Snapshots};

/// Things looked at under one lock, so that publishers wait some tens of µs at most.
const THINGS_A_LOCK: usize = 64;

/// What a restart brought back.
#[derive(Debug, Default)]
struct Restored {
    /// Entries that say something still.
    kept: usize,
    /// Records that ended meanwhile.
    ended: usize,
    /// Entries that this index does not take.
    refused: usize,
}

impl IndexService {
    /// Where the settings say that snapshots lie, on this file system.
    ///
    /// # Errors
    /// The place cannot be used, or another process uses it.
    pub(crate) fn open_snapshots(&self, files: Arc<dyn FileSystem>) -> io::Result<Option<Snapshots>> {
        let open = |path: &Path| Snapshots::open(files, path, self.config.max_snapshot_octets);
        self.config.snapshot_path.as_deref().map(open).transpose()
    }

    /// Writes a snapshot; whatever goes wrong is told and does not stop the service. Blocks its thread.
    pub(crate) fn write_snapshot(&self, snapshots: &Snapshots, last_words: bool) {
        let (shift, boot) = Shift::of(self.clock());
        let head = Head {
            taken: BootTime { boot, since: shift.since_boot },
            incarnation: self.feed.incarnation(),
            next_change: self.read().next_change(),
            last_words,
        };
        let mut cursor = None;
        let mut done = false;
        let written = snapshots.write(&head, || {
            if done {
                return None;
            }
            let (shift, _) = Shift::of(self.clock());
            let (entries, next) = self.read().snapshot(cursor, THINGS_A_LOCK, shift.now);
            (cursor, done) = (next, next.is_none());
            // The lock is not fair: whoever waits for it comes first.
            std::thread::yield_now();
            Some((entries, shift))
        });
        match written {
            Ok(octets) => {
                self.metrics.snapshots.inc();
                tracing::debug!(octets, "wrote a snapshot of the index");
            }
            Err(error) => {
                self.metrics.snapshot_failures.inc();
                let path = snapshots.path().display();
                tracing::warn!(%error, %path, "no snapshot of the index could be written; the last one stays");
            }
        }
    }

    /// Takes up what the last snapshot says. One that cannot be read is set aside, and the index starts empty.
    /// Blocks its thread.
    pub(crate) fn restore(&self, snapshots: &Snapshots) {
        let (shift, boot) = Shift::of(self.clock());
        let mut restored = Restored::default();
        // Nothing is served yet: the lock is held throughout.
        let mut index = self.write();
        let max_ttl_ms = self.config.max_ttl_ms;
        let same_boot = |head: &Head| head.taken.boot == boot && !boot.is_nil();
        let read = snapshots.read(&shift, |head, entry| {
            match of_this_boot(entry, same_boot(head), shift.now, max_ttl_ms) {
                Some(entry) => restored.take(&mut index, entry, shift.now),
                None => restored.ended += 1,
            }
        });
        let head = match read {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(error) => {
                *index = self.empty_index();
                drop(index);
                return self.give_up(snapshots, &error);
            }
        };
        if head.last_words && restored.ended + restored.refused == 0 {
            self.feed.continues((head.incarnation, head.next_change), index.next_change());
        }
        let records = index.len();
        drop(index);
        self.count(records);
        let Restored { kept, ended, refused } = restored;
        let same_boot = same_boot(&head);
        tracing::info!(records, kept, ended, refused, same_boot, "went on from a snapshot of the index");
    }

    fn give_up(&self, snapshots: &Snapshots, error: &SnapshotError) {
        self.metrics.snapshot_failures.inc();
        let path = snapshots.path().display();
        match snapshots.set_aside() {
            Ok(to) => {
                let to = to.display();
                tracing::error!(%error, %path, %to, "the snapshot cannot be read and was set aside; the index starts empty");
            }
            Err(failed) => {
                tracing::error!(%error, %failed, %path, "the snapshot can be neither read nor set aside; the index starts empty");
            }
        }
    }
}

impl Restored {
    fn take(&mut self, index: &mut Index, entry: SnapshotEntry, now: Time) {
        let ended = matches!(&entry, SnapshotEntry::Record { deadline, .. } if *deadline <= now);
        self.ended += usize::from(ended);
        match index.restore(entry, now) {
            Ok(true) => self.kept += 1,
            Ok(false) => {}
            Err(error) => {
                self.refused += 1;
                tracing::debug!(%error, "an entry of the snapshot is refused");
            }
        }
    }
}

/// What of an entry holds. After another boot the time that has passed is not known: records and the memory of
/// their `seq` are dropped. Descriptors never end, and an epoch that was seen was seen.
fn of_this_boot(entry: SnapshotEntry, same_boot: bool, now: Time, max_ttl_ms: u64) -> Option<SnapshotEntry> {
    match entry {
        entry if same_boot => Some(entry),
        entry @ SnapshotEntry::Descriptor { .. } => Some(entry),
        SnapshotEntry::Holder { holder, epoch, .. } => {
            Some(SnapshotEntry::Holder { holder, epoch, until: now.after_millis(max_ttl_ms) })
        }
        SnapshotEntry::Record { .. } | SnapshotEntry::Tombstone { .. } => None,
    }
}
