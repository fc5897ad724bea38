//! The directory of a disk store.
//!
//! ```text
//! LOCK          locked by the process that uses the directory
//! FORMAT        "KVSPDISK 2\n"
//! epoch         the highest epoch handed out, in decimal
//! leases        until when blocks here may be under lease, as who grants leases writes it
//! blocks/ab/    files of the blocks whose key starts with octet ab, named compat-scope-key
//! tmp/          files being written; emptied at the start
//! quarantine/   rotten files
//! ```

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use kvsp_buffer::Arena;
use kvsp_proto::container::{Container, LayerRange};

use super::DiskConfig;
use super::scan::scan;
use crate::block::{BlockMeta, BlockName, BlockPart, StoredBlock};
use crate::buffers::Buffers;
use crate::disk::format;
use crate::fs::{FileSystem, Lock, OpenFile};
use crate::store::StoreError;
use crate::verify::{container_of, part_of};

const FORMAT: &str = "KVSPDISK 2\n";

/// Longest text file that is read: the format and the epoch.
const MAX_TEXT_OCTETS: u64 = 64;

#[derive(Debug)]
pub(super) struct Files {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    quarantine_octets: u64,
    quarantined: AtomicU64,
    /// Names files that must not clash, within this process.
    serial: AtomicU64,
    /// Files that a failed write left and could not remove: gone before the next write begins.
    leftovers: Mutex<Vec<PathBuf>>,
    /// Where what is read goes.
    buffers: Buffers,
    _lock: Box<dyn Lock>,
}

/// The layers of a block that a file holds.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) meta: Arc<BlockMeta>,
    pub(super) layers: u32,
}

