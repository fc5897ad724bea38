//! Until when leases may last, kept beside the blocks: a process that was killed leaves promises behind that the
//! next one must keep, and knows of them only this much.
//!
//! The horizon is made durable before a lease is granted that goes beyond it, a little ahead, so that it is written
//! every few seconds and not with every lease. It is kept on the boot-time clock; over a boot nobody knows how much
//! time has passed, and the longest TTL is assumed.

use std::sync::Arc;
use std::time::Duration;

use kvsp_core::time::Time;
use kvsp_net::clock::{BootTime, Clock};
use kvsp_store::{DiskStore, StoreError};
use tokio::sync::Mutex;

/// How far ahead the horizon is written, in ms.
const AHEAD_MS: u64 = 10_000;

/// The horizon of one process.
pub(crate) struct LeaseHorizon {
    /// `None` where blocks do not outlive the process, or lie in an object store alone.
    disk: Option<Arc<DiskStore>>,
    clock: Arc<dyn Clock>,
    /// What is durable.
    kept: Mutex<Time>,
}

impl LeaseHorizon {
    /// Takes up the horizon of an earlier process: until when, at the latest, its leases last.
    ///
    /// # Errors
    /// I/O.
    pub(crate) async fn open(
        disk: Option<Arc<DiskStore>>,
        clock: Arc<dyn Clock>,
        max_ttl_ms: u64,
    ) -> Result<(Self, Time), StoreError> {
        let now = clock.now();
        let longest = now.after_millis(max_ttl_ms);
        let until = match &disk {
            None => longest,
            Some(disk) => match disk.leases_note().await? {
                None => now,
                Some(note) => read(&note, clock.boot_time(), now).map_or(longest, |until| until.min(longest)),
            },
        };
        Ok((Self { disk, clock, kept: Mutex::new(Time::default()) }, until))
    }

    /// A lease of `ttl_ms` is about to be granted: when this resolves, a later process will know.
    ///
    /// # Errors
    /// I/O: then the lease must not be granted.
    pub(crate) async fn cover(&self, ttl_ms: u64) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let mut kept = self.kept.lock().await;
        let now = self.clock.now();
        if now.after_millis(ttl_ms) <= *kept {
            return Ok(());
        }
        let until = now.after_millis(ttl_ms.saturating_add(AHEAD_MS));
        disk.note_leases(write(until, self.clock.boot_time(), now)).await?;
        *kept = until;
        Ok(())
    }
}

/// The boot and the time since it, in µs; a clock that knows of no boot leaves what nobody can read.
fn write(until: Time, boot: Option<BootTime>, now: Time) -> String {
    boot.map_or_else(
        || "unknown\n".to_owned(),
        |BootTime { boot, since }| {
            let ahead = Duration::from_millis(now.millis_until(until));
            format!("{boot} {}\n", (since + ahead).as_micros())
        },
    )
}

/// `None` for another boot, and for what cannot be read.
fn read(note: &str, boot: Option<BootTime>, now: Time) -> Option<Time> {
    let BootTime { boot, since } = boot?;
    let (of, micros) = note.trim_end().split_once(' ')?;
    if of.parse() != Ok(boot) {
        return None;
    }
    let until = Time::from_micros(micros.parse().ok()?);
    Some(now.after_millis(since.millis_until(until).saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_holds_for_its_boot_alone() {
        let boot =
            |n: u128, ms| Some(BootTime { boot: uuid::Uuid::from_u128(n), since: Time::from_millis(ms) });
        let at = Time::from_millis;
        let note = write(at(70_000), boot(1, 5_000), at(10_000));
        // Five seconds later by the boot, in a process whose own clock is at one second.
        let read_back = read(&note, boot(1, 10_000), at(1_000)).unwrap();
        assert_eq!(at(1_000).millis_until(read_back), 55_001, "rounded up");
        assert_eq!(read(&note, boot(1, 80_000), at(1_000)), Some(at(1_001)), "it has passed");
        assert_eq!(read(&note, boot(2, 10_000), at(1_000)), None, "another boot");
        assert_eq!(read(&note, None, at(1_000)), None);
        for junk in ["", "unknown\n", "x 1\n", "00000000-0000-0000-0000-000000000001 -1"] {
            assert_eq!(read(junk, boot(1, 0), at(0)), None, "{junk}");
        }
    }
}
