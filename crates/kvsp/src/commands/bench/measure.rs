//! Time and CPU time of a piece of work, and the figures of several rounds.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::BenchError;
use super::report::Figure;
use super::row::Row;

/// What one piece of work took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Seconds on the clock.
    pub(super) wall_s: f64,
    /// Seconds of CPU time of the whole process, user and system, all threads.
    pub(super) cpu_s: f64,
}

/// Does the work and tells what it took.
pub(super) fn sample<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, Sample), BenchError> {
    let (cpu, start) = (cpu_s()?, Instant::now());
    let done = work()?;
    let wall_s = start.elapsed().as_secs_f64();
    Ok((done, Sample { wall_s, cpu_s: cpu_s()? - cpu }))
}

fn cpu_s() -> Result<f64, BenchError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(BenchError::Usage)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The samples of one contestant, one a round.
#[derive(Debug, Clone)]
pub(super) struct Series {
    name: String,
    samples: Vec<Sample>,
}

impl Series {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), samples: Vec::new() }
    }

    pub(super) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// Things done a second, where every round does `count` of them.
    pub(super) fn rate(&self, count: f64, unit: &'static str) -> Figure {
        figure(self.name.clone(), unit, self.samples.iter().map(|s| count / s.wall_s))
    }

    /// CPU seconds for each 10^9 octets, where every round is over `octets`.
    pub(super) fn cpu_per_gb(&self, octets: f64) -> Figure {
        let name = format!("{}: CPU", self.name);
        figure(name, "CPU s/GB", self.samples.iter().map(|s| s.cpu_s / octets * 1e9))
    }

    /// How the speed of this contestant compares with that of others that do their work one after the other;
    /// 1 where both take as long.
    pub(super) fn speed_ratio(&self, name: String, others: &[&Self]) -> Figure {
        figure(name, "ratio", self.rounds(others, |sample| sample.wall_s).map(|(own, theirs)| theirs / own))
    }

    /// How the CPU time of this contestant compares with that of others together: 2 where it takes twice as
    /// much. Other work on the machine changes it less than it changes the speed.
    pub(super) fn cpu_ratio(&self, name: String, others: &[&Self]) -> Figure {
        figure(name, "ratio", self.rounds(others, |sample| sample.cpu_s).map(|(own, theirs)| own / theirs))
    }

    /// Round by round what this contestant took and what the others took together.
    fn rounds(&self, others: &[&Self], took: impl Fn(&Sample) -> f64) -> impl Iterator<Item = (f64, f64)> {
        self.samples.iter().enumerate().map(move |(round, own)| {
            let theirs = others.iter().filter_map(|other| other.samples.get(round));
            (took(own), theirs.map(&took).sum())
        })
    }
}

/// Median, lowest and highest. Without values, or with one that is not a number, the figure is not one either.
pub(super) fn figure(name: String, unit: &'static str, values: impl IntoIterator<Item = f64>) -> Figure {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (at(values.len().saturating_sub(1) / 2), at(values.len() / 2));
    let row = Row { name, value: f64::midpoint(low, high), unit };
    Figure { row, min: at(0), max: at(values.len().saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> (f64, f64, f64) {
        let figure = figure(String::new(), "", values.iter().copied());
        (figure.min, figure.row.value, figure.max)
    }

    #[test]
    fn a_figure_is_the_median_between_the_extremes() {
        assert_eq!(of(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), (1.0, 2.5, 4.0));
        assert_eq!(of(&[7.0]), (7.0, 7.0, 7.0));
        assert!(of(&[]).1.is_nan());
    }

    #[test]
    fn a_ratio_compares_within_a_round() {
        let series = |walls: &[f64]| {
            let mut series = Series::new("x");
            walls.iter().for_each(|&wall_s| series.push(Sample { wall_s, cpu_s: wall_s }));
            series
        };
        let (own, one, two) = (series(&[2.0, 4.0]), series(&[1.0, 2.0]), series(&[1.0, 6.0]));
        let ratio = own.speed_ratio("r".into(), &[&one, &two]);
        assert_eq!((ratio.min, ratio.row.value, ratio.max), (1.0, 1.5, 2.0));
        let ratio = own.cpu_ratio("r".into(), &[&one, &two]);
        assert_eq!((ratio.min, ratio.row.value, ratio.max), (0.5, 0.75, 1.0));
    }
}