impl Files {
    /// Opens the directory: itself, and the blocks in it.
    pub(super) fn open(
        config: DiskConfig,
        fs: Arc<dyn FileSystem>,
    ) -> Result<(Self, Vec<Present>), StoreError> {
        let DiskConfig { dir, quarantine_octets } = config;
        make_durably(fs.as_ref(), &dir)?;
        let lock = fs.lock(&dir.join("LOCK")).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => StoreError::Unusable("another process has the directory".into()),
            _ => StoreError::Io(error),
        })?;
        let files = Self {
            fs,
            dir,
            quarantine_octets,
            quarantined: AtomicU64::new(0),
            serial: AtomicU64::new(0),
            leftovers: Mutex::new(Vec::new()),
            buffers: Buffers::default(),
            _lock: lock,
        };
        let found = files.format()?;
        if found.as_ref().is_some_and(|found| found != FORMAT) {
            return Err(StoreError::Unusable("the directory has another format".into()));
        }
        files.make_directories()?;
        if found.is_none() {
            files.place_parts(&files.dir.join("FORMAT"), &[FORMAT.as_bytes()])?;
        }
        files.fs.sync_dir(&files.dir)?;
        let found = files.scan()?;
        Ok((files, found))
    }

    fn format(&self) -> Result<Option<String>, StoreError> {
        Ok(read_text(self.fs.as_ref(), &self.dir.join("FORMAT"))?)
    }

    /// Makes what is missing and removes what was half written.
    fn make_directories(&self) -> io::Result<()> {
        for sub in ["blocks", "quarantine", "tmp"] {
            make(self.fs.as_ref(), &self.dir.join(sub))?;
        }
        for left in self.fs.read_dir(&self.dir.join("tmp"))? {
            self.fs.remove_file(&left.path)?;
        }
        for shard in self.shards() {
            make(self.fs.as_ref(), &shard)?;
        }
        self.fs.sync_dir(&self.dir.join("blocks"))
    }

    fn shards(&self) -> impl Iterator<Item = PathBuf> {
        let blocks = self.dir.join("blocks");
        (0..=255_u8).map(move |octet| blocks.join(format!("{octet:02x}")))
    }

    fn scan(&self) -> Result<Vec<Present>, StoreError> {
        let shards: Vec<_> = self.shards().collect();
        let (found, strange) = scan(self.fs.as_ref(), &shards, |name| self.path(name))?;
        for path in strange {
            self.set_aside(&path);
        }
        Ok(found)
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    fn path(&self, name: &BlockName) -> PathBuf {
        let shard = format!("{:02x}", name.key.as_bytes()[0]);
        let file = format!("{}-{}-{}", name.compat, name.scope, name.key);
        self.dir.join("blocks").join(shard).join(file)
    }

    fn fresh(&self, sub: &str) -> PathBuf {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.dir.join(sub).join(format!("{}-{serial}", std::process::id()))
    }

    /// Writes the file of a block that is not there.
    pub(super) fn write(&self, block: &StoredBlock) -> io::Result<()> {
        let path = self.path(&block.meta.name);
        self.clear_leftovers()?;
        self.place(&path, block)?;
        self.sync_parent(&path).inspect_err(|_| {
            // Not known to be durable, so it must not be there.
            self.discard(path);
        })
    }

    /// Writes more layers of a block in place of the file of fewer. Where that fails half-way the longer file
    /// is cut to what was there before; `Err(true)` where even that failed.
    pub(super) fn extend(&self, block: &StoredBlock, before: u32) -> Result<(), (io::Error, bool)> {
        let path = self.path(&block.meta.name);
        self.clear_leftovers().and_then(|()| self.place(&path, block)).map_err(|error| (error, false))?;
        self.sync_parent(&path).map_err(|error| {
            let cut = self.fs.open_writable(&path);
            let cut = cut.and_then(|file| file.truncate(format::file_octets(&block.meta, before)));
            (error, cut.is_err())
        })
    }

    /// Writes a block aside, makes it durable and gives it its name.
    fn place(&self, path: &Path, block: &StoredBlock) -> io::Result<()> {
        let head = format::encode(&block.meta);
        let container = block.container.bytes();
        // A part has a header of its own; the file has the header of the whole.
        let data = container.get(block.container.header().octets()..).unwrap_or_default();
        self.place_parts(path, &[&head, data])
    }

    fn place_parts(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let aside = self.fresh("tmp");
        let written = (|| {
            let file = self.fs.create_new(&aside)?;
            let mut at = 0;
            for part in parts {
                file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            file.sync()?;
            drop(file);
            self.fs.rename(&aside, path)
        })();
        written.inspect_err(|_| self.discard(aside))
    }

    /// Writes a small file whole and durable, in place of one that is there.
    fn replace(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        self.place_parts(path, parts)?;
        self.sync_parent(path)
    }

    fn sync_parent(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |dir| self.fs.sync_dir(dir))
    }

    /// Removes a file that a failed write made, now or before the next write.
    fn discard(&self, path: PathBuf) {
        match self.fs.remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => self.lock_leftovers().push(path),
            _ => {}
        }
    }

    /// While something cannot be removed nothing is written, so the list stays as short as the writes that
    /// fail at once are few.
    fn clear_leftovers(&self) -> io::Result<()> {
        let mut leftovers = self.lock_leftovers();
        while let Some(path) = leftovers.last() {
            match self.fs.remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => drop(leftovers.pop()),
            }
        }
        Ok(())
    }

    fn lock_leftovers(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is held of a block.
    pub(super) fn read(&self, present: &Present) -> Result<Container, StoreError> {
        let meta = &present.meta;
        let file = self.find(&meta.name)?;
        let preface = format::preface_octets(meta) as u64;
        let header = meta.header.encode();
        let octets = if present.layers == meta.layer_count() {
            let octets = self.read_at(file.as_ref(), preface, meta.size(), &[])?;
            check_header(&octets, &header)?;
            octets
        } else {
            check_header(&self.read_at(file.as_ref(), preface, header.len() as u64, &[])?, &header)?;
            let leading = LayerRange::from_count(0, present.layers).and_then(|range| meta.header_of(range));
            let leading = leading.ok_or(StoreError::Rotten("it has no layers"))?.encode();
            let at = format::head_octets(meta) as u64;
            self.read_at(file.as_ref(), at, meta.data_octets(present.layers), &leading)?
        };
        container_of(meta, present.layers, octets)
    }

    /// Some of the layers that are held.
    pub(super) fn read_part(&self, meta: &BlockMeta, range: LayerRange) -> Result<BlockPart, StoreError> {
        let file = self.find(&meta.name)?;
        let start = format::file_octets(meta, range.first());
        let end = format::file_octets(meta, range.last().saturating_add(1));
        let data = self.read_at(file.as_ref(), start, end.saturating_sub(start), &[])?;
        part_of(meta, range, data)
    }

    /// What is read goes into buffers of `arena`.
    pub(super) fn use_buffers(&self, arena: Arena) {
        self.buffers.set(arena);
    }

    /// Octets of a file, behind others that are given, in a page-aligned buffer: copies out of the page cache
    /// into one that starts a few octets off are several times slower.
    fn read_at(
        &self,
        file: &dyn OpenFile,
        offset: u64,
        octets: u64,
        before: &[u8],
    ) -> Result<Bytes, StoreError> {
        // A rotten length must not make a reader allocate: what is not there cannot be read.
        if file.octets()? < offset.saturating_add(octets) {
            return Err(StoreError::Rotten("it is cut short"));
        }
        let octets = usize::try_from(octets).ok().and_then(|octets| octets.checked_add(before.len()));
        let octets = octets.ok_or(StoreError::Rotten("it does not fit"))?;
        let mut buffer = self.buffers.take(octets)?;
        let (head, data) = buffer.split_at_mut(before.len());
        head.copy_from_slice(before);
        match file.read_exact_at(data, offset) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(StoreError::Rotten("it is cut short"))
            }
            read => Ok(read.map(|()| buffer.freeze())?),
        }
    }

    fn find(&self, name: &BlockName) -> Result<Box<dyn OpenFile>, StoreError> {
        match present(self.fs.open(&self.path(name))) {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err(StoreError::Rotten("it is not a plain file"))
            }
            found => found?.ok_or(StoreError::Rotten("its file is gone")),
        }
    }

    /// Cuts a file to its leading layers. Whether the cut is done, though perhaps not durable, where this
    /// fails.
    pub(super) fn trim(&self, meta: &BlockMeta, layers: u32) -> Result<(), (io::Error, bool)> {
        let file = self.fs.open_writable(&self.path(&meta.name)).map_err(|error| (error, false))?;
        file.truncate(format::file_octets(meta, layers)).map_err(|error| (error, false))?;
        file.sync().map_err(|error| (error, true))
    }

    /// Removes a file that may be gone already.
    pub(super) fn remove(&self, name: &BlockName) -> io::Result<()> {
        present(self.fs.remove_file(&self.path(name))).map(drop)
    }

    /// A deleted block must not come back after a crash.
    pub(super) fn sync_removal(&self, name: &BlockName) -> io::Result<()> {
        self.sync_parent(&self.path(name))
    }

    pub(super) fn quarantine(&self, name: &BlockName) {
        self.set_aside(&self.path(name));
    }

    /// Moves a file to the quarantine, or deletes it where there is no room; it is never read again. Nothing
    /// is synced: should it come back after a crash, it is found rotten again.
    fn set_aside(&self, path: &Path) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        let octets = self.fs.octets(path).unwrap_or(0);
        let room = self.quarantine_octets.saturating_sub(self.quarantine_used());
        let moved = octets <= room && self.fs.rename(path, &self.fresh("quarantine")).is_ok();
        if !moved && let Err(error) = present(self.fs.remove_file(path)) {
            tracing::warn!(%error, "a rotten file can be neither moved aside nor deleted");
        }
    }

    fn quarantine_used(&self) -> u64 {
        let Ok(entries) = self.fs.read_dir(&self.dir.join("quarantine")) else {
            return u64::MAX;
        };
        entries.iter().filter_map(|entry| self.fs.octets(&entry.path).ok()).sum()
    }

    pub(super) fn leases_note(&self) -> Result<Option<String>, StoreError> {
        Ok(read_text(self.fs.as_ref(), &self.dir.join("leases"))?)
    }

    pub(super) fn note_leases(&self, note: &str) -> Result<(), StoreError> {
        Ok(self.replace(&self.dir.join("leases"), &[note.as_bytes()])?)
    }

    pub(super) fn next_epoch(&self, at_least: u64) -> Result<u64, StoreError> {
        let path = self.dir.join("epoch");
        let text = read_text(self.fs.as_ref(), &path)?;
        let before = text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        let epoch = at_least.max(before.saturating_add(1));
        self.replace(&path, &[format!("{epoch}\n").as_bytes()])?;
        Ok(epoch)
    }
}

