//! A thousand holders find the same index empty, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;

const HOLDERS: usize = 1000;
const BLOCKS: u32 = 300;
const TTL_MS: u64 = 600_000;
/// Items of one batch, as the driver's limit.
const MAX_ITEMS: usize = 1000;

/// What an index can take: records a second, and the fixed work of a batch.
const RECORDS_A_SECOND: u64 = 30_000;
const BATCH_MICROS: u64 = 500;
const QUESTION_MICROS: u64 = 30;
/// Requests that would wait longer are answered with 503 and `Retry-After: 1`.
const MAX_QUEUE_MICROS: u64 = 2_000_000;

/// An index that works off one batch after another.
struct Model {
    records: Vec<BTreeSet<u32>>,
    /// When all that has arrived is worked off, in µs.
    free_at: u64,
    up: bool,
    longest_queue: u64,
    shed: usize,
    /// Records taken in each second.
    taken: BTreeMap<u64, u64>,
    /// How often each record was told between the loss and the end.
    told: BTreeMap<(usize, u32), u32>,
}

impl Model {
    /// When a request with this much work is answered.
    fn admit(&mut self, micros: u64, now: u64) -> Result<u64, Refusal> {
        if !self.up {
            return Err(Refusal::Down);
        }
        let queue = self.free_at.saturating_sub(now);
        self.longest_queue = self.longest_queue.max(queue);
        if queue > MAX_QUEUE_MICROS {
            self.shed += 1;
            return Err(Refusal::Shed);
        }
        self.free_at = self.free_at.max(now) + micros;
        Ok(self.free_at + 200)
    }

    fn ask(&mut self, holder: usize, key: u32, now: u64) -> Result<Waiting, Refusal> {
        let when = self.admit(QUESTION_MICROS, now)?;
        let reply = Reply::Known(self.records[holder].contains(&key));
        Ok(Waiting { sent: now, when, reply })
    }

    fn put(&mut self, holder: usize, jobs: &[Job<u32>], now: u64) -> Result<Waiting, Refusal> {
        let work = BATCH_MICROS + jobs.len() as u64 * 1_000_000 / RECORDS_A_SECOND;
        let when = self.admit(work, now)?;
        *self.taken.entry(now / 1_000_000).or_default() += jobs.len() as u64;
        let answers = jobs.iter().map(|job| {
            *self.told.entry((holder, job.key)).or_default() += 1;
            (*job, self.records[holder].insert(job.key))
        });
        Ok(Waiting { sent: now, when, reply: Reply::Put(answers.collect()) })
    }

    fn lose(&mut self) {
        self.records.iter_mut().for_each(BTreeSet::clear);
        self.told.clear();
        self.taken.clear();
        (self.free_at, self.longest_queue, self.shed) = (0, 0, 0);
    }

    fn is_full(&self) -> bool {
        self.records.iter().all(|records| records.len() == BLOCKS as usize)
    }
}

struct Holder {
    desired: Desired<u32>,
    /// A request with the index.
    waiting: Option<Waiting>,
}

struct Waiting {
    sent: u64,
    /// When it is answered, and how.
    when: u64,
    reply: Reply,
}

enum Reply {
    /// Whether a record is known.
    Known(bool),
    /// Whether each put was new.
    Put(Vec<(Job<u32>, bool)>),
}

/// Why there is no answer.
enum Refusal {
    Down,
    Shed,
}

struct Simulation {
    index: Model,
    holders: Vec<Holder>,
    random: u64,
    now: u64,
}

impl Simulation {
    /// All holders have published everything, long ago, and refresh at times that are spread.
    fn new() -> Self {
        let records = (0..HOLDERS).map(|_| BTreeSet::new()).collect();
        let index = Model {
            records,
            free_at: 0,
            up: true,
            longest_queue: 0,
            shed: 0,
            taken: BTreeMap::new(),
            told: BTreeMap::new(),
        };
        let mut simulation = Self { index, holders: Vec::new(), random: 42, now: 0 };
        for holder in 0..HOLDERS {
            let mut desired = Desired::new(Pace::default());
            desired.set_canary(5000);
            (0..BLOCKS).for_each(|key| desired.publish(key, at(0)));
            let jobs = desired.take(at(0), |_| true);
            desired.heard(at(0), at(0), 0);
            for job in jobs {
                simulation.index.records[holder].insert(job.key);
                let (answer, jitter) =
                    (Answer::Published { ttl_ms: TTL_MS, created: true }, simulation.chance());
                desired.answered(job, answer, at(0), at(0), jitter);
            }
            simulation.holders.push(Holder { desired, waiting: None });
        }
        simulation
    }

