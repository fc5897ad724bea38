//! What the database reads and writes through.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::fs::OpenFile;

/// The file. The directory's lock keeps others away from it, so it has no locks of its own.
#[derive(Debug)]
pub(super) struct FileBackend {
    pub(super) file: Box<dyn OpenFile>,
    /// Set for good when a sync fails.
    pub(super) suspect: Arc<AtomicBool>,
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.octets()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync().inspect_err(|_| self.suspect.store(true, Ordering::SeqCst))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// A file that is only looked at: what opening it changes stays in memory. That is a header and what the database
/// writes on closing, not the rows.
#[derive(Debug)]
pub(super) struct Overlay {
    file: Box<dyn OpenFile>,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    len: u64,
    /// Sectors by their number.
    sectors: BTreeMap<u64, Sector>,
}

const SECTOR: usize = 512;
type Sector = [u8; SECTOR];

impl Overlay {
    pub(super) fn new(file: Box<dyn OpenFile>) -> io::Result<Self> {
        let len = file.octets()?;
        Ok(Self { file, changed: Mutex::new(Changed { len, sectors: BTreeMap::new() }) })
    }

    fn lock(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the file, with zeros beyond its end.
    fn read_file(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let there = self.file.octets()?.saturating_sub(offset);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(out.len());
        self.file.read_exact_at(&mut out[..there], offset)
    }

    /// The parts of `from..from + len` that lie in one sector each: sector, place in it, place in the range.
    fn parts(from: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let offset = from + at as u64;
            let within = usize::try_from(offset % SECTOR as u64).unwrap_or(0);
            let take = (SECTOR - within).min(len - at);
            let part = (offset / SECTOR as u64, within..within + take, at);
            at += take;
            (take > 0).then_some(part)
        })
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changed = self.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > changed.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(offset, out)?;
        for (number, within, at) in Self::parts(offset, out.len()) {
            if let Some(sector) = changed.sectors.get(&number) {
                out[at..at + within.len()].copy_from_slice(&sector[within]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.lock().len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changed = self.lock();
        for (number, within, at) in Self::parts(offset, data.len()) {
            let sector = match changed.sectors.entry(number) {
                Entry::Occupied(sector) => sector.into_mut(),
                Entry::Vacant(place) => {
                    let mut sector = [0; SECTOR];
                    self.read_file(number * SECTOR as u64, &mut sector)?;
                    place.insert(sector)
                }
            };
            sector[within.clone()].copy_from_slice(&data[at..at + within.len()]);
        }
        changed.len = changed.len.max(offset + data.len() as u64);
        Ok(())
    }
}
