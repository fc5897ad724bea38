//! Prefill and decode speed of a model: `speed MODEL [TOKENS] [CHUNK]`. Set `RAYON_NUM_THREADS` for the number
//! of threads.

use std::error::Error;
use std::time::Instant;

use kvsp_engine::{Engine, PageId, Sampler, Span};
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource, load};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let source: ModelSource = args.next().unwrap_or_else(|| "tiny".into()).parse()?;
    let tokens: usize = args.next().map_or(Ok(2000), |n| n.parse())?;
    let chunk: usize = args.next().map_or(Ok(256), |n| n.parse())?;
    let started = Instant::now();
    let options = LoadOptions { name: Some("speed".into()), ..LoadOptions::default() };
    let mut engine = load(&source, &options, &|_, _| {})?;
    println!("load: {:.1} s", started.elapsed().as_secs_f64());

    let vocab = engine.info().vocab as u32;
    let prompt: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    let pages: Vec<PageId> = (0..(tokens + 64).div_ceil(16) as u32).map(PageId).collect();
    let started = Instant::now();
    let mut logits = Vec::new();
    for (i, part) in prompt.chunks(chunk).enumerate() {
        logits = run(&mut engine, part.to_vec(), i * chunk, &pages)?;
    }
    let prefill = started.elapsed().as_secs_f64();
    println!("prefill of {tokens} tokens: {prefill:.1} s, {:.0} tokens/s", tokens as f64 / prefill);

    let steps = 32;
    let started = Instant::now();
    for step in 0..steps {
        let token = Sampler::greedy().sample(&logits, step);
        logits = run(&mut engine, vec![token], tokens + step as usize, &pages)?;
    }
    println!("decode at {tokens}: {:.1} tokens/s", steps as f64 / started.elapsed().as_secs_f64());
    Ok(())
}

fn run(
    engine: &mut LlamaEngine,
    tokens: Vec<u32>,
    position: usize,
    pages: &[PageId],
) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut pass =
        engine.begin(vec![Span { tokens, position, first_page: 0, pages: pages.to_vec(), logits: true }])?;
    while engine.next_layer(&pass).is_some() {
        engine.step_layer(&mut pass)?;
    }
    engine.finish(pass)?.remove(0).ok_or_else(|| "no logits".into())
}
