//! Contestants that are measured in turns, round by round, so that what else happens on the machine meets all
//! of them.

use std::ops::Index;

use indicatif::ProgressBar;

use super::error::BenchError;
use super::measure::{CpuClock, Sample, Series, sample_with};

type Work<'a> = Box<dyn FnMut() -> Result<(), BenchError> + 'a>;

/// Contestants before and while they are measured.
#[derive(Default)]
pub(super) struct Contest<'a> {
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    series: Series,
    server: Option<CpuClock>,
    work: Work<'a>,
    /// Puts back what the work changed; not measured.
    after: Option<Work<'a>>,
}

/// Names a contestant of one contest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entrant(usize);

/// What was measured.
pub(super) struct Results(Vec<Series>);

impl<'a> Contest<'a> {
    /// A contestant; `server` is the process that serves it, where that is another.
    pub(super) fn enter(
        &mut self,
        name: impl Into<String>,
        server: Option<CpuClock>,
        work: impl FnMut() -> Result<(), BenchError> + 'a,
    ) -> Entrant {
        self.entries.push(Entry { series: Series::new(name), server, work: Box::new(work), after: None });
        Entrant(self.entries.len() - 1)
    }

    /// What is to be done, and not measured, each time after a contestant did its work.
    pub(super) fn after(&mut self, entrant: Entrant, work: impl FnMut() -> Result<(), BenchError> + 'a) {
        if let Some(entry) = self.entries.get_mut(entrant.0) {
            entry.after = Some(Box::new(work));
        }
    }

    /// Measures `rounds` rounds after one to warm up. The order turns round by round.
    pub(super) fn run(
        mut self,
        rounds: usize,
        bar: &ProgressBar,
        label: &str,
    ) -> Result<Results, BenchError> {
        for round in 0..=rounds {
            bar.set_message(format!("{label}, round {round} of {rounds}"));
            for place in 0..self.entries.len() {
                let turn = if round % 2 == 0 { place } else { self.entries.len() - 1 - place };
                if let Some(entry) = self.entries.get_mut(turn) {
                    let took = entry.run()?;
                    if round > 0 {
                        entry.series.push(took);
                    }
                }
            }
        }
        Ok(Results(self.entries.into_iter().map(|entry| entry.series).collect()))
    }
}

impl Entry<'_> {
    fn run(&mut self) -> Result<Sample, BenchError> {
        let ((), took) = sample_with(self.server, &mut self.work)?;
        if let Some(after) = &mut self.after {
            after()?;
        }
        Ok(took)
    }
}

impl Index<Entrant> for Results {
    type Output = Series;

    fn index(&self, entrant: Entrant) -> &Series {
        &self.0[entrant.0]
    }
}

impl Results {
    /// Every contestant in the order in which they entered.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Series> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn contestants_take_turns_and_the_first_round_does_not_count() {
        let log = RefCell::new(String::new());
        let say = |letter: char| {
            let log = &log;
            move || {
                log.borrow_mut().push(letter);
                Ok(())
            }
        };
        let mut contest = Contest::default();
        let a = contest.enter("a", None, say('a'));
        contest.enter("b", None, say('b'));
        contest.after(a, say('-'));
        let results = contest.run(2, &ProgressBar::hidden(), "x").unwrap();
        assert_eq!(*log.borrow(), "a-bba-a-b");
        assert_eq!(results.iter().count(), 2);
        assert!(results[a].rate(1.0, "1/s").max.is_finite());
    }

    #[test]
    fn what_fails_ends_the_contest() {
        let mut contest = Contest::default();
        contest.enter("a", None, || Err(BenchError::Ended("a")));
        assert!(matches!(contest.run(2, &ProgressBar::hidden(), "x"), Err(BenchError::Ended("a"))));
    }
}
