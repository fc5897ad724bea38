//! The directory of a disk store.
//!
//! ```text
//! FORMAT        "KVSPDISK 1\n", locked by the process that uses the directory
//! epoch         the highest epoch handed out, in decimal
//! blocks/ab/    files of the blocks whose key starts with octet ab, named compat-scope-key
//! tmp/          files being written; emptied at the start
//! quarantine/   rotten files
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvsp_proto::container::{Container, Header, LayerRange, StreamEvent, StreamParser};
use kvsp_proto::digest::sha256;

use super::{DiskConfig, buffer, format, shared};
use crate::block::{BlockMeta, BlockName, BlockPart};
use crate::store::StoreError;

const FORMAT: &str = "KVSPDISK 1\n";

/// Octets read at once from the start of a file: the head and header of most models.
const HEAD_GUESS: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    quarantine_octets: u64,
    quarantined: AtomicU64,
    /// Names files that must not clash, within this process.
    serial: AtomicU64,
    /// Held for its lock.
    _lock: File,
}

impl Files {
    /// Opens the directory: itself, and the blocks in it.
    pub(super) fn open(config: DiskConfig) -> Result<(Self, Vec<Arc<BlockMeta>>), StoreError> {
        let DiskConfig { dir, quarantine_octets } = config;
        fs::create_dir_all(&dir)?;
        let lock = lock(&dir)?;
        for sub in ["blocks", "quarantine", "tmp"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        for octet in 0..=255_u8 {
            fs::create_dir_all(dir.join("blocks").join(format!("{octet:02x}")))?;
        }
        for left in fs::read_dir(dir.join("tmp"))? {
            fs::remove_file(left?.path())?;
        }
        sync_dir(&dir.join("blocks"))?;
        sync_dir(&dir)?;
        let counters = (AtomicU64::new(0), AtomicU64::new(0));
        let files = Self { dir, quarantine_octets, quarantined: counters.0, serial: counters.1, _lock: lock };
        let found = files.scan()?;
        Ok((files, found))
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    fn scan(&self) -> Result<Vec<Arc<BlockMeta>>, StoreError> {
        let mut found = Vec::new();
        for octet in 0..=255_u8 {
            for entry in fs::read_dir(self.dir.join("blocks").join(format!("{octet:02x}")))? {
                let path = entry?.path();
                match read_meta(&path)? {
                    Some(meta) if self.path(&meta.name) == path => found.push(meta),
                    _ => self.set_aside(&path),
                }
            }
        }
        Ok(found)
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

    pub(super) fn write(&self, meta: &BlockMeta, container: &[u8]) -> io::Result<()> {
        self.replace(&self.path(&meta.name), &[&format::encode(meta), container])
    }

    /// Writes a file whole and durable, or not at all.
    fn replace(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let aside = self.fresh("tmp");
        let written = (|| {
            let mut file = File::create_new(&aside)?;
            for part in parts {
                file.write_all(part)?;
            }
            file.sync_all()?;
            fs::rename(&aside, path)
        })();
        if let Err(error) = written {
            // Of no use to anyone; where it cannot be removed now, the next start does.
            let _ = fs::remove_file(&aside);
            return Err(error);
        }
        if let Err(error) = path.parent().map_or(Ok(()), sync_dir) {
            // Not known to be durable, so it must not be there.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(())
    }

    /// The container of a block; `None` where the file went since.
    pub(super) fn read(&self, meta: &BlockMeta) -> Result<Option<Container>, StoreError> {
        let Some(file) = open(&self.path(&meta.name))? else {
            return Ok(None);
        };
        let octets = read_at(&file, format::head_octets(meta) as u64, meta.size())?;
        let container = Container::parse(shared(octets), &format::LIMITS)
            .map_err(|_| StoreError::Rotten("it is no container"))?;
        if !format::is_intact(meta, &container) {
            return Err(StoreError::Rotten("its digests are not those of what was written"));
        }
        Ok(Some(container))
    }

    /// Some layers that the block has; `None` where the file went since.
    pub(super) fn read_part(
        &self,
        meta: &BlockMeta,
        range: LayerRange,
    ) -> Result<Option<BlockPart>, StoreError> {
        let Some(file) = open(&self.path(&meta.name))? else {
            return Ok(None);
        };
        let lengths = meta.header.lengths();
        let (first, last) = (range.first() as usize, range.last() as usize);
        let octets = |lengths: &[(u64, u64)]| lengths.iter().map(|(k, v)| k + v).sum::<u64>();
        // The header's own sum of all lengths did not overflow, so parts of it do not.
        let (Some(before), Some(wanted)) = (lengths.get(..first), lengths.get(first..=last)) else {
            return Ok(None);
        };
        let start = (format::head_octets(meta) + meta.header.octets()) as u64 + octets(before);
        let data = read_at(&file, start, octets(wanted))?;
        let mut at = 0;
        for (&(k, v), digest) in wanted.iter().zip(meta.layer_digests.iter().skip(first)) {
            let end = at + (k + v) as usize;
            if data.get(at..end).is_none_or(|layer| sha256(layer) != *digest) {
                return Err(StoreError::Rotten("a layer digest is not that of what was written"));
            }
            at = end;
        }
        let header = Header::new(meta.codec, range.first(), meta.header.token_count(), wanted.to_vec())
            .map_err(|_| StoreError::Rotten("its header is no header"))?;
        Ok(Some(BlockPart { head: header.encode().into(), data: shared(data) }))
    }

    pub(super) fn delete(&self, name: &BlockName) -> io::Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A deleted block must not come back after a crash.
        path.parent().map_or(Ok(()), sync_dir)
    }

    pub(super) fn quarantine(&self, name: &BlockName) {
        self.set_aside(&self.path(name));
    }

    /// Moves a file to the quarantine, or deletes it where there is no room; it is never read again.
    fn set_aside(&self, path: &Path) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        let octets = fs::metadata(path).map_or(0, |meta| meta.len());
        let room = self.quarantine_octets.saturating_sub(self.quarantine_used());
        let moved = octets <= room && fs::rename(path, self.fresh("quarantine")).is_ok();
        if !moved && let Err(error) = fs::remove_file(path) {
            tracing::warn!(%error, "a rotten file can be neither moved aside nor deleted");
        }
    }

    fn quarantine_used(&self) -> u64 {
        let Ok(entries) = fs::read_dir(self.dir.join("quarantine")) else {
            return u64::MAX;
        };
        entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
    }

    pub(super) fn next_epoch(&self, at_least: u64) -> Result<u64, StoreError> {
        let path = self.dir.join("epoch");
        let before = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        let epoch = at_least.max(before.saturating_add(1));
        self.replace(&path, &[format!("{epoch}\n").as_bytes()])?;
        Ok(epoch)
    }
}

/// The lock of a directory whose format is this one's.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("FORMAT");
    let mut file = File::options().read(true).append(true).create(true).open(&path)?;
    file.try_lock().map_err(|_| StoreError::Unusable("another process has the directory".into()))?;
    let found = fs::read_to_string(&path)?;
    if found.is_empty() {
        file.write_all(FORMAT.as_bytes())?;
        file.sync_all()?;
    } else if found != FORMAT {
        return Err(StoreError::Unusable("the directory has another format".into()));
    }
    Ok(file)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_at(file: &File, offset: u64, octets: u64) -> Result<Vec<u8>, StoreError> {
    // A rotten length must not make a reader allocate: what is not there cannot be read.
    if file.metadata()?.len() < offset.saturating_add(octets) {
        return Err(StoreError::Rotten("it is cut short"));
    }
    let mut buffer = buffer(octets)?;
    file.read_exact_at(&mut buffer, offset)?;
    Ok(buffer)
}

/// The meta data of a block's file, whose length fits them; `None` where it is not a block's.
fn read_meta(path: &Path) -> Result<Option<Arc<BlockMeta>>, StoreError> {
    let file = File::open(path)?;
    let stat = file.metadata()?;
    if !stat.is_file() {
        return Ok(None);
    }
    let mut want = HEAD_GUESS;
    loop {
        let present = stat.len().min(want as u64);
        let octets = read_at(&file, 0, present)?;
        let more = match format::decode(&octets) {
            None => return Ok(None),
            Some(Err(more)) => more,
            Some(Ok((head, length))) => match read_header(&octets, length, head.layer_digests.len()) {
                Err(None) => return Ok(None),
                Err(Some(more)) => more,
                Ok(header) => {
                    let whole = header.container_octets().checked_add(length as u64);
                    return Ok((whole == Some(stat.len())).then(|| head.with(header)).flatten());
                }
            },
        };
        if present == stat.len() || more <= want {
            return Ok(None);
        }
        want = more;
    }
}

/// The header of the container that starts at `at`; `Err` with the octets needed, if any help.
fn read_header(octets: &[u8], at: usize, layers: usize) -> Result<Header, Option<usize>> {
    use kvsp_proto::container::{ENTRY_OCTETS, HEADER_OCTETS};
    let length = HEADER_OCTETS + ENTRY_OCTETS * layers;
    let header = octets.get(at..at + length).ok_or(Some(at + length))?;
    let mut parser = StreamParser::single(format::LIMITS);
    parser.push(header.to_vec().into());
    match parser.next_event() {
        Ok(Some(StreamEvent::Header(header))) => Ok(header),
        _ => Err(None),
    }
}
