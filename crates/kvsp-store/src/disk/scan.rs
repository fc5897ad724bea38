//! Finding the blocks that an earlier process left.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::files::{Present, read_at};
use crate::block::BlockName;
use crate::disk::format::{self, Undecided};
use crate::fs::FileSystem;
use crate::store::StoreError;

/// Octets read at once from the start of a file: the head of most models.
const HEAD_GUESS: usize = 4 << 10;

/// Threads that read heads: what they wait for is mostly the device.
const MAX_READERS: usize = 8;

/// What was found: blocks, and paths that are no blocks.
type Found = (Vec<Present>, Vec<PathBuf>);

/// Reads the heads of all files in `shards`, several at once. A file is a block where it is one by its head
/// and length, and has the name that `path_of` gives it.
pub(super) fn scan(
    fs: &dyn FileSystem,
    shards: &[PathBuf],
    path_of: impl Fn(&BlockName) -> PathBuf + Sync,
) -> Result<Found, StoreError> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Ok((Vec::new(), Vec::new())));
    let readers = thread::available_parallelism().map_or(1, usize::from).min(MAX_READERS);
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                while let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = scan_shard(fs, shard, &path_of);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    match (all.as_mut(), found) {
                        (Ok((blocks, strange)), Ok(found)) => {
                            blocks.extend(found.0);
                            strange.extend(found.1);
                        }
                        (Ok(_), Err(error)) => *all = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn scan_shard(
    fs: &dyn FileSystem,
    shard: &Path,
    path_of: impl Fn(&BlockName) -> PathBuf,
) -> Result<Found, StoreError> {
    let (mut blocks, mut strange) = (Vec::new(), Vec::new());
    for path in fs.read_dir(shard)? {
        match read_head(fs, &path)? {
            Some(present) if path_of(&present.meta.name) == path => blocks.push(present),
            _ => strange.push(path),
        }
    }
    Ok((blocks, strange))
}

/// The block whose file this is; `None` where it is not a block's, or does not end with a layer.
fn read_head(fs: &dyn FileSystem, path: &Path) -> Result<Option<Present>, StoreError> {
    let found = fs.metadata(path)?;
    if !found.is_file {
        return Ok(None);
    }
    let file = fs.open(path)?;
    let mut want = HEAD_GUESS;
    loop {
        let present = found.octets.min(want as u64);
        let octets = read_at(file.as_ref(), 0, present)?;
        match format::decode(&octets) {
            Ok(meta) => {
                let layers = format::layers_held(&meta, found.octets);
                return Ok(layers.map(|layers| Present { meta: Arc::new(meta), layers }));
            }
            Err(Undecided::More(more)) if present < found.octets && more > want => want = more,
            Err(_) => return Ok(None),
        }
    }
}
