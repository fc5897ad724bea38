//! The tiny model: varied text, stable identity.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;

use common::{greedy, pages, prefill, tiny};
use kvsp_engine::{Engine as _, EngineInfo, Tokenizer};
use kvsp_llama::{LoadOptions, ModelSource, describe, facts, prepare, tokenizer};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::registry::ElementType;

fn generate(prompt: &str, count: usize) -> Vec<u32> {
    let t = tokenizer(&ModelSource::Tiny { seed: 0 }).unwrap();
    let mut tokens = t.encode(prompt).unwrap();
    let start = tokens.len();
    let mut engine = tiny(16, ElementType::Float16);
    let table = pages(&engine, 0, start + count);
    let mut from = 0;
    for _ in 0..count {
        let logits = prefill(&mut engine, &table, &tokens, from, &[usize::MAX]);
        from = tokens.len();
        tokens.push(greedy(&logits));
    }
    tokens[start..].to_vec()
}

#[test]
fn greedy_text_is_varied_printable_and_goes_on() {
    let eos = facts(&ModelSource::Tiny { seed: 0 }).unwrap().eos;
    let mut texts = BTreeSet::new();
    for prompt in ["Hello", "The quick brown fox jumps over the lazy dog", "x", "user\nhi\nassistant\n"] {
        let tokens = generate(prompt, 300);
        println!("{:?}", tokens.iter().map(|&t| t as u8 as char).collect::<String>());
        assert!(tokens.iter().all(|t| (32..127).contains(t) && !eos.contains(t)));
        assert!(tokens.iter().collect::<BTreeSet<_>>().len() >= 20);
        // No period of up to 50 tokens in the last 100.
        let tail = &tokens[200..];
        assert!((1..=50).all(|p| tail[p..] != tail[..100 - p]), "{prompt:?} runs in circles");
        texts.insert(tokens);
    }
    assert_eq!(texts.len(), 4);
}

#[test]
fn its_descriptor_is_valid_and_depends_on_the_seed_and_the_options() {
    let options = LoadOptions::default();
    let id = |seed, options: &LoadOptions| {
        let value = describe(&ModelSource::Tiny { seed }, options, &|_, _| {}).unwrap();
        Descriptor::from_value(value).unwrap().compat_id()
    };
    let base = id(0, &options);
    assert_eq!(base, id(0, &options));
    assert_ne!(base, id(1, &options));
    assert_ne!(base, id(0, &LoadOptions { block_tokens: 32, ..options.clone() }));
    assert_ne!(base, id(0, &LoadOptions { kv_dtype: ElementType::Float32, ..options.clone() }));
    assert_ne!(base, id(0, &LoadOptions { name: Some("other".into()), ..options }));
}

#[test]
fn sources_parse() {
    let parse = |text: &str| text.parse::<ModelSource>().unwrap();
    assert_eq!(parse("tiny"), ModelSource::Tiny { seed: 0 });
    assert_eq!(parse("tiny:7"), ModelSource::Tiny { seed: 7 });
    assert_eq!(parse("./tiny"), ModelSource::Path("./tiny".into()));
    assert_eq!(parse("tinyllama.gguf"), ModelSource::Path("tinyllama.gguf".into()));
}

#[test]
fn what_the_engine_will_be_is_known_before_its_weights_are_read() {
    for options in [
        LoadOptions::default(),
        LoadOptions { block_tokens: 7, kv_dtype: ElementType::Float32, pool_octets: 1 << 20, name: None },
    ] {
        let prepared = prepare(&ModelSource::Tiny { seed: 3 }, &options, &|_, _| {}).unwrap();
        let announced = prepared.info().clone();
        let engine = prepared.load(&|_, _| {}).unwrap();
        let EngineInfo { descriptor, max_context, vocab, eos, pages, batch_invariant } = engine.info();
        assert_eq!(descriptor, &announced.descriptor);
        assert_eq!((max_context, vocab, eos), (&announced.max_context, &announced.vocab, &announced.eos));
        assert_eq!((pages, batch_invariant), (&announced.pages, &announced.batch_invariant));
    }
    let small = LoadOptions { pool_octets: 1, ..LoadOptions::default() };
    assert!(prepare(&ModelSource::Tiny { seed: 3 }, &small, &|_, _| {}).is_err(), "a pool without a page");
}
