//! Rounds: each contestant in turn, on the same lookups, with the keys in the cache as after parsing.

use std::time::Instant;

use dynamo_kv_router::protocols::LocalBlockHash;
use kvsp_proto::id::BlockKey;
use nix::time::{ClockId, clock_gettime};

use crate::contestants::Contestant;
use crate::keys::{PROMPT, key, local, shuffled};

/// Lookups timed together; their keys fit in the second level of the cache.
const TOGETHER: usize = 16;

/// The figures of one contestant, one a round.
pub struct Series {
    pub name: String,
    /// µs of wall time for a lookup.
    pub wall_us: Vec<f64>,
    /// µs of CPU time of the looking thread for a lookup.
    pub cpu_us: Vec<f64>,
}

/// Prompts to ask for, in an order that no cache foresees.
pub struct Asked {
    order: Vec<usize>,
    at: usize,
    keys: Vec<[BlockKey; PROMPT]>,
    locals: Vec<[LocalBlockHash; PROMPT]>,
}

impl Asked {
    pub fn new(blocks: usize) -> Self {
        Self { order: shuffled(blocks / PROMPT), at: 0, keys: Vec::new(), locals: Vec::new() }
    }

    fn next(&mut self) {
        self.keys.clear();
        self.locals.clear();
        for _ in 0..TOGETHER {
            let prompt = self.order[self.at];
            self.at = (self.at + 1) % self.order.len();
            self.keys.push(std::array::from_fn(|n| key(prompt * PROMPT + n)));
            self.locals.push(std::array::from_fn(|n| local(prompt * PROMPT + n)));
        }
    }

    /// Seconds of wall and CPU time that `lookups` lookups take.
    pub fn time(&mut self, contestant: &dyn Contestant, lookups: usize) -> (f64, f64) {
        let (mut wall, mut cpu) = (0.0, 0.0);
        for _ in 0..lookups.div_ceil(TOGETHER) {
            self.next();
            let (began, used) = (Instant::now(), thread_cpu_s());
            for (keys, locals) in self.keys.iter().zip(&self.locals) {
                let matched = contestant.look_up(std::hint::black_box(keys), std::hint::black_box(locals));
                assert_eq!(std::hint::black_box(matched), PROMPT, "every contestant knows every prompt");
            }
            cpu += thread_cpu_s() - used;
            wall += began.elapsed().as_secs_f64();
        }
        (wall, cpu)
    }
}

pub fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock of this thread");
    time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9
}

/// Times all contestants in turn, `rounds` times after a warm-up.
pub fn rounds(
    asked: &mut Asked,
    contestants: &[(String, &dyn Contestant)],
    rounds: usize,
    lookups: usize,
) -> Vec<Series> {
    let mut all: Vec<Series> = contestants
        .iter()
        .map(|(name, _)| Series { name: name.clone(), wall_us: Vec::new(), cpu_us: Vec::new() })
        .collect();
    for round in 0..=rounds {
        for (series, (_, contestant)) in all.iter_mut().zip(contestants) {
            let (wall, cpu) = asked.time(*contestant, lookups);
            let count = lookups.div_ceil(TOGETHER) * TOGETHER;
            if round > 0 {
                series.wall_us.push(wall * 1e6 / count as f64);
                series.cpu_us.push(cpu * 1e6 / count as f64);
            }
        }
    }
    all
}

/// Median, lowest and highest.
pub fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    [at(values.len() / 2), at(0), at(values.len().saturating_sub(1))]
}
