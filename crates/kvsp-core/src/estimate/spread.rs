//! Spreading the blocks of a prefix over their sources, block by block.

use std::collections::BTreeMap;

use kvsp_proto::uri::HolderUri;

use super::Target;
use super::need::Task;

/// Three spreads side by side; each is one that an instance could follow.
#[derive(Debug, Default)]
pub(super) struct Spread<'a> {
    by_time: Loads<'a>,
    by_rate: Loads<'a>,
    balanced: Loads<'a>,
}

/// What every source has to deliver.
#[derive(Debug, Default)]
struct Loads<'a> {
    sources: BTreeMap<&'a HolderUri, Load>,
    slowest_us: f64,
}

/// A round trip and a sum of transfer times that keeps what a plain sum of doubles would lose.
#[derive(Debug, Clone, Copy)]
struct Load {
    rtt_us: f64,
    sum: f64,
    lost: f64,
}

impl Load {
    fn us(self) -> f64 {
        self.rtt_us + self.sum + self.lost
    }

    /// Neumaier's addition.
    fn add(&mut self, us: f64) {
        let sum = self.sum + us;
        self.lost += if self.sum >= us { (self.sum - sum) + us } else { (us - sum) + self.sum };
        self.sum = sum;
    }
}

impl<'a> Spread<'a> {
    /// Takes in the tasks of the next block and returns the µs of all blocks so far.
    pub(super) fn add(&mut self, target: &Target<'_>, tasks: Vec<Task<'a>>) -> f64 {
        let rtt = |holder: &HolderUri| target.rtt_us(holder);
        for task in tasks {
            if let Some(choice) = least(&task, |(holder, us)| rtt(holder) + us) {
                self.by_time.give(choice, rtt(choice.0));
            }
            if let Some(choice) = least(&task, |(_, us)| *us) {
                self.by_rate.give(choice, rtt(choice.0));
            }
            let balanced = &self.balanced;
            if let Some(choice) = least(&task, |(holder, us)| balanced.us_of(holder, rtt(holder)) + us) {
                self.balanced.give(choice, rtt(choice.0));
            }
        }
        self.by_time.slowest_us.min(self.by_rate.slowest_us).min(self.balanced.slowest_us)
    }
}

impl<'a> Loads<'a> {
    fn us_of(&self, holder: &HolderUri, rtt_us: f64) -> f64 {
        self.sources.get(holder).map_or(rtt_us, |load| load.us())
    }

    fn give(&mut self, (holder, us): (&'a HolderUri, f64), rtt_us: f64) {
        let load = self.sources.entry(holder).or_insert(Load { rtt_us, sum: 0.0, lost: 0.0 });
        load.add(us);
        self.slowest_us = self.slowest_us.max(load.us());
    }
}

/// The first choice of the least measure.
fn least<'a>(
    task: &Task<'a>,
    measure: impl Fn(&(&'a HolderUri, f64)) -> f64,
) -> Option<(&'a HolderUri, f64)> {
    task.iter().min_by(|a, b| measure(a).total_cmp(&measure(b))).copied()
}
