//! What splitting a context costs in arithmetic: attention of one decoding row over all keys against that over
//! parts of them and the merge, interleaved, medians. `attend MODEL [KEYS]`.

use std::error::Error;
use std::time::{Duration, Instant};

use kvsp_engine::{Engine, Merge, PageId, PageRun, Queries, Span};
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource, load};

const ROUNDS: usize = 31;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let source: ModelSource = args.next().unwrap_or_else(|| "tiny".into()).parse()?;
    let keys: usize = args.next().map_or(Ok(4000), |n| n.parse())?;
    let options = LoadOptions { name: Some("attend".into()), ..LoadOptions::default() };
    let mut engine = load(&source, &options, &|_, _| {})?;
    let descriptor = engine.info().descriptor.clone();
    let block = descriptor.block_tokens as usize;
    let section = (descriptor.kv_heads * descriptor.head_dim) as usize * block * descriptor.kv_dtype.octets();
    let octets = vec![0x3C; section];
    let pages: Vec<PageId> = (0..keys.div_ceil(block) as u32).map(PageId).collect();
    for &page in &pages {
        engine.write_layer(page, 0, &octets, &octets)?;
    }
    let queries = decoding_row(&mut engine, keys - 1, &pages)?;
    let run = PageRun { first: 0, pages };

    for parts in [2, 3, 8] {
        let (mut whole, mut split) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            whole.push(time(&engine, &run, keys, &queries, 1)?);
            split.push(time(&engine, &run, keys, &queries, parts)?);
        }
        let (whole, split) = (median(whole), median(split));
        println!(
            "{keys} keys, one layer: whole {whole:?}, {parts} parts one after another and merged {split:?} ({:.2})",
            split.as_secs_f64() / whole.as_secs_f64()
        );
    }
    Ok(())
}

/// The queries of layer 0 of some token at the last position.
fn decoding_row(
    engine: &mut LlamaEngine,
    position: usize,
    pages: &[PageId],
) -> Result<Queries, Box<dyn Error>> {
    let span = Span { tokens: vec![1], position, first_page: 0, pages: pages.to_vec(), logits: false };
    let mut pass = engine.begin(vec![span])?;
    engine.project(&mut pass)?.pop().ok_or_else(|| "no queries".into())
}

fn time(
    engine: &LlamaEngine,
    pages: &PageRun,
    keys: usize,
    queries: &Queries,
    parts: usize,
) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let mut merge = Merge::new(queries);
    for i in 0..parts {
        let range = keys * i / parts..keys * (i + 1) / parts;
        let part = engine.attend(0, pages, range.clone(), queries)?;
        merge.add(range, part)?;
    }
    std::hint::black_box(merge.finish()?);
    Ok(started.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
