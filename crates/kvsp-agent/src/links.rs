//! The paths from this instance to holders, as transfers measured them (draft section 4.4, `links`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvsp_proto::record::Link;
use kvsp_proto::uri::{BaseUri, HolderUri};

/// Holders that are remembered at most.
const MAX_LINKS: usize = 256;
/// Weight of the newest transfer.
const WEIGHT: f64 = 0.3;
/// Transfers smaller than this say more about latency than about rate.
const RATE_OCTETS: u64 = 256 << 10;

#[derive(Debug, Clone, Copy)]
struct Path {
    mbit_per_s: f64,
    rtt_us: f64,
    measured: bool,
}

/// Links by holder.
#[derive(Debug)]
pub(crate) struct Links {
    assumed_mbit_per_s: f64,
    paths: Mutex<BTreeMap<HolderUri, Path>>,
}

impl Links {
    pub(crate) const fn new(assumed_mbit_per_s: f64) -> Self {
        Self { assumed_mbit_per_s, paths: Mutex::new(BTreeMap::new()) }
    }

    fn with<R>(&self, run: impl FnOnce(&mut BTreeMap<HolderUri, Path>) -> R) -> R {
        run(&mut self.paths.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a holder was reached before.
    pub(crate) fn knows(&self, holder: &BaseUri) -> bool {
        self.with(|paths| paths.contains_key(&HolderUri::from(holder)))
    }

    /// A holder answered a small request in this time.
    pub(crate) fn reached(&self, holder: &BaseUri, rtt: Duration) {
        let assumed = self.assumed_mbit_per_s;
        self.with(|paths| {
            if paths.len() >= MAX_LINKS && !paths.contains_key(&HolderUri::from(holder)) {
                paths.pop_first();
            }
            let path = paths.entry(holder.into()).or_insert(Path {
                mbit_per_s: assumed,
                rtt_us: f64::INFINITY,
                measured: false,
            });
            path.rtt_us = path.rtt_us.min(rtt.as_secs_f64() * 1e6);
        });
    }

    /// A transfer from a holder ended.
    pub(crate) fn transferred(&self, holder: &BaseUri, octets: u64, spent: Duration) {
        if octets < RATE_OCTETS || spent.is_zero() {
            return;
        }
        let rate = octets as f64 * 8.0 / (spent.as_secs_f64() * 1e6);
        self.with(|paths| {
            if let Some(path) = paths.get_mut(&HolderUri::from(holder)) {
                path.mbit_per_s =
                    if path.measured { path.mbit_per_s + WEIGHT * (rate - path.mbit_per_s) } else { rate };
                path.measured = true;
            }
        });
    }

    /// The links as a status reports them, ordered by holder.
    pub(crate) fn report(&self) -> Vec<Link> {
        self.with(|paths| {
            paths
                .iter()
                .map(|(holder, path)| Link {
                    holder: holder.clone(),
                    mbit_per_s: path.mbit_per_s.round(),
                    rtt_us: path.rtt_us.round(),
                })
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_assumed_then_measured_then_smoothed() {
        let (links, holder) = (Links::new(100.0), "http://h/".parse().unwrap());
        links.transferred(&holder, 1 << 20, Duration::from_secs(1));
        assert!(links.report().is_empty(), "never reached");
        links.reached(&holder, Duration::from_micros(50));
        links.reached(&holder, Duration::from_micros(80));
        let link = |l: &Links| (l.report()[0].mbit_per_s, l.report()[0].rtt_us);
        assert_eq!(link(&links), (100.0, 50.0));
        links.transferred(&holder, 1_000_000, Duration::from_millis(8));
        assert_eq!(link(&links), (1000.0, 50.0));
        links.transferred(&holder, 1_000_000, Duration::from_millis(4));
        assert_eq!(link(&links), (1300.0, 50.0));
        links.transferred(&holder, 1000, Duration::from_secs(9));
        assert_eq!(link(&links), (1300.0, 50.0), "too small to say anything");
    }
}
