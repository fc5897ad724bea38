//! An arena never lends more than its cap, and what fits beside the buffers in use is there.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use kvsp_buffer::{Arena, PageBuffer, footprint};

/// Operations of a churn: few under Miri, more where a soak asks for them.
fn operations() -> usize {
    let asked = std::env::var("KVSP_SOAK_OPS").ok().and_then(|text| text.parse().ok());
    if cfg!(miri) { 200 } else { asked.unwrap_or(20_000) }
}

/// A generator of the test's own: seeded, the same sizes each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound) as usize
    }
}

const KIB: usize = 1 << 10;

#[test]
fn what_is_used_is_counted_until_the_last_of_it_goes() {
    let arena = Arena::new(1 << 20);
    assert_eq!((arena.used(), arena.capacity()), (0, 1 << 20));
    let mut buffer = arena.take(200 * KIB + 1).unwrap();
    assert_eq!((buffer.len(), arena.used()), (200 * KIB + 1, footprint(200 * KIB + 1)));
    assert_eq!(buffer.footprint(), arena.used());
    buffer.fill(3);
    let start = buffer.as_ptr();
    let frozen = buffer.freeze();
    assert_eq!(frozen.as_ptr(), start, "not copied");
    let slice = frozen.slice(5..9);
    drop(frozen);
    assert_eq!(arena.used(), footprint(200 * KIB + 1));
    assert_eq!(slice, [3; 4].as_slice());
    drop(slice);
    assert_eq!(arena.used(), 0);
    assert_eq!(arena.copy_of(b"abc").unwrap(), "abc");
    assert_eq!(arena.used(), 0);
}

#[test]
fn buffers_are_aligned_to_pages() {
    let arena = Arena::new(64 << 20);
    for octets in [4096, 5000, 64 * KIB, 128 * KIB, 700 * KIB + 3] {
        assert_eq!(arena.take(octets).unwrap().as_ptr().align_offset(4096), 0, "{octets}");
        assert_eq!(PageBuffer::unpooled(octets).unwrap().as_ptr().align_offset(4096), 0, "{octets}");
    }
    assert_eq!(arena.take(0).unwrap().len(), 0);
}

#[test]
fn the_cap_holds_to_the_octet() {
    let arena = Arena::new(footprint(300 * KIB) + footprint(1));
    let large = arena.take(300 * KIB).unwrap();
    assert!(arena.take(65).is_none());
    let small = arena.take(64).unwrap();
    assert_eq!(arena.used(), arena.capacity());
    assert!(arena.take(0).is_none());
    drop(small);
    drop(large);
    assert!(arena.take(usize::MAX).is_none());
    assert_eq!(footprint(usize::MAX), u64::MAX);
    assert!(Arena::new(0).take(1).is_none());
}

#[test]
#[cfg(not(miri))]
fn a_freed_mapping_is_reused_and_gives_way_to_another_size() {
    let arena = Arena::new(footprint(400 * KIB));
    let first = arena.take(400 * KIB).unwrap();
    let start = first.as_ptr();
    drop(first);
    assert_eq!((arena.used(), arena.mapped()), (0, footprint(400 * KIB)));
    let again = arena.take(400 * KIB - 7).unwrap();
    assert_eq!(again.as_ptr(), start);
    drop(again);
    let other = arena.take(200 * KIB).unwrap();
    assert_eq!((arena.used(), arena.mapped()), (footprint(200 * KIB), footprint(200 * KIB)));
    drop(other);
    arena.trim();
    assert_eq!(arena.mapped(), 0);
}

#[test]
fn a_long_churn_of_sizes_leaves_no_creep() {
    let cap = 24 << 20;
    let arena = Arena::new(cap);
    let mut random = Random(11);
    let mut held: Vec<Bytes> = Vec::new();
    let mut refused = 0_u32;
    for step in 0..operations() {
        if random.below(3) == 0 && !held.is_empty() {
            held.swap_remove(random.below(held.len() as u64));
        }
        let octets = match random.below(4) {
            0 => random.below(5000),
            1 => random.below(128 << 10),
            2 => random.below(3 << 20),
            _ => 300 * KIB + 532,
        };
        let before = arena.used();
        match arena.take(octets) {
            Some(mut buffer) => {
                if let Some(octet) = buffer.last_mut() {
                    *octet = 1;
                }
                held.push(buffer.freeze());
            }
            None => {
                refused += 1;
                // Only for want of room, whatever is kept for reuse.
                assert!(before + footprint(octets) > cap, "step {step}: {octets} beside {before}");
                held.swap_remove(random.below(held.len() as u64));
            }
        }
        assert!(arena.used() <= arena.mapped() && arena.mapped() <= cap, "step {step}");
        assert_eq!(arena.used(), held.iter().map(|bytes| footprint(bytes.len())).sum::<u64>());
    }
    assert!(refused > 0 || cfg!(miri));
    // The largest buffer that fits beside what is held, and then one of the whole cap.
    let left = (cap - arena.used()) / 4096 * 4096;
    drop(arena.take(usize::try_from(left).unwrap()).unwrap());
    held.clear();
    assert_eq!(arena.used(), 0);
    let mut whole = arena.take(usize::try_from(cap).unwrap()).unwrap();
    whole[0] = 1;
    assert!(arena.take(1).is_none());
}

#[test]
fn threads_share_a_cap() {
    let cap = 8 << 20;
    let arena = Arena::new(cap);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|seed| {
                let arena = arena.clone();
                scope.spawn(move || {
                    let mut random = Random(seed);
                    let mut held = Vec::new();
                    for _ in 0..operations() / 10 {
                        match arena.take(random.below(2 << 20)) {
                            Some(mut buffer) => {
                                let mark = seed as u8;
                                buffer.iter_mut().step_by(4096).for_each(|octet| *octet = mark);
                                held.push(buffer.freeze());
                            }
                            None => held.truncate(held.len() / 2),
                        }
                        for bytes in &held {
                            assert!(bytes.iter().step_by(4096).all(|octet| u64::from(*octet) == seed));
                        }
                    }
                })
            })
            .collect();
        let watch = arena.clone();
        let stop = &stop;
        let watcher = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                assert!(watch.mapped() <= cap);
                thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    assert_eq!(arena.used(), 0);
}
