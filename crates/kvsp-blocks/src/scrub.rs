//! Verifying what lies below host memory, so that rot is found before somebody asks for it.

use std::time::Duration;

use kvsp_core::tier::Level;
use kvsp_store::{BlockName, StoreError};
use tokio_util::sync::CancellationToken;

use crate::room::Patience;
use crate::service::BlockService;
use crate::state::Seen;

/// Shortest time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

impl BlockService {
    /// Reads every block below host memory, one after the other, at the configured rate and a little out of
    /// step with other holders, until `stop`. What is rotten is lost in that tier.
    pub(crate) async fn keep_scrubbing(&self, stop: CancellationToken) {
        if self.config.scrub_octets_per_s == 0 {
            stop.cancelled().await;
            return;
        }
        let mut after: Option<BlockName> = None;
        loop {
            let next = {
                let state = self.state();
                state.holdings.after(after.as_ref()).next().copied()
            };
            let wait = match next {
                Some(name) => match stop.run_until_cancelled(self.scrub(name)).await {
                    Some(octets) => self.pause(octets),
                    None => return,
                },
                None => {
                    if after.is_some() {
                        self.metrics.scrub_rounds.inc();
                    }
                    ROUND
                }
            };
            after = next;
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// How long so many octets are to take, up to a quarter more or less by chance.
    fn pause(&self, octets: u64) -> Duration {
        let micros = u128::from(octets) * 1_000_000 / u128::from(self.config.scrub_octets_per_s);
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        let spread = (micros / 2).max(1);
        Duration::from_micros(micros - micros / 4 + self.random.u64() % spread)
    }

    /// Verifies a block in every tier below host memory; the octets read. Where there is no memory to read it
    /// into, not even after a time, its turn comes in the next round.
    async fn scrub(&self, name: BlockName) -> u64 {
        let mut octets = 0_u64;
        for level in [Level::Disk, Level::Object] {
            let seen = self.state().see(&name);
            let (Some(Seen { meta, held }), Some(store)) = (seen, self.tiers.store(level)) else {
                continue;
            };
            if held[level] == 0 {
                continue;
            }
            let size = meta.container_octets(held[level]);
            let Ok(_room) = self.room_for(size, Patience::Waits).await else {
                continue;
            };
            let read = store.get(name).await;
            if matches!(read, Err(StoreError::NoMemory)) {
                continue;
            }
            octets = octets.saturating_add(store.charge(&meta, held[level]));
            if let Err(error) = self.sound(&meta, level, read).await {
                tracing::warn!(block = ?name, ?level, %error, "a block could not be verified");
            }
        }
        self.metrics.scrubbed.inc_by(octets);
        octets
    }
}
