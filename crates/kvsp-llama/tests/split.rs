//! A context split over several pools gives the logits and the text of one that is whole.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::Range;

use common::group::{Group, Shards, shards};
use common::{greedy, open, pages, prefill, real, some_tokens, tiny};
use kvsp_engine::{Engine, Merge, MergeError, PageRun, Span, Tokenizer};
use kvsp_llama::{LlamaEngine, ModelSource, tokenizer};
use kvsp_proto::registry::ElementType;

/// Tokens of an answer.
const STEPS: usize = 32;
/// The last range of a map: prompts and answers here are shorter.
const CAPACITY: usize = 400;

/// How far a logit of a split context may be from that of the whole one, where logits reach about ±20.
///
/// With a cache of float32 only the order of additions and the rounding of the log-sum-exp differ: some 1e-7 of
/// each value, grown over the layers; 6e-5 was seen. Narrower types turn such a difference into one of their
/// own steps (2^-11 and 2^-8 of the value) where a key or value lies just between two of them; 1.6e-3 was seen
/// for float16 and 6e-2 for bfloat16, which is less than what rounding the cache to it changes in the first place.
fn tolerance(kv: ElementType) -> f32 {
    match kv {
        ElementType::Float32 => 1e-3,
        ElementType::Float16 => 3e-2,
        _ => 2.5e-1,
    }
}

/// Logits of the whole context after the prompt and after each token of its greedy text.
struct Whole {
    prompt: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

impl Whole {
    fn compute(engine: &mut LlamaEngine, prompt: Vec<u32>) -> Self {
        let table = pages(engine, 0, prompt.len() + STEPS);
        let mut tokens = prompt.clone();
        let mut logits = vec![prefill(engine, &table, &tokens, 0, &[usize::MAX])];
        for _ in 1..STEPS {
            tokens.push(greedy(&logits[logits.len() - 1]));
            let from = tokens.len() - 1;
            logits.push(prefill(engine, &table, &tokens, from, &[1]));
        }
        Self { prompt, logits }
    }
}

/// How far a split context is from the whole one.
#[derive(Debug, Default)]
struct Distance {
    /// Of any logit.
    greatest: f32,
    /// Steps whose top two logits lie closer than the tolerance.
    close: usize,
    /// Those of them where the split context preferred the other token.
    differing: usize,
}

/// The answer over a split context, with reshards before the steps that `moves` names; fed with the tokens of
/// the whole context's text, so that every step is compared.
fn compare(group: &mut Group, whole: &Whole, moves: &[(usize, Shards)]) -> Distance {
    let tolerance = tolerance(group.descriptor().kv_dtype);
    let mut distance = Distance::default();
    for (step, want) in whole.logits.iter().enumerate() {
        for (_, to) in moves.iter().filter(|(at, _)| *at == step) {
            group.reshard(to.clone());
        }
        let got = match step {
            0 => group.prefill(&whole.prompt),
            _ => group.decode(greedy(&whole.logits[step - 1])),
        };
        let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= tolerance, "step {step}: logits are off by {far}");
        distance.greatest = distance.greatest.max(far);
        let close = lead(want) <= tolerance;
        let differs = greedy(&got) != greedy(want);
        assert!(close || !differs, "step {step}: another token");
        distance.close += usize::from(close);
        distance.differing += usize::from(differs);
    }
    distance
}

/// How far the highest logit is above the second.
fn lead(logits: &[f32]) -> f32 {
    let mut top = [f32::NEG_INFINITY; 2];
    for &x in logits {
        if x > top[0] {
            top = [x, top[0]];
        } else if x > top[1] {
            top[1] = x;
        }
    }
    top[0] - top[1]
}