/// `None` for what is not there.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make(fs: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match fs.create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes a directory and those above it that are missing.
fn make_all(fs: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match (make(fs, path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::NotFound => {
            make_all(fs, parent)?;
            make(fs, path)
        }
        (made, _) => made,
    }
}

/// Makes a directory so that it outlives a crash, with those above it that are missing.
fn make_durably(fs: &dyn FileSystem, path: &Path) -> io::Result<()> {
    make_all(fs, path)?;
    for parent in path.ancestors().skip(1) {
        // An empty parent is the working directory.
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs.sync_dir(parent) {
            // Not this process's to make, then: only what it may read can it have made.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

fn read_text(fs: &dyn FileSystem, path: &Path) -> io::Result<Option<String>> {
    let Some(file) = present(fs.open(path))? else {
        return Ok(None);
    };
    let mut octets = vec![0; file.octets()?.min(MAX_TEXT_OCTETS) as usize];
    file.read_exact_at(&mut octets, 0)?;
    Ok(Some(String::from_utf8_lossy(&octets).into_owned()))
}

fn check_header(octets: &[u8], header: &[u8]) -> Result<(), StoreError> {
    let same = octets.starts_with(header);
    same.then_some(()).ok_or(StoreError::Rotten("its header is not that of what was written"))
}
