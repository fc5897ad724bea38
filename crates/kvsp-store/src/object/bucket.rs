//! The objects of a store.
//!
//! ```text
//! prefix/owner          "KVSPOBJECT 1\n", and the base URI of the holder that the prefix belongs to
//! prefix/blocks/ab/     objects of the blocks whose key starts with octet ab, named compat-scope-key; each is
//!                       what the file of the block would be (see `disk::format`)
//! prefix/quarantine/    rotten objects
//! ```

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use kvsp_buffer::PageBuffer;
use object_store::path::Path as Key;
use object_store::{
    Error as ObjectError, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore as Backend,
    ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};

use super::ObjectConfig;
use crate::block::{BlockMeta, BlockName, StoredBlock};
use crate::disk::format::{self, Undecided};
use crate::store::StoreError;

const FORMAT: &str = "KVSPOBJECT 1\n";

const CUT_SHORT: StoreError = StoreError::Rotten("it is cut short");

/// Octets read at once from the start of an object: the head of most models.
const HEAD_GUESS: u64 = 4 << 10;

/// Heads read at once as the store opens: they wait for the network, one round trip each.
const READERS: usize = 128;

/// The layers of a block that an object holds.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) meta: Arc<BlockMeta>,
    pub(super) layers: u32,
}

#[derive(Debug)]
pub(super) struct Bucket {
    backend: Arc<dyn Backend>,
    prefix: Key,
    quarantine_octets: u64,
    quarantine_used: AtomicU64,
    quarantined: AtomicU64,
}

impl Bucket {
    /// Opens a prefix: itself, and the blocks in it.
    pub(super) async fn open(config: &ObjectConfig) -> Result<(Self, Vec<Present>), StoreError> {
        let (backend, prefix) = config.connect()?;
        let bucket = Self {
            backend,
            prefix,
            quarantine_octets: config.quarantine_octets,
            quarantine_used: AtomicU64::new(0),
            quarantined: AtomicU64::new(0),
        };
        bucket.take_possession(&config.owner).await?;
        config.sweep()?;
        let sub = bucket.prefix.clone().join("quarantine");
        let sizes = bucket.backend.list(Some(&sub)).map_ok(|object| object.size);
        let used = sizes.try_fold(0_u64, |sum, size| async move { Ok(sum.saturating_add(size)) });
        bucket.quarantine_used.store(used.await.map_err(failed)?, Ordering::Relaxed);
        let found = bucket.scan().await?;
        Ok((bucket, found))
    }

    /// Writes who owns the prefix, or finds that this holder does. There is no lease to run out: a prefix
    /// stays its holder's until the object `owner` is deleted by hand.
    async fn take_possession(&self, owner: &str) -> Result<(), StoreError> {
        let key = self.prefix.clone().join("owner");
        let ours = format!("{FORMAT}{owner}\n");
        let mode = PutOptions::from(PutMode::Create);
        match self.backend.put_opts(&key, ours.clone().into(), mode).await {
            Ok(_) => return Ok(()),
            Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => {}
            Err(error) => return Err(failed(error)),
        }
        let found = self.backend.get(&key).await.map_err(failed)?.bytes().await.map_err(failed)?;
        if found == ours.as_bytes() {
            Ok(())
        } else if found.starts_with(FORMAT.as_bytes()) {
            Err(StoreError::Unusable("the prefix belongs to another holder".into()))
        } else {
            Err(StoreError::Unusable("the prefix has another format".into()))
        }
    }

    async fn scan(&self) -> Result<Vec<Present>, StoreError> {
        let blocks = self.prefix.clone().join("blocks");
        let objects = self.backend.list(Some(&blocks)).map_err(failed);
        let read = |object: object_store::ObjectMeta| async move {
            let present = self.read_head(&object.location, object.size).await?;
            let named = |present: &Present| self.key(&present.meta.name) == object.location;
            let present = present.filter(named);
            if present.is_none() {
                self.set_aside(&object.location, object.size).await;
            }
            Ok::<_, StoreError>(present)
        };
        let found = objects.map_ok(read).try_buffer_unordered(READERS);
        found.try_filter_map(|present| async move { Ok(present) }).try_collect().await
    }