/// Splits over these shards, and 3 → 2 → 1 → 3 in the middle of an answer, at borders that are no multiples of a
/// block.
fn check(name: &str, mut engines: Vec<LlamaEngine>, prompt: Vec<u32>, splits: &[&[usize]]) {
    let kv = engines[0].info().descriptor.kv_dtype;
    let whole = Whole::compute(&mut engines[0], prompt);
    let n = whole.prompt.len();
    for &ends in splits {
        let mut group = Group::new(engines, 3, shards(ends));
        let distance = compare(&mut group, &whole, &[]);
        println!("{name}, {kv}, {n} tokens over {ends:?}: {distance:?}");
        assert!(ends.len() > 1 || distance.greatest == 0.0, "one member computes what a whole context does");
        engines = group.into_engines();
    }
    let (a, b) = (n / 3 + 1, 2 * n / 3 - 2);
    let moves = [
        (8, vec![(0..n / 2 - 5, 0), (n / 2 - 5..CAPACITY, 1)]),
        (16, vec![(0..CAPACITY, 1)]),
        (24, vec![(0..7, 2), (7..n + 9, 1), (n + 9..CAPACITY, 0)]),
    ];
    let mut group = Group::new(engines, 3, shards(&[a, b, CAPACITY]));
    let distance = compare(&mut group, &whole, &moves);
    println!("{name}, {kv}, {n} tokens over 3, 2, 1, 3 members: {distance:?}");
    // Positions that moved at each reshard, and new ones that the leader stored at another member: what stayed
    // with its member cost nothing.
    let at = |step: usize| n + step - 1;
    let resharded = (n / 2 - 5 - a + at(8) - b) + (n / 2 - 5) + (7 + at(24) - (n + 9));
    let stored = 7 + 8 + 8;
    assert_eq!(group.moved, (resharded + stored) * group.token_octets());
}

#[test]
fn the_tiny_model_split_over_engines() {
    for kv in [ElementType::Float32, ElementType::Float16, ElementType::Bfloat16] {
        for (block, n) in [(16, 150), (5, 97), (1, 40)] {
            let engines = (0..3).map(|_| open(&ModelSource::Tiny { seed: 0 }, block, kv)).collect();
            let splits: [&[usize]; 4] = [
                &[CAPACITY],
                &[n / 2 + 3, CAPACITY],
                &[n / 3 + 1, 2 * n / 3 - 2, CAPACITY],
                // A member that computes one row; one that holds only what is generated.
                &[n - 1, n, CAPACITY],
            ];
            check("tiny", engines, some_tokens(n), &splits);
        }
    }
}

#[test]
fn a_real_model_split_over_pools() {
    let model = real::model();
    let text = "The tide tables for 1904 list every harbour from Brest to Bergen. ".repeat(3);
    let prompt = tokenizer(&model).unwrap().encode(&(text + "The harbours of Norway are")).unwrap();
    let n = prompt.len();
    for kv in [ElementType::Float32, ElementType::Bfloat16] {
        let splits: [&[usize]; 3] =
            [&[CAPACITY], &[n / 2 + 3, CAPACITY], &[n / 3 + 1, 2 * n / 3 - 2, CAPACITY]];
        check("real", vec![open(&model, 16, kv)], prompt.clone(), &splits);
    }
}

#[test]
fn a_member_that_is_left_out_is_noticed() {
    let mut engine = tiny(16, ElementType::Float32);
    let table = pages(&engine, 0, 40);
    let span =
        Span { tokens: some_tokens(40), position: 0, first_page: 0, pages: table.clone(), logits: false };
    let mut pass = engine.begin(vec![span]).unwrap();
    let queries = engine.project(&mut pass).unwrap().remove(0);
    let run = PageRun { first: 0, pages: table };
    let merge = |ranges: &[Range<usize>]| {
        let mut merge = Merge::new(&queries);
        for keys in ranges {
            merge.add(keys.clone(), engine.attend(0, &run, keys.clone(), &queries).unwrap())?;
        }
        merge.finish()
    };
    assert_eq!(merge(&[0..13, 14..40]), Err(MergeError::Gap(13)));
    assert_eq!(merge(&[0..13, 13..39]), Err(MergeError::Gap(39)));
    assert_eq!(merge(&[0..13, 12..40]), Err(MergeError::Overlap(0..13, 12..40)));
    assert!(merge(&[13..40, 0..13]).is_ok());
}
