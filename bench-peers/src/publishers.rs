//! Lookups while others publish: the index behind one lock, as a service has it.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dynamo_kv_router::protocols::LocalBlockHash;
use kvsp_core::index::{Index, Publisher};
use kvsp_proto::id::BlockKey;

use crate::contestants::{Contestant, NOW, record};
use crate::keys::mix;
use crate::measure::{Asked, Series};

/// Records refreshed under one lock, as a batch does it.
const ITEMS_A_LOCK: usize = 32;
const PUBLISHERS: u64 = 4;

struct Locked<'a>(&'a RwLock<Index>);

impl Contestant for Locked<'_> {
    fn look_up(&self, keys: &[BlockKey], locals: &[LocalBlockHash]) -> usize {
        self.0.read().expect("no one panics").look_up(keys, locals)
    }
}

/// One round with no publisher and one with four, in turn. `rate` is records a second of all together;
/// without it they publish as fast as they can.
pub fn measure(
    asked: &mut Asked,
    index: Index,
    blocks: usize,
    rate: Option<u64>,
    rounds: usize,
    lookups: usize,
) -> (Index, [Series; 2], f64) {
    let index = RwLock::new(index);
    let (paused, stop, published) = (AtomicBool::new(true), AtomicBool::new(false), AtomicU64::new(0));
    let how = rate.map_or("at full speed".to_owned(), |rate| format!("{rate} records/s"));
    let mut series = ["behind a lock, quiet".to_owned(), format!("behind a lock, 4 publishers, {how}")]
        .map(|name| Series { name, wall_us: Vec::new(), cpu_us: Vec::new() });
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let (index, paused, stop, published) = (&index, &paused, &stop, &published);
            scope.spawn(move || publish(index, blocks, publisher, rate, paused, stop, published));
        }
        for round in 0..=rounds {
            for (busy, series) in series.iter_mut().enumerate() {
                paused.store(busy == 0, Ordering::Release);
                std::thread::sleep(Duration::from_millis(5));
                let began = Instant::now();
                let (wall, cpu) = asked.time(&Locked(&index), lookups);
                if busy == 1 {
                    seconds += began.elapsed().as_secs_f64();
                }
                if round > 0 {
                    series.wall_us.push(wall * 1e6 / lookups as f64);
                    series.cpu_us.push(cpu * 1e6 / lookups as f64);
                }
            }
        }
        stop.store(true, Ordering::Release);
    });
    let done = published.load(Ordering::Acquire) as f64 / seconds;
    (index.into_inner().expect("no one panics"), series, done)
}

fn publish(
    index: &RwLock<Index>,
    blocks: usize,
    publisher: u64,
    rate: Option<u64>,
    paused: &AtomicBool,
    stop: &AtomicBool,
    published: &AtomicU64,
) {
    let mut n = publisher << 40;
    while !stop.load(Ordering::Acquire) {
        if paused.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let records: Vec<_> = (0..ITEMS_A_LOCK)
            .map(|_| {
                n += 1;
                record((mix(n) % blocks as u64) as usize)
            })
            .collect();
        let mut index = index.write().expect("no one panics");
        for record in &records {
            index.put(record, Publisher::Holder, NOW).expect("a refresh");
        }
        drop(index);
        published.fetch_add(ITEMS_A_LOCK as u64, Ordering::AcqRel);
        if let Some(rate) = rate {
            std::thread::sleep(Duration::from_secs_f64(
                ITEMS_A_LOCK as f64 * PUBLISHERS as f64 / rate as f64,
            ));
        }
    }
}
