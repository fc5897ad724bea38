//! Lookups while others publish: the index behind one lock, as the service has it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use kvsp_core::index::{Index, Publisher};
use nix::time::{ClockId, clock_gettime};

use super::fill::{self, Digests, NOW, mix};
use super::{Asked, BenchError, look_up};
use crate::commands::bench::goal::Goal;
use crate::commands::bench::measure::figure;
use crate::commands::bench::report::Figure;

const PUBLISHERS: u64 = 4;
/// Records that all publishers together refresh in a second.
const RATE: u64 = 20_000;
/// Records refreshed under one lock.
const ITEMS_A_LOCK: u64 = 32;

/// Lookups without and with publishers, in turn.
pub(super) fn measure(
    index: &mut Index,
    asked: &mut Asked,
    blocks: usize,
    rounds: usize,
    lookups: usize,
) -> Result<Vec<Figure>, BenchError> {
    let index = RwLock::new(index);
    let (busy, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut times = [const { Vec::new() }; 2];
    let measured = std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|publisher| {
                let (index, busy, stop) = (&index, &busy, &stop);
                scope.spawn(move || publish(index, blocks, publisher, busy, stop))
            })
            .collect();
        let measured = (|| {
            for round in 0..=rounds {
                for (with, times) in times.iter_mut().enumerate() {
                    busy.store(with == 1, Ordering::Release);
                    let before = thread_cpu_s()?;
                    let took = asked.time(lookups, &|keys| {
                        look_up(&index.read().unwrap_or_else(PoisonError::into_inner), keys)
                    })?;
                    if round > 0 {
                        times.push((took.wall_s, thread_cpu_s()? - before));
                    }
                }
            }
            Ok::<(), BenchError>(())
        })();
        stop.store(true, Ordering::Release);
        for publisher in publishers {
            publisher.join().map_err(|_| BenchError::Ended("a publisher"))??;
        }
        measured
    });
    measured?;
    let [quiet, with] = &times;
    let named =
        |what: &str| format!("{what} with {PUBLISHERS} publishers of {RATE} records/s / without, {blocks}");
    let wall = quiet.iter().zip(with).map(|(quiet, with)| with.0 / quiet.0);
    let cpu = quiet.iter().zip(with).map(|(quiet, with)| with.1 / quiet.1);
    Ok(vec![
        figure(named("prefix order: time by the clock"), "ratio", wall).should_be(Goal::AtMost(2.0)),
        figure(named("prefix order: CPU time, making of keys included,"), "ratio", cpu),
    ])
}

fn publish(
    index: &RwLock<&mut Index>,
    blocks: usize,
    publisher: u64,
    busy: &AtomicBool,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let mut n = publisher << 40;
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_micros(PUBLISHERS * ITEMS_A_LOCK * 1_000_000 / RATE));
        if !busy.load(Ordering::Acquire) {
            continue;
        }
        let records = (n..n + ITEMS_A_LOCK)
            .map(|n| fill::record((mix(n) % blocks as u64) as usize, 0, Digests::None))
            .collect::<Result<Vec<_>, _>>()?;
        n += ITEMS_A_LOCK;
        let mut index = index.write().unwrap_or_else(PoisonError::into_inner);
        for record in &records {
            let put = index.put(record, Publisher::Holder, NOW);
            put.map_err(|_| BenchError::Differ("refreshes"))?;
        }
    }
    Ok(())
}

/// CPU time of this thread.
fn thread_cpu_s() -> Result<f64, BenchError> {
    let time =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(BenchError::system("clock_gettime"))?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}
