//! Time and CPU time of a piece of work, and the figures of several rounds.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use super::error::BenchError;
use super::report::Figure;
use super::row::Row;

/// What one piece of work took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Seconds on the clock.
    pub(super) wall_s: f64,
    /// Seconds of CPU time of this process, user and system, all threads.
    pub(super) cpu_s: f64,
    /// Seconds of CPU time of the process that serves, where there is one.
    pub(super) server_cpu_s: f64,
}

impl Sample {
    /// CPU time of both ends.
    pub(super) fn both_cpu_s(&self) -> f64 {
        self.cpu_s + self.server_cpu_s
    }
}

/// The CPU time of a process, of all threads that it has or had.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuClock(ClockId);

impl CpuClock {
    /// That of this process.
    pub(super) const fn own() -> Self {
        Self(ClockId::CLOCK_PROCESS_CPUTIME_ID)
    }

    /// That of another process.
    pub(super) fn of(process: Pid) -> Result<Self, BenchError> {
        clock_getcpuclockid(process).map(Self).map_err(BenchError::system("a process's CPU time"))
    }

    fn seconds(self) -> Result<f64, BenchError> {
        let time = self.0.now().map_err(BenchError::system("CPU time"))?;
        Ok(Duration::from(time).as_secs_f64())
    }
}

/// Does the work and tells what it took.
pub(super) fn sample<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<(T, Sample), BenchError> {
    sample_with(None, work)
}

