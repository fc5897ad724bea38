//! Prints the SHA-256 of the logits of a prefill and some decode steps, to compare runs with other numbers of
//! threads: `fingerprint MODEL [TOKENS]`.

use std::error::Error;

use kvsp_engine::{Engine, PageId, Sampler, Span};
use kvsp_llama::{LoadOptions, ModelSource, load};
use kvsp_proto::digest::Hasher;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let source: ModelSource = args.next().unwrap_or_else(|| "tiny".into()).parse()?;
    let tokens: u32 = args.next().map_or(Ok(600), |n| n.parse())?;
    let options = LoadOptions { name: Some("fingerprint".into()), ..LoadOptions::default() };
    let mut engine = load(&source, &options, &|_, _| {})?;
    let vocab = engine.info().vocab as u32;
    let pages: Vec<PageId> = (0..(tokens + 16).div_ceil(16)).map(PageId).collect();
    let mut next: Vec<u32> = (0..tokens).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    let mut position = 0;
    let mut hasher = Hasher::new();
    for step in 0..16 {
        let count = next.len();
        let span = Span { tokens: next, position, first_page: 0, pages: pages.clone(), logits: true };
        let mut pass = engine.begin(vec![span])?;
        while engine.next_layer(&pass).is_some() {
            engine.step_layer(&mut pass)?;
        }
        let logits = engine.finish(pass)?.remove(0).ok_or("no logits")?;
        for x in &logits {
            hasher.update(&x.to_le_bytes());
        }
        next = vec![Sampler::greedy().sample(&logits, step)];
        position += count;
    }
    println!("{}", hasher.finish());
    Ok(())
}