    async fn read_head(&self, key: &Key, size: u64) -> Result<Option<Present>, StoreError> {
        let mut want = HEAD_GUESS;
        loop {
            let read = want.min(size);
            // An object that went since it was listed is no block.
            let Some(octets) = self.read_key(key, 0..read).await? else {
                return Ok(None);
            };
            match format::decode(&octets) {
                Ok(meta) => {
                    let layers = format::layers_held(&meta, size);
                    return Ok(layers.map(|layers| Present { meta: Arc::new(meta), layers }));
                }
                Err(Undecided::More(more)) if more as u64 > want && read < size => want = more as u64,
                Err(_) => return Ok(None),
            }
        }
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    fn key(&self, name: &BlockName) -> Key {
        let shard = format!("{:02x}", name.key.as_bytes()[0]);
        let object = format!("{}-{}-{}", name.compat, name.scope, name.key);
        self.prefix.clone().join("blocks").join(shard).join(object)
    }

    /// Writes the object of a block, whole or not at all; in place of one that is there only where `grows`.
    pub(super) async fn write(&self, block: &StoredBlock, grows: bool) -> Result<(), StoreError> {
        let key = self.key(&block.meta.name);
        let container = block.container.bytes();
        let data = container.slice(block.container.header().octets()..);
        let payload = PutPayload::from_iter([Bytes::from(format::encode(&block.meta)), data]);
        let mode = if grows { PutMode::Overwrite } else { PutMode::Create };
        match self.backend.put_opts(&key, payload.clone(), mode.into()).await {
            // The prefix is this holder's, and it knows of no such block: this is what a put of its own left
            // whose answer was lost, perhaps the one before a retry. It may be this block or not.
            Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => {
                self.backend.put_opts(&key, payload, PutMode::Overwrite.into()).await.map_err(failed)?;
            }
            put => drop(put.map_err(failed)?),
        }
        Ok(())
    }

    /// Fills a buffer from `at` on with octets of a block's object, as they come; rotten where the object is gone
    /// or shorter.
    pub(super) async fn read(
        &self,
        name: &BlockName,
        range: Range<u64>,
        buffer: PageBuffer,
        at: usize,
    ) -> Result<PageBuffer, StoreError> {
        if range.is_empty() {
            return Ok(buffer);
        }
        let got = self.request(&self.key(name), range).await?;
        let got = got.ok_or(StoreError::Rotten("its object is gone"))?;
        match got.payload {
            GetResultPayload::File(file, _) => {
                let read = move || fill_from_file(&file, got.range.start, buffer, at);
                tokio::task::spawn_blocking(read).await.map_err(|_| StoreError::Stopped)?
            }
            GetResultPayload::Stream(octets) => fill_from_stream(octets, buffer, at).await,
        }
    }

    /// Exactly those octets; `None` where the object is not there.
    async fn read_key(&self, key: &Key, range: Range<u64>) -> Result<Option<Bytes>, StoreError> {
        if range.is_empty() {
            return Ok(Some(Bytes::new()));
        }
        let want = range.end - range.start;
        let Some(got) = self.request(key, range).await? else {
            return Ok(None);
        };
        let octets = got.bytes().await.map_err(failed)?;
        if octets.len() as u64 == want { Ok(Some(octets)) } else { Err(CUT_SHORT) }
    }

    /// The answer that has exactly those octets, not yet read; `None` where the object is not there.
    async fn request(&self, key: &Key, range: Range<u64>) -> Result<Option<GetResult>, StoreError> {
        let want = range.end - range.start;
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let got = match self.backend.get_opts(key, options).await {
            Ok(got) => got,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(error) if is_out_of_range(&error) => return Err(CUT_SHORT),
            Err(error) => return Err(failed(error)),
        };
        if got.range.end.checked_sub(got.range.start) == Some(want) { Ok(Some(got)) } else { Err(CUT_SHORT) }
    }

    /// Deletes a block's object, which may be gone already.
    pub(super) async fn delete(&self, name: &BlockName) -> Result<(), StoreError> {
        self.delete_key(&self.key(name)).await
    }

    async fn delete_key(&self, key: &Key) -> Result<(), StoreError> {
        match self.backend.delete(key).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) async fn quarantine(&self, name: &BlockName, octets: u64) {
        self.set_aside(&self.key(name), octets).await;
    }

    /// Moves an object to the quarantine, or deletes it where there is no room.
    async fn set_aside(&self, key: &Key, octets: u64) {
        let serial = self.quarantined.fetch_add(1, Ordering::Relaxed);
        let used = self.quarantine_used.fetch_add(octets, Ordering::Relaxed);
        let mut moved = false;
        if used.saturating_add(octets) <= self.quarantine_octets {
            let name = key.filename().unwrap_or_default();
            let to = self.prefix.clone().join("quarantine").join(format!("{serial}-{name}"));
            moved = self.backend.rename(key, &to).await.is_ok();
        }
        if moved {
            return;
        }
        self.quarantine_used.fetch_sub(octets, Ordering::Relaxed);
        if let Err(error) = self.delete_key(key).await {
            tracing::warn!(%error, "a rotten object can be neither moved aside nor deleted");
        }
    }
}

fn fill_from_file(
    file: &File,
    from: u64,
    mut buffer: PageBuffer,
    at: usize,
) -> Result<PageBuffer, StoreError> {
    match file.read_exact_at(buffer.get_mut(at..).unwrap_or_default(), from) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(CUT_SHORT),
        read => Ok(read.map(|()| buffer)?),
    }
}

/// Copies each piece as it comes, so that no more of the object is in memory than the buffer and one piece.
async fn fill_from_stream(
    mut pieces: impl Stream<Item = Result<Bytes, ObjectError>> + Unpin,
    mut buffer: PageBuffer,
    mut at: usize,
) -> Result<PageBuffer, StoreError> {
    while let Some(piece) = pieces.try_next().await.map_err(failed)? {
        let end = at.saturating_add(piece.len());
        let room = buffer.get_mut(at..end).ok_or(StoreError::Rotten("octets follow its last layer"))?;
        room.copy_from_slice(&piece);
        at = end;
    }
    if at == buffer.len() { Ok(buffer) } else { Err(CUT_SHORT) }
}

/// The errors beneath an error, itself first.
fn causes(error: &ObjectError) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    std::iter::from_fn(move || {
        let now = next?;
        next = now.source();
        Some(now)
    })
}

/// Whether the object ends before the range that was asked for.
fn is_out_of_range(error: &ObjectError) -> bool {
    causes(error).any(|cause| {
        let text = cause.to_string();
        text.contains("416 Range Not Satisfiable") || text.contains("Requested range")
    })
}

/// The failure of a device that is far away. A lack of room keeps its kind, so that it is told apart.
fn failed(error: ObjectError) -> StoreError {
    let kind = causes(&error).find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let full = ["507 Insufficient Storage", "QuotaExceeded", "XMinioStorageFull"];
    let kind = match (&error, kind) {
        (_, Some(kind)) => kind,
        (ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. }, _) => {
            ErrorKind::PermissionDenied
        }
        _ if causes(&error).any(|cause| full.iter().any(|full| cause.to_string().contains(full))) => {
            ErrorKind::StorageFull
        }
        _ => ErrorKind::Other,
    };
    StoreError::Io(io::Error::new(kind, error))
}
