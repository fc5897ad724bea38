//! CPU time of the server for a lookup of 512 keys, beside Redis and what the answer costs at least.

use std::hint::black_box;
use std::net::SocketAddr;

use indicatif::ProgressBar;
use kvsp_proto::fast::write::RecordParts;
use kvsp_proto::message::Detail;
use kvsp_proto::record::ReplicaRecord;

use super::super::child::{Limit, Service, address_of};
use super::super::contest::{Contest, Entrant};
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::limits::{Ask, RAW_TCP};
use super::super::measure::Sample;
use super::super::programs::Program;
use super::super::report::Bench;
use super::super::wire::{Wire, redis_command};
use super::records;

const KEYS: usize = 512;
/// Octets of a value that says where a block is, without its digests.
const LOCATION_OCTETS: usize = 96;
/// More than any answer has.
const LARGEST: usize = 4 << 20;

pub(super) fn measure(quick: bool, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    // Other prompts in each round, among so many records that the caches hold few of them.
    let (prompts, rounds, blocks) = if quick { (2, 3, 4 * 2 * KEYS) } else { (20, 15, 1_000_000) };
    let (index, raw, redis) = (index()?, Limit::start(RAW_TCP)?, Program::redis()?);
    records::fill(&index, blocks)?;
    let with_digests = blocks.min(records::FILLER);
    let all = (0..with_digests).map(records::record).collect::<Result<Vec<_>, _>>()?;
    let address = address_of(index.base())?;
    let requests = |detail| {
        let firsts = (0..with_digests).step_by(KEYS);
        firsts.map(|first| records::lookup(&index, first, KEYS, detail)).collect::<Vec<_>>()
    };
    let answered = |detail| answer_octets(address, &requests(detail));
    let mut contest = Contest::default();

    let mut ask = |name: &str, detail| {
        let (mut wire, requests) = (Wire::connect(address, LARGEST)?, requests(detail));
        let mut next = 0;
        let entrant =
            contest.enter(format!("lookup of {KEYS} keys, {name}"), Some(index.clock()), move || {
                for request in requests.iter().cycle().skip(next).take(prompts) {
                    wire.send(request)?;
                    black_box(wire.http()?.good("a lookup")?);
                }
                next = (next + prompts) % requests.len();
                Ok(())
            });
        Ok::<_, BenchError>(entrant)
    };
    let full = ask("full", Detail::Full)?;
    let location = ask("location", Detail::Location)?;
    let none = ask("none", Detail::None)?;

    let octets = answered(Detail::Full)?;
    let asked = requests(Detail::Full).first().map_or(0, Vec::len);
    let mut wire = Wire::connect(raw.address(), LARGEST)?;
    let write = contest.enter(
        format!("bare socket: {asked} octets in, {octets} octets out"),
        Some(raw.clock()),
        move || {
            let request =
                [&Ask::Octets(asked as u32, octets as u32).to_octets()[..], &vec![b'x'; asked]].concat();
            for _ in 0..prompts {
                wire.send(&request)?;
                black_box(wire.exact(octets)?);
            }
            Ok(())
        },
    );
    let mut out = Vec::with_capacity(octets);
    let (records, mut written) = (&all, 0);
    let writer = contest.enter("writing the full answer as JSON", None, move || {
        for prompt in records.chunks(KEYS).cycle().skip(written).take(prompts) {
            out.clear();
            write_answer(prompt, &mut out);
            black_box(&out);
        }
        written = (written + prompts) % (records.len() / KEYS);
        Ok(())
    });
    let redis =
        redis.as_ref().map(|redis| enter_redis(&mut contest, redis, &all, prompts, blocks)).transpose()?;
    let absent = redis.is_none();

    let results = contest.run(rounds, bar, "index-http, lookups")?;
    let count = prompts as f64;
    let (serving, own) = (|sample: &Sample| sample.server_cpu_s, |sample: &Sample| sample.cpu_s);
    let mut by_server = vec![full, location, none, write];
    by_server.extend(redis.iter().flatten());
    for entrant in by_server {
        bench.figures.push(results[entrant].cpu_us(count, "the server", serving));
    }
    bench.figures.push(results[writer].cpu_us(count, "one thread", own));
    // Of a server its CPU time counts, of the writer that of this process, which has no server.
    let at_least =
        |sample: &Sample| if sample.server_cpu_s > 0.0 { sample.server_cpu_s } else { sample.cpu_s };
    let mut compare = |name: &str, entrant: Entrant, others: &[Entrant], most: f64| {
        let others: Vec<_> = others.iter().map(|other| &results[*other]).collect();
        let ratio = results[entrant].cpu_ratio(name, &others, serving, at_least);
        bench.figures.push(ratio.should_be(Goal::AtMost(most)));
    };
    compare("CPU of full / (writing JSON + bare socket)", full, &[writer, write], 1.25);
    if let Some([same, short]) = redis {
        compare("CPU of full / MGET of the same records", full, &[same], 1.0);
        compare("CPU of location / MGET of 96 octets", location, &[short], 0.6);
        compare("CPU of none / MGET of 96 octets", none, &[short], 0.25);
    }
    bench.notes.push(format!(
        "lookups: {prompts} prompts of {KEYS} blocks a round, other ones in each of {rounds} rounds, among {blocks} \
         blocks, of which {with_digests} have 32 layer digests; one connection, both ends on one core, each in a \
         process of its own"
    ));
    if absent {
        bench.notes.push("redis-server is not installed: absent".to_owned());
    }
    Ok(())
}

