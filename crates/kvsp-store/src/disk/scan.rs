//! Finding the blocks that an earlier process left.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::files::Present;
use crate::block::BlockName;
use crate::disk::format::{self, Undecided};
use crate::fs::FileSystem;
use crate::store::StoreError;

/// Octets read at once from the start of a file: the head of most models.
const HEAD_GUESS: usize = 4 << 10;

/// Threads that sync directories and read heads: what they wait for is mostly the device.
const READERS: usize = 8;

/// What was found: blocks, and paths that are no blocks.
type Found = (Vec<Present>, Vec<PathBuf>);

/// Makes the names in all `shards` durable and reads the heads of their files, several at once. A file is a block where it is one by its head
/// and length, and has the name that `path_of` gives it.
pub(super) fn scan(
    fs: &dyn FileSystem,
    shards: &[PathBuf],
    path_of: impl Fn(&BlockName) -> PathBuf + Sync,
) -> Result<Found, StoreError> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Ok((Vec::new(), Vec::new())));
    thread::scope(|scope| {
        for _ in 0..READERS {
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
    // An earlier process may have died before it did: what it removed must not come back once it was told
    // that it is gone, nor what is found vanish.
    fs.sync_dir(shard)?;
    let (mut blocks, mut strange) = (Vec::new(), Vec::new());
    for entry in fs.read_dir(shard)? {
        let present = if entry.is_file { read_head(fs, &entry.path)? } else { None };
        match present.filter(|present| path_of(&present.meta.name) == entry.path) {
            Some(present) => blocks.push(present),
            None => strange.push(entry.path),
        }
    }
    Ok((blocks, strange))
}

/// The block whose file this is; `None` where it is not a block's, or does not end with a layer.
fn read_head(fs: &dyn FileSystem, path: &Path) -> Result<Option<Present>, StoreError> {
    let file = fs.open(path)?;
    let length = file.octets()?;
    let mut octets = Vec::new();
    let mut want = HEAD_GUESS;
    loop {
        let from = octets.len();
        octets.resize(usize::try_from(length).map_or(want, |length| length.min(want)), 0);
        file.read_exact_at(&mut octets[from..], from as u64)?;
        match format::decode(&octets) {
            Ok(meta) => {
                let layers = format::layers_held(&meta, length);
                return Ok(layers.map(|layers| Present { meta: Arc::new(meta), layers }));
            }
            Err(Undecided::More(more)) if more > want && (octets.len() as u64) < length => want = more,
            Err(_) => return Ok(None),
        }
    }
}
