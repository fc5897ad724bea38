//! The bare durability of a device.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::super::error::BenchError;

/// Octets of one record: about what a checkpoint of one token comes to.
pub(super) const RECORD_OCTETS: usize = 256;
const WHAT: &str = "the device of the state";

/// A file on it.
pub(super) struct Device(File);

impl Device {
    /// An empty file in a directory.
    pub(super) fn open(dir: &Path) -> Result<Self, BenchError> {
        File::create(dir.join("synced")).map(Self).map_err(BenchError::io(WHAT))
    }

    /// Appends records, each on the device before the next one.
    pub(super) fn write(&mut self, records: u32) -> Result<(), BenchError> {
        for _ in 0..records {
            self.0.write_all(&[0x5A; RECORD_OCTETS]).map_err(BenchError::io(WHAT))?;
            self.0.sync_data().map_err(BenchError::io(WHAT))?;
        }
        Ok(())
    }
}

/// What the file system is, as far as it decides what a sync is worth.
pub(super) fn kind(dir: &Path) -> &'static str {
    match statfs(dir) {
        Ok(about) if about.filesystem_type() == TMPFS_MAGIC => "memory alone: nothing on it is durable",
        Ok(_) => "a file system on a device",
        Err(_) => "an unknown file system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_written() {
        let dir = tempfile::tempdir().unwrap();
        Device::open(dir.path()).unwrap().write(3).unwrap();
        let octets = std::fs::metadata(dir.path().join("synced")).unwrap().len();
        assert_eq!(octets, 3 * RECORD_OCTETS as u64);
    }
}