/// An index of its own process.
pub(super) fn index() -> Result<Service, BenchError> {
    Service::start("the index", &["index"])
}

fn answer_octets(address: SocketAddr, requests: &[Vec<u8>]) -> Result<usize, BenchError> {
    let mut wire = Wire::connect(address, LARGEST)?;
    wire.send(requests.first().ok_or(BenchError::Differ("lookups"))?)?;
    Ok(wire.http()?.good("a lookup")?.len())
}

/// The answer's members as the service writes them, so that the limit has as many octets to make.
fn write_answer(records: &[ReplicaRecord], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"matched\":512,\"complete\":512,\"blocks\":[");
    for (n, record) in records.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"block_key\":");
        kvsp_proto::fast::write::push_hex32(out, &record.block_key.0);
        out.extend_from_slice(b",\"replicas\":[");
        RecordParts::of(record).write(out);
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"]}");
}

/// MGET of the same records, and of short values.
fn enter_redis<'a>(
    contest: &mut Contest<'a>,
    redis: &Program,
    all: &[ReplicaRecord],
    prompts: usize,
    blocks: usize,
) -> Result<[Entrant; 2], BenchError> {
    let texts: Vec<_> = all.iter().map(records::text).collect();
    let short = [b'x'; LOCATION_OCTETS];
    let key = |kind: &[u8], block: usize| [kind, &records::key(block).0].concat();
    redis.set((0..).zip(&texts).map(|(block, text)| (key(b"r", block), &text[..])))?;
    redis.set((0..blocks).map(|block| (key(b"l", block), &short[..])))?;
    let mut enter = |name: &str, kind: &[u8], sizes: Vec<usize>| {
        let bulk = |octets: &usize| format!("${octets}\r\n").len() + octets + 2;
        let exchanges: Vec<(Vec<u8>, usize)> = (0..)
            .step_by(KEYS)
            .zip(sizes.chunks(KEYS))
            .map(|(first, sizes)| {
                let keys: Vec<_> = (first..first + sizes.len()).map(|block| key(kind, block)).collect();
                let parts = std::iter::once(&b"MGET"[..]).chain(keys.iter().map(Vec::as_slice));
                let head = format!("*{}\r\n", sizes.len()).len();
                (redis_command(&parts.collect::<Vec<_>>()), head + sizes.iter().map(bulk).sum::<usize>())
            })
            .collect();
        let (mut wire, mut next) = (Wire::connect(redis.address(), LARGEST)?, 0);
        Ok::<_, BenchError>(contest.enter(name, Some(redis.clock()), move || {
            for (request, octets) in exchanges.iter().cycle().skip(next).take(prompts) {
                wire.send(request)?;
                if !wire.exact(*octets)?.starts_with(b"*") {
                    return Err(BenchError::Answer("redis-server"));
                }
            }
            next = (next + prompts) % exchanges.len();
            Ok(())
        }))
    };
    let sizes = texts.iter().map(Vec::len).collect();
    Ok([
        enter("Redis MGET of the same records", b"r", sizes)?,
        enter("Redis MGET of 96-octet values", b"l", vec![LOCATION_OCTETS; all.len()])?,
    ])
}