/// The same, with the CPU time of the process that serves.
pub(super) fn sample_with<T>(
    server: Option<CpuClock>,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, Sample), BenchError> {
    let at_server = || server.map_or(Ok(0.0), CpuClock::seconds);
    let (serving, cpu, start) = (at_server()?, CpuClock::own().seconds()?, Instant::now());
    let done = work()?;
    let wall_s = start.elapsed().as_secs_f64();
    let cpu_s = CpuClock::own().seconds()? - cpu;
    Ok((done, Sample { wall_s, cpu_s, server_cpu_s: at_server()? - serving }))
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

    /// What a round takes on the clock, in ms.
    pub(super) fn time(&self) -> Figure {
        figure(format!("{}: time", self.name), "ms", self.samples.iter().map(|s| s.wall_s * 1e3))
    }

    /// Things done a second, round by round.
    pub(super) fn rates(&self, count: f64) -> impl Iterator<Item = f64> {
        self.samples.iter().map(move |sample| count / sample.wall_s)
    }

    /// Things done in a second of the serving process's CPU time.
    pub(super) fn server_rate(&self, count: f64, unit: &'static str) -> Figure {
        let name = format!("{}: for a CPU second of the server", self.name);
        figure(name, unit, self.samples.iter().map(|s| count / s.server_cpu_s))
    }

    /// CPU seconds of this process for each 10^9 octets, where every round is over `octets`.
    pub(super) fn cpu_per_gb(&self, octets: f64) -> Figure {
        let name = format!("{}: CPU of this process", self.name);
        figure(name, "CPU s/GB", self.samples.iter().map(|s| s.cpu_s / octets * 1e9))
    }

    /// CPU seconds of the serving process for each 10^9 octets.
    pub(super) fn server_cpu_per_gb(&self, octets: f64) -> Figure {
        let name = format!("{}: CPU of the server", self.name);
        figure(name, "CPU s/GB", self.samples.iter().map(|s| s.server_cpu_s / octets * 1e9))
    }

    /// µs of CPU time, picked out of a sample, for each of `count` things.
    pub(super) fn cpu_us(&self, count: f64, what: &str, took: impl Fn(&Sample) -> f64) -> Figure {
        let name = format!("{}: CPU of {what}", self.name);
        figure(name, "CPU us", self.samples.iter().map(|s| took(s) / count * 1e6))
    }

    /// How the speed of this contestant compares with that of others that do their work one after the other;
    /// 1 where both take as long.
    pub(super) fn speed_ratio(&self, name: impl Into<String>, others: &[&Self]) -> Figure {
        let wall_s = |sample: &Sample| sample.wall_s;
        let rounds = self.rounds(others, wall_s, wall_s);
        figure(name.into(), "ratio", rounds.map(|(own, theirs)| theirs / own))
    }

    /// The same for speed by the CPU time of both ends: how it would compare by the clock on one idle core.
    /// Other work on the machine changes it less.
    pub(super) fn cpu_speed_ratio(&self, name: impl Into<String>, others: &[&Self]) -> Figure {
        let rounds = self.rounds(others, Sample::both_cpu_s, Sample::both_cpu_s);
        figure(name.into(), "ratio", rounds.map(|(own, theirs)| theirs / own))
    }

    /// How the CPU time, as `took` picks it out of a sample, of the rest of this contestant's work compares
    /// with that of another, where `part` of it was measured apart: 2 where the other takes twice as much.
    pub(super) fn cpu_speed_ratio_without(
        &self,
        name: impl Into<String>,
        part: &Self,
        other: &Self,
        took: impl Fn(&Sample) -> f64,
    ) -> Figure {
        let (all, parts) = ([other], part.samples.iter().map(&took));
        let rounds = self.rounds(&all, &took, &took).zip(parts);
        figure(name.into(), "ratio", rounds.map(|((own, theirs), part)| theirs / (own - part)))
    }

    /// How the CPU time of this contestant, as `own` picks it out of a sample, compares with what `theirs`
    /// picks out of those of others, together: 2 where it is twice as much.
    pub(super) fn cpu_ratio(
        &self,
        name: impl Into<String>,
        others: &[&Self],
        own: impl Fn(&Sample) -> f64,
        theirs: impl Fn(&Sample) -> f64,
    ) -> Figure {
        figure(name.into(), "ratio", self.rounds(others, own, theirs).map(|(own, theirs)| own / theirs))
    }

    /// Round by round what this contestant took and what the others took together.
    fn rounds(
        &self,
        others: &[&Self],
        own: impl Fn(&Sample) -> f64,
        theirs: impl Fn(&Sample) -> f64,
    ) -> impl Iterator<Item = (f64, f64)> {
        self.samples.iter().enumerate().map(move |(round, sample)| {
            let others = others.iter().filter_map(|other| other.samples.get(round));
            (own(sample), others.map(&theirs).sum())
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
    Figure { min: at(0), max: at(values.len().saturating_sub(1)), ..row.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> (f64, f64, f64) {
        let figure = figure(String::new(), "", values.iter().copied());
        (figure.min, figure.row.value, figure.max)
    }

    fn numbers(figure: &Figure) -> (f64, f64, f64) {
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
            walls
                .iter()
                .for_each(|&s| series.push(Sample { wall_s: s, cpu_s: s / 4.0, server_cpu_s: s / 2.0 }));
            series
        };
        let (own, one, two) = (series(&[2.0, 4.0]), series(&[1.0, 2.0]), series(&[1.0, 6.0]));
        assert_eq!(numbers(&own.speed_ratio("r", &[&one, &two])), (1.0, 1.5, 2.0));
        assert_eq!(numbers(&own.cpu_speed_ratio("r", &[&one, &two])), (1.0, 1.5, 2.0));
        let without = own.cpu_speed_ratio_without("r", &one, &two, Sample::both_cpu_s);
        assert_eq!(numbers(&without), (1.0, 2.0, 3.0));
        let ratio = own.cpu_ratio("r", &[&one, &two], |s| s.server_cpu_s, |s| s.cpu_s);
        assert_eq!(numbers(&ratio), (1.0, 1.5, 2.0));
    }

    #[test]
    fn the_cpu_time_of_this_process_is_that_of_its_id() {
        let (own, by_id) = (CpuClock::own(), CpuClock::of(Pid::this()).unwrap());
        let before = own.seconds().unwrap();
        let between = by_id.seconds().unwrap();
        assert!(before > 0.0 && before <= between && between <= own.seconds().unwrap());
    }
}