    fn chance(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// Lets the holders act until `until`, in ms, or until `done`.
    fn run(&mut self, until: u64, done: impl Fn(&Model) -> bool) {
        let mut events: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let end = until * 1000;
        (0..HOLDERS).for_each(|holder| events.push(Reverse((self.due(holder), holder))));
        while let Some(Reverse((when, holder))) = events.pop() {
            if when > end || done(&self.index) {
                break;
            }
            self.now = self.now.max(when);
            self.act(holder);
            events.push(Reverse((self.due(holder).max(self.now + 1), holder)));
        }
        self.now = self.now.max(end.min(self.now + 1));
    }

    fn due(&self, holder: usize) -> u64 {
        let holder = &self.holders[holder];
        match &holder.waiting {
            Some(waiting) => waiting.when,
            None => holder.desired.next().map_or(u64::MAX, Time::as_micros).max(self.now),
        }
    }

    fn act(&mut self, number: usize) {
        if let Some(waiting) = self.holders[number].waiting.take() {
            return self.take_answer(number, waiting);
        }
        let now = Time::from_micros(self.now);
        let desired = &mut self.holders[number].desired;
        let mut jobs = Vec::new();
        let asked = if let Some((key, _)) = desired.question(now) {
            self.index.ask(number, key, self.now)
        } else {
            let mut room = MAX_ITEMS;
            jobs = desired.take(now, |_| {
                room = room.saturating_sub(1);
                room > 0
            });
            if jobs.is_empty() {
                return;
            }
            self.index.put(number, &jobs, self.now)
        };
        let retry_ms = match asked {
            Ok(waiting) => {
                self.holders[number].waiting = Some(waiting);
                return;
            }
            Err(Refusal::Down) => None,
            Err(Refusal::Shed) => Some(1000),
        };
        let chance = self.chance();
        self.holders[number].desired.unanswered(&jobs, TTL_MS, retry_ms, now, chance);
    }

    fn take_answer(&mut self, number: usize, waiting: Waiting) {
        let (sent, now, chance) =
            (Time::from_micros(waiting.sent), Time::from_micros(self.now), self.chance());
        let answers = match waiting.reply {
            Reply::Known(known) => {
                return self.holders[number].desired.is_known(known, sent, now, chance);
            }
            Reply::Put(answers) => answers,
        };
        self.holders[number].desired.heard(sent, now, chance);
        for (job, created) in answers {
            let (answer, chance) = (Answer::Published { ttl_ms: TTL_MS, created }, self.chance());
            self.holders[number].desired.answered(job, answer, sent, now, chance);
        }
    }

    /// What was told again: most records in a second, seconds until all was there, records told.
    fn report(&self, since: u64) -> (u64, f64, usize) {
        let peak = self.index.taken.values().copied().max().unwrap_or_default();
        let told = self.index.told.values().map(|&n| n as usize).sum();
        (peak, (self.now - since) as f64 / 1e6, told)
    }
}

fn told_again(simulation: &mut Simulation, since: u64) {
    let until = since / 1000 + 60_000;
    simulation.run(until, Model::is_full);
    let (peak, seconds, told) = simulation.report(since);
    let records = HOLDERS * BLOCKS as usize;
    let longest = simulation.index.longest_queue / 1000;
    println!("{records} records: {seconds:.1} s, at most {peak} a second, {told} told, queue {longest} ms");
    assert!(simulation.index.is_full(), "not all is there after a minute");
    // The index needs 10 s for the records alone; the canaries need up to 6.25 s to be told of the loss.
    assert!(seconds < 35.0, "{seconds}");
    assert!(peak <= RECORDS_A_SECOND * 3 / 2, "{peak}");
    assert!(longest <= 2000, "{longest} ms");
    // But for refreshes that fell due just then, and for what was shed, every record went once.
    assert!(told <= records + records / 50, "{told}");
}

#[test]
fn a_thousand_holders_that_find_an_empty_index_make_no_storm() {
    let mut simulation = Simulation::new();
    simulation.run(20_000, |_| false);
    simulation.index.lose();
    let since = simulation.now;
    told_again(&mut simulation, since);
    assert_eq!(simulation.index.shed, 0, "no batch was refused");
}

#[test]
fn a_thousand_holders_that_waited_a_minute_for_the_index_make_no_storm() {
    let mut simulation = Simulation::new();
    simulation.run(20_000, |_| false);
    simulation.index.up = false;
    simulation.run(80_000, |_| false);
    simulation.index.lose();
    simulation.index.up = true;
    let since = simulation.now;
    told_again(&mut simulation, since);
}

#[test]
fn the_same_seed_gives_the_same_storm() {
    let run = || {
        let mut simulation = Simulation::new();
        simulation.index.lose();
        simulation.run(8_000, Model::is_full);
        (simulation.now, simulation.random, simulation.index.taken)
    };
    assert_eq!(run(), run());
}
