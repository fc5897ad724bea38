//! Frames in a file, under one digest: each its length and its octets, after the last a length of 0 and the
//! SHA-256 of everything before.

use kvsp_proto::digest::Hasher;
use kvsp_store::fs::OpenFile;

use super::SnapshotError;

/// Octets written or read at a time.
const PIECE: usize = 1 << 20;

/// Octets of the largest frame: a record of the most layers that a record may list has about 2 MiB.
const MAX_FRAME: usize = 8 << 20;

/// Octets of the digest at the end.
const DIGEST: usize = 32;

/// Octets of a frame's length.
const LENGTH: usize = 4;

/// Writes a file from its beginning.
pub(super) struct Writer<'a> {
    file: &'a dyn OpenFile,
    piece: Vec<u8>,
    hasher: Hasher,
    written: u64,
    max: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(file: &'a dyn OpenFile, max: u64) -> Self {
        Self { file, piece: Vec::with_capacity(PIECE), hasher: Hasher::new(), written: 0, max }
    }

    pub(super) fn put(&mut self, octets: &[u8]) -> Result<(), SnapshotError> {
        self.piece.extend_from_slice(octets);
        if self.written + self.piece.len() as u64 + (LENGTH + DIGEST) as u64 > self.max {
            return Err(SnapshotError::TooLarge { max: self.max });
        }
        if self.piece.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    pub(super) fn frame(&mut self, octets: &[u8]) -> Result<(), SnapshotError> {
        let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        self.put(&length.to_be_bytes())?;
        self.put(octets)
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        self.hasher.update(&self.piece);
        self.file.write_all_at(&self.piece, self.written)?;
        self.written += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    /// Ends the file; answers its octets.
    pub(super) fn finish(mut self) -> Result<u64, SnapshotError> {
        self.put(&[0; LENGTH])?;
        self.flush()?;
        let digest = std::mem::take(&mut self.hasher).finish();
        self.file.write_all_at(digest.as_bytes(), self.written)?;
        Ok(self.written + DIGEST as u64)
    }
}

/// Reads a file from its beginning, checking its digest at the end.
pub(super) struct Reader<'a> {
    file: &'a dyn OpenFile,
    /// Read from the file, but not taken yet: from `at` on.
    piece: Vec<u8>,
    at: usize,
    hasher: Hasher,
    /// Octets read from the file.
    read: u64,
    /// Octets before the digest.
    end: u64,
}

const CUT: SnapshotError = SnapshotError::Damaged("it ends too early");

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a dyn OpenFile) -> Result<Self, SnapshotError> {
        let end = file.octets()?.saturating_sub(DIGEST as u64);
        Ok(Self { file, piece: Vec::new(), at: 0, hasher: Hasher::new(), read: 0, end })
    }

    /// The next octets.
    pub(super) fn take(&mut self, octets: usize) -> Result<&[u8], SnapshotError> {
        if self.piece.len() - self.at < octets {
            self.fill(octets)?;
        }
        let taken = self.piece.get(self.at..self.at + octets).ok_or(CUT)?;
        self.at += octets;
        Ok(taken)
    }

    fn fill(&mut self, octets: usize) -> Result<(), SnapshotError> {
        self.piece.drain(..self.at);
        self.at = 0;
        let have = self.piece.len();
        let left = usize::try_from(self.end - self.read).unwrap_or(usize::MAX);
        let more = left.min(octets.max(PIECE) - have);
        self.piece.resize(have + more, 0);
        let fresh = self.piece.get_mut(have..).unwrap_or_default();
        self.file.read_exact_at(fresh, self.read)?;
        self.hasher.update(fresh);
        self.read += more as u64;
        Ok(())
    }

    /// The next frame; `None` after the last, once all is as it was written.
    pub(super) fn frame(&mut self) -> Result<Option<&[u8]>, SnapshotError> {
        let length = self.take(LENGTH)?.try_into().map_or(0, u32::from_be_bytes) as usize;
        if length == 0 {
            return self.check_end().map(|()| None);
        }
        if length > MAX_FRAME {
            return Err(SnapshotError::Damaged("an entry is too long"));
        }
        self.take(length).map(Some)
    }

    fn check_end(&mut self) -> Result<(), SnapshotError> {
        if self.read != self.end || self.at != self.piece.len() {
            return Err(SnapshotError::Damaged("it goes on after its end"));
        }
        let mut digest = [0; DIGEST];
        self.file.read_exact_at(&mut digest, self.end)?;
        if *std::mem::take(&mut self.hasher).finish().as_bytes() == digest {
            return Ok(());
        }
        Err(SnapshotError::Damaged("its digest is another"))
    }
}
