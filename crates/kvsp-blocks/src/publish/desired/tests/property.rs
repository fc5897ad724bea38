//! [`Desired`] against an index that loses its state, drops requests and answers, is late, sheds load and
//! refuses records, in virtual time. `KVSP_SOAK_OPS` sets the number of operations.

use std::collections::BTreeMap;

use super::*;

const KEYS: u64 = 40;
const TTL_MS: u64 = 60_000;
const CANARY_MS: u64 = 200;
const MAX_WITHDRAWALS: usize = 8;
/// How long after it was given up a request may still be carried out.
const MAX_LATE_MS: u64 = 2_000;
/// How long an answer may take.
const MAX_DELAY_MS: u64 = 80;
/// A restart takes longer than the time for which no question is asked.
const RESTART_MS: u64 = 260;
/// Within this time after the last fault, all that is held is known: back-off or `Retry-After`, canary,
/// window of the start and refusals, one after the other.
const SETTLED_MS: u64 = 1_500 + 250 + 2_000 + 2_000;

#[derive(Clone, Copy)]
struct Item {
    key: u32,
    put: bool,
    seq: u64,
}

/// A record, or with `deadline` but no `live` a tombstone.
#[derive(Clone, Copy)]
struct Slot {
    seq: u64,
    deadline: u64,
    live: bool,
}

/// The index: what it keeps of each replica.
#[derive(Clone, Default)]
struct Model(BTreeMap<u32, Slot>);

impl Model {
    fn apply(&mut self, item: Item, now: u64) -> Answer {
        let before = self.0.get(&item.key).copied().filter(|slot| slot.deadline > now);
        if before.is_some_and(|slot| slot.seq > item.seq) {
            return Answer::Refused;
        }
        self.0.insert(item.key, Slot { seq: item.seq, deadline: now + TTL_MS, live: item.put });
        if !item.put {
            return Answer::Withdrawn;
        }
        Answer::Published { ttl_ms: TTL_MS, created: !before.is_some_and(|slot| slot.live) }
    }

    fn delete_holder(&mut self) {
        self.0.retain(|_, slot| !slot.live);
    }

    fn live(&self, now: u64) -> BTreeSet<u32> {
        let live = self.0.iter().filter(|(_, slot)| slot.live && slot.deadline > now);
        live.map(|(key, _)| *key).collect()
    }
}

