//! Lookups of 512 keys in our index, beside those of its peers, in one process and in turn.
//!
//! The peers: Dynamo's radix trees (crate dynamo-kv-router), a hashbrown map and a dashmap with the keys as
//! their own hashes. They know less: the trees keep 64-bit hashes and no records, the maps a deadline.

#![forbid(unsafe_code)]

mod contestants;
mod keys;
mod measure;
mod publishers;

use std::process::ExitCode;

use serde_json::{Value, json};

use contestants::Contestant;
use measure::{Asked, Series, spread};

const USAGE: &str = "usage: bench-peers [--json] [--quick] [BLOCKS...]
  Looks up prompts of 512 blocks among so many blocks (default 100000 1000000 5000000).";

struct Options {
    json: bool,
    quick: bool,
    sizes: Vec<usize>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { json: false, quick: false, sizes: Vec::new() };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => options.json = true,
            "--quick" => options.quick = true,
            "--help" => return Err(USAGE.to_owned()),
            size => {
                let blocks: usize = size.parse().map_err(|_| USAGE.to_owned())?;
                options.sizes.push(blocks.max(keys::PROMPT));
            }
        }
    }
    if options.sizes.is_empty() {
        options.sizes = vec![100_000, 1_000_000, 5_000_000];
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    let sizes: Vec<Value> = options.sizes.iter().map(|&blocks| measure_size(blocks, &options)).collect();
    if options.json {
        println!("{}", json!({ "keys": keys::PROMPT, "sizes": sizes }));
    }
    ExitCode::SUCCESS
}

fn measure_size(blocks: usize, options: &Options) -> Value {
    let blocks = blocks / keys::PROMPT * keys::PROMPT;
    let (rounds, lookups) = if options.quick { (3, 320) } else { (9, 1_600) };
    let mut asked = Asked::new(blocks);
    let in_order = contestants::index(0..blocks, blocks);
    let at_random = contestants::index(keys::shuffled(blocks).into_iter(), blocks);
    let map = contestants::map(0..blocks);
    let dash = contestants::dash(0..blocks);
    let (compressed, radix) = (contestants::compressed_radix(blocks), contestants::radix(blocks));
    let all: [(String, &dyn Contestant); 6] = [
        ("index, published in prefix order".into(), &in_order),
        ("index, published in random order".into(), &at_random),
        ("Dynamo's compressed radix tree".into(), &compressed),
        ("Dynamo's radix tree".into(), &radix),
        ("hashbrown, identity hash".into(), &map),
        ("dashmap, identity hash".into(), &dash),
    ];
    let mut series = measure::rounds(&mut asked, &all, rounds, lookups);
    drop((map, dash, compressed, radix));
    let mut ratios = ratios(&series);
    let mut notes = Vec::new();
    let mut index = in_order;
    for rate in [Some(20_000), None] {
        let (back, both, done) = publishers::measure(&mut asked, index, blocks, rate, rounds, lookups);
        index = back;
        ratios.push((format!("CPU: {} / quiet", both[1].name), ratio(&both[1].cpu_us, &both[0].cpu_us)));
        ratios.push((format!("wall: {} / quiet", both[1].name), ratio(&both[1].wall_us, &both[0].wall_us)));
        notes.push(format!("{}: {done:.0} records/s were published", both[1].name));
        series.extend(both);
    }
    if !options.json {
        print(blocks, &series, &ratios, &notes);
    }
    to_json(blocks, &series, &ratios, &notes)
}

/// Round by round, in CPU time: how many times as fast the first is.
fn ratio(slow: &[f64], fast: &[f64]) -> [f64; 3] {
    spread(slow.iter().zip(fast).map(|(slow, fast)| slow / fast))
}

fn ratios(series: &[Series]) -> Vec<(String, [f64; 3])> {
    let [ordered, random, compressed, radix, map, dash] = series else { return Vec::new() };
    [
        ("prefix order: speed / Dynamo's compressed radix tree (goal 0.4)", compressed, ordered),
        ("prefix order: speed / Dynamo's radix tree", radix, ordered),
        ("prefix order: speed / hashbrown (goal 5)", map, ordered),
        ("random order: speed / hashbrown (goal 2)", map, random),
        ("random order: speed / dashmap", dash, random),
    ]
    .map(|(name, theirs, ours)| (name.to_owned(), ratio(&theirs.cpu_us, &ours.cpu_us)))
    .into()
}

fn print(blocks: usize, series: &[Series], ratios: &[(String, [f64; 3])], notes: &[String]) {
    println!("\n{:<72} {:>9} {:>9} {:>9}", format!("{blocks} blocks"), "median", "min", "max");
    for one in series {
        for (what, values) in [("CPU", &one.cpu_us), ("wall", &one.wall_us)] {
            let [median, min, max] = spread(values.iter().copied());
            println!("{:<72} {median:>9.2} {min:>9.2} {max:>9.2} us", format!("{}: {what}", one.name));
        }
    }
    for (name, [median, min, max]) in ratios {
        println!("{name:<72} {median:>9.2} {min:>9.2} {max:>9.2}");
    }
    notes.iter().for_each(|note| println!("- {note}"));
}

fn to_json(blocks: usize, series: &[Series], ratios: &[(String, [f64; 3])], notes: &[String]) -> Value {
    let rows: Vec<Value> = series
        .iter()
        .map(|one| {
            let (cpu, wall) = (spread(one.cpu_us.iter().copied()), spread(one.wall_us.iter().copied()));
            json!({ "name": one.name, "cpu_us": cpu, "wall_us": wall })
        })
        .collect();
    let ratios: Vec<Value> =
        ratios.iter().map(|(name, spread)| json!({ "name": name, "ratio": spread })).collect();
    json!({ "blocks": blocks, "lookups": rows, "ratios": ratios, "notes": notes, "order": "median, min, max" })
}
