//! How long lookups take while others publish, beside a handler of the same process that does nothing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvsp_proto::message::Detail;

use super::super::child::{Service, address_of};
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::measure::figure;
use super::super::report::Bench;
use super::super::wire::{Wire, http_request};
use super::{lookup, records};

const KEYS: usize = 64;
/// Records of a batch in the background, and batches a second.
const BATCH: usize = 100;
const BATCHES_A_SECOND: u32 = 200;
/// More than any answer has.
const LARGEST: usize = 1 << 20;

pub(super) fn measure(quick: bool, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let (records, requests, rounds) = if quick { (1_000, 200, 3) } else { (50_000, 2_000, 9) };
    let index = lookup::index()?;
    records::fill(&index, records)?;
    let stop = AtomicBool::new(false);
    let (rounds, published) = std::thread::scope(|scope| {
        let background = scope.spawn(|| publish(&index, records, &stop));
        let measured = measure_rounds(&index, records, requests, rounds, bar);
        stop.store(true, Ordering::Relaxed);
        let published = background.join().map_err(|_| BenchError::Ended("the publisher"))?;
        Ok::<_, BenchError>((measured?, published?))
    })?;
    report(&rounds, published, bench);
    bench.notes.push(format!(
        "waiting: requests one by one on a connection each, in turns, {requests} of each kind a round; in the background \
         batches of {BATCH} records that are known, {BATCHES_A_SECOND} a second; client and server on all cores; the \
         handler that does nothing is /livez of the same process"
    ));
    Ok(())
}

/// 99 of 100 requests took this long or less, in µs, in one round.
struct Round {
    nothing: f64,
    lookups: [f64; DETAILS.len()],
}

const DETAILS: [(&str, Detail); 3] =
    [("full", Detail::Full), ("location", Detail::Location), ("none", Detail::None)];

fn measure_rounds(
    index: &Service,
    records: usize,
    requests: usize,
    rounds: usize,
    bar: &ProgressBar,
) -> Result<Vec<Round>, BenchError> {
    let admin = address_of(index.admin())?;
    let mut nothing = Asker::new(admin, vec![http_request("GET", "/livez", &[], &[])])?;
    let mut lookups = Vec::new();
    for (_, detail) in DETAILS {
        let asked = (0..records / KEYS).step_by(7).map(|n| records::lookup(index, n * KEYS, KEYS, detail));
        lookups.push(Asker::new(address_of(index.base())?, asked.collect())?);
    }
    let mut measured = Vec::new();
    for round in 0..=rounds {
        bar.set_message(format!("index-http, waiting, round {round} of {rounds}"));
        for n in 0..requests {
            // Nobody always comes right after the same one.
            if n % 2 == 0 {
                nothing.ask()?;
            }
            lookups.iter_mut().try_for_each(Asker::ask)?;
            if n % 2 == 1 {
                nothing.ask()?;
            }
        }
        let of_round = Round {
            nothing: nothing.p99(),
            lookups: std::array::from_fn(|n| lookups.get_mut(n).map_or(f64::NAN, Asker::p99)),
        };
        if round > 0 {
            measured.push(of_round);
        }
    }
    Ok(measured)
}

/// A connection, what is asked on it, and how long each answer took.
struct Asker {
    wire: Wire,
    requests: Vec<Vec<u8>>,
    next: usize,
    took_us: Vec<f64>,
}

impl Asker {
    fn new(address: SocketAddr, requests: Vec<Vec<u8>>) -> Result<Self, BenchError> {
        Ok(Self { wire: Wire::connect(address, LARGEST)?, requests, next: 0, took_us: Vec::new() })
    }

    fn ask(&mut self) -> Result<(), BenchError> {
        let request = self.requests.get(self.next).ok_or(BenchError::Differ("lookups"))?;
        self.next = (self.next + 1) % self.requests.len();
        let start = Instant::now();
        self.wire.send(request)?;
        self.wire.http()?.good("a request")?;
        self.took_us.push(start.elapsed().as_secs_f64() * 1e6);
        Ok(())
    }

    /// Of what was asked since it was last called.
    fn p99(&mut self) -> f64 {
        let mut took = std::mem::take(&mut self.took_us);
        took.sort_by(f64::total_cmp);
        took.get(took.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }
}

/// Publishes at a steady pace until told to stop; records a second.
fn publish(index: &Service, records: usize, stop: &AtomicBool) -> Result<f64, BenchError> {
    let mut wire = Wire::connect(address_of(index.base())?, LARGEST)?;
    let batches = (0..records / BATCH)
        .map(|batch| records::batch(index, batch * BATCH..(batch + 1) * BATCH))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let mut sent = 0;
    for request in batches.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // The next is due at its own time: one that was late delays no other.
        let due = start + Duration::from_secs(1) * sent / BATCHES_A_SECOND;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        wire.send(request)?;
        records::good_batch(&mut wire)?;
        sent += 1;
    }
    Ok(f64::from(sent) * BATCH as f64 / start.elapsed().as_secs_f64())
}

fn report(rounds: &[Round], published: f64, bench: &mut Bench) {
    let figures = &mut bench.figures;
    figures.push(figure("published in the background".to_owned(), "records/s", [published]));
    figures.push(figure("p99 of doing nothing".to_owned(), "us", rounds.iter().map(|round| round.nothing)));
    let lookups = |n: usize| rounds.iter().map(move |round| round.lookups[n]);
    for (n, (detail, _)) in DETAILS.iter().enumerate() {
        let name = format!("p99 of a lookup of {KEYS} keys, {detail}");
        figures.push(figure(name.clone(), "us", lookups(n)));
        let ratios = rounds.iter().zip(lookups(n)).map(|(round, lookup)| lookup / round.nothing);
        let ratio = figure(format!("{name} / of doing nothing"), "ratio", ratios);
        figures.push(ratio.should_be(Goal::AtMost(1.5)));
    }
}