struct World {
    desired: Desired<u32>,
    index: Model,
    snapshot: Model,
    down_until: u64,
    held: BTreeSet<u32>,
    /// When a block that is not held was last held.
    gone: BTreeMap<u32, u64>,
    /// Requests that were given up, and when they arrive all the same.
    late: Vec<(u64, Vec<Item>)>,
    seq: u64,
    now: u64,
    random: u64,
    faults: bool,
    losses: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut desired = Desired::new(Pace { max_withdrawals: MAX_WITHDRAWALS, ..PACE });
        desired.set_canary(CANARY_MS);
        Self {
            desired,
            index: Model::default(),
            snapshot: Model::default(),
            down_until: 0,
            held: BTreeSet::new(),
            gone: BTreeMap::new(),
            late: Vec::new(),
            seq: 0,
            now: 0,
            random: seed,
            faults: true,
            losses: 0,
        }
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % of
    }

    fn jitter(&mut self) -> u64 {
        self.chance(u64::MAX)
    }

    /// Something happens at the holder.
    fn change_holdings(&mut self) {
        let key = u32::try_from(self.chance(KEYS)).unwrap();
        if self.held.contains(&key) && self.chance(2) == 0 {
            self.held.remove(&key);
            self.gone.insert(key, self.now);
            self.desired.withdraw(key, at(self.now));
        } else {
            // New, or its residency changed: told after a moment.
            let delay = if self.held.insert(key) { 0 } else { 100 };
            self.gone.remove(&key);
            self.desired.publish(key, at(self.now + delay));
        }
    }

    /// Something happens to the index.
    fn change_index(&mut self) {
        match self.chance(4) {
            0 => self.snapshot = self.index.clone(),
            1 => self.index = Model::default(),
            2 => self.index = self.snapshot.clone(),
            _ => self.snapshot = Model::default(),
        }
        let restart = RESTART_MS + self.chance(3_000);
        self.down_until = self.now + restart;
        self.losses += 1;
    }

    fn advance(&mut self, ms: u64) {
        self.now += ms;
        let now = self.now;
        let (arrived, late) = std::mem::take(&mut self.late).into_iter().partition(|(when, _)| *when <= now);
        self.late = late;
        for (when, items) in arrived {
            for item in items {
                self.index.apply(item, when);
            }
        }
    }

    /// One step of the driver, if anything is due.
    fn drive(&mut self) {
        if self.desired.next().is_none_or(|next| next > at(self.now)) {
            return;
        }
        let jitter = self.jitter();
        if self.desired.needs_reset(at(self.now)) {
            if self.is_down() {
                self.desired.unanswered(&[], TTL_MS, None, at(self.now), jitter);
            } else {
                self.index.delete_holder();
                self.desired.was_reset(at(self.now), jitter);
            }
            return;
        }
        if let Some((key, seq)) = self.desired.question(at(self.now)) {
            return self.ask(key, seq);
        }
        let mut room = 1 + self.chance(60);
        let jobs = self.desired.take(at(self.now), |_| {
            room = room.saturating_sub(1);
            room > 0
        });
        // As in a batch: puts, then deletes.
        let (puts, deletes): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.kind == JobKind::Put);
        let mut jobs: Vec<_> = puts.into_iter().chain(deletes).collect();
        if jobs.is_empty() {
            return;
        }
        let mut items = Vec::new();
        for job in &mut jobs {
            self.seq += 1;
            job.seq = self.seq;
            assert_eq!(job.kind == JobKind::Put, self.held.contains(&job.key), "told what is not so");
            items.push(Item { key: job.key, put: job.kind == JobKind::Put, seq: self.seq });
        }
        self.send(&jobs, &items);
    }

    fn ask(&mut self, key: u32, seq: u64) {
        let sent = self.now;
        let found = self.index.0.get(&key).filter(|slot| slot.live && slot.deadline > sent);
        let known = found.is_some_and(|slot| slot.seq >= seq);
        let fails = self.is_down() || (self.faults && self.chance(16) == 0);
        if self.faults {
            self.change_holdings();
            let delay = self.chance(MAX_DELAY_MS);
            self.advance(delay);
        }
        let jitter = self.jitter();
        if fails {
            self.desired.unanswered(&[], TTL_MS, None, at(self.now), jitter);
        } else {
            self.desired.is_known(known, at(sent), at(self.now), jitter);
        }
    }

    fn is_down(&self) -> bool {
        self.now < self.down_until
    }

    fn send(&mut self, jobs: &[Job<u32>], items: &[Item]) {
        let sent = self.now;
        let fault = if self.faults { self.chance(16) } else { 15 };
        let down = self.is_down();
        let mut answers = Vec::new();
        if !down && fault >= 3 {
            for item in items {
                let refuses = fault == 4 && self.chance(3) == 0;
                answers.push(if refuses { Answer::Refused } else { self.index.apply(*item, self.now) });
            }
        }
        if !down && fault == 1 {
            let when = self.now + self.chance(MAX_LATE_MS);
            self.late.push((when, items.to_vec()));
        }
        // Blocks come and go while the request is under way.
        if self.faults {
            for _ in 0..self.chance(3) {
                self.change_holdings();
            }
            let delay = self.chance(MAX_DELAY_MS);
            self.advance(delay);
        }
        let jitter = self.jitter();
        if down || fault <= 3 {
            let retry_ms = (!down && fault == 2).then_some(1_000);
            self.desired.unanswered(jobs, TTL_MS, retry_ms, at(self.now), jitter);
            return;
        }
        self.desired.heard(at(sent), at(self.now), jitter);
        for (job, answer) in jobs.iter().zip(answers) {
            let jitter = self.jitter();
            self.desired.answered(*job, answer, at(sent), at(self.now), jitter);
        }
    }

    /// Lets the driver work undisturbed for a time.
    fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while let Some(next) = self.desired.next() {
            let next = next.as_micros().div_ceil(1000).max(self.now);
            if next > end {
                break;
            }
            self.advance(next - self.now);
            self.drive();
            self.check();
            self.advance(1);
        }
        self.advance(end.saturating_sub(self.now));
    }

    /// What holds at every moment.
    fn check(&self) {
        assert!(self.desired.len() <= self.held.len() + MAX_WITHDRAWALS, "{} entries", self.desired.len());
        for key in self.index.live(self.now).difference(&self.held) {
            let late = self.now.saturating_sub(self.gone[key]);
            assert!(late <= TTL_MS + MAX_LATE_MS + MAX_DELAY_MS, "block {key} went {late} ms ago");
        }
    }

    fn settle(&mut self, step: u64) {
        self.faults = false;
        let down = self.down_until.saturating_sub(self.now);
        self.run(down + SETTLED_MS);
        let known = self.index.live(self.now);
        let missing: Vec<_> = self.held.difference(&known).collect();
        assert!(missing.is_empty(), "step {step}: {missing:?} of {:?} are not known", self.held);
        if self.chance(2) == 0 {
            self.run(TTL_MS + MAX_LATE_MS + MAX_DELAY_MS);
            assert_eq!(self.index.live(self.now), self.held, "step {step}");
        }
        self.faults = true;
    }
}

fn play(seed: u64, operations: u64) {
    let mut world = World::new(seed);
    for step in 0..operations {
        match world.chance(100) {
            0..=29 => world.change_holdings(),
            30 => world.change_index(),
            31..=33 => {
                let ms = world.chance(20_000);
                world.run(ms);
            }
            // The index restarts while nobody talks to it.
            34 => {
                let quiet = world.chance(10_000);
                world.run(quiet);
                world.change_index();
                world.advance(world.down_until - world.now);
                for _ in 0..world.chance(3) {
                    world.change_holdings();
                }
                world.settle(step);
            }
            35..=59 => {
                let ms = world.chance(120);
                world.advance(ms);
            }
            _ => world.drive(),
        }
        world.check();
        if world.chance(200) == 0 {
            world.settle(step);
        }
    }
    world.settle(operations);
    assert!(operations < 1000 || world.losses > 0);
}

#[test]
fn the_index_comes_to_know_what_is_held_and_nothing_else() {
    let operations = std::env::var("KVSP_SOAK_OPS").ok().map_or(16_000, |text| text.parse().unwrap());
    for seed in 0..8 {
        play(seed, operations / 8);
    }
}
