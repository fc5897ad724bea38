//! Attention over a part of the keys, and tokens that enter and leave pages one by one.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::Range;
use std::sync::OnceLock;

use common::tiny;
use kvsp_engine::{Engine, EngineError, Merge, PageId, PageRun, Partial, Queries, Span};
use kvsp_llama::LlamaEngine;
use kvsp_proto::registry::ElementType;
use proptest::prelude::*;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
/// Elements of the keys (or values) of one token in one layer.
const TOKEN: usize = KV_HEADS * HEAD_DIM;
/// Tokens in the pages of [`filled`].
const LENGTH: usize = 420;
const LAYER: usize = 2;

/// Numbers that look random in −1..1.
fn number(i: usize) -> f32 {
    ((i.wrapping_mul(2_654_435_761) >> 9) % 4001) as f32 / 2000.0 - 1.0
}

/// Element `i` of the key at a position. Scores reach about ±12.
fn key(position: usize, i: usize) -> f32 {
    3.0 * number(position * TOKEN + i)
}

fn value(position: usize, i: usize) -> f32 {
    number(position * TOKEN + i + 77_777)
}

fn section(range: Range<usize>, element: fn(usize, usize) -> f32) -> Vec<u8> {
    range.flat_map(|p| (0..TOKEN).map(move |i| element(p, i))).flat_map(f32::to_le_bytes).collect()
}

/// Put these positions into the page of their block: page b for block b.
fn write(engine: &mut LlamaEngine, range: Range<usize>, k: &[u8], v: &[u8]) {
    let block = engine.info().descriptor.block_tokens as usize;
    for b in range.start / block..range.end.div_ceil(block) {
        let at = range.start.max(b * block)..range.end.min((b + 1) * block);
        let octets = (at.start - range.start) * TOKEN * 4..(at.end - range.start) * TOKEN * 4;
        let slots = at.start - b * block..at.end - b * block;
        let page = PageId(b as u32);
        engine.write_tokens(page, LAYER, slots, &k[octets.clone()], &v[octets]).unwrap();
    }
}

fn fill(engine: &mut LlamaEngine, range: Range<usize>) {
    write(engine, range.clone(), &section(range.clone(), key), &section(range, value));
}

/// An engine whose pages hold all positions.
fn filled() -> &'static LlamaEngine {
    static ENGINE: OnceLock<LlamaEngine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut engine = tiny(16, ElementType::Float32);
        fill(&mut engine, 0..LENGTH);
        engine
    })
}

/// The pages of these positions.
fn run(range: &Range<usize>, block: usize) -> PageRun {
    let (first, last) = (range.start / block, range.end.div_ceil(block));
    PageRun { first, pages: (first..last).map(|b| PageId(b as u32)).collect() }
}

fn queries(position: usize, rows: usize) -> Queries {
    let values = (0..rows * HEADS * HEAD_DIM).map(|i| 3.0 * number(i + position)).collect();
    Queries { position, rows, heads: HEADS, head_dim: HEAD_DIM, values }
}

fn attend(keys: Range<usize>, queries: &Queries) -> Partial {
    filled().attend(LAYER, &run(&(keys.start..keys.end.min(LENGTH)), 16), keys, queries).unwrap()
}

/// One row of attention in double precision: the output and the log-sum-exp of a head.
fn exact(keys: Range<usize>, queries: &Queries, row: usize, head: usize) -> (Vec<f64>, f64) {
    let seen = keys.start..keys.end.min(queries.position + row + 1);
    let q = &queries.values[(row * HEADS + head) * HEAD_DIM..][..HEAD_DIM];
    let at = head / (HEADS / KV_HEADS) * HEAD_DIM;
    let score = |p| -> f64 {
        let product: f64 = q.iter().zip(0..).map(|(&q, d)| f64::from(q) * f64::from(key(p, at + d))).sum();
        product / (HEAD_DIM as f64).sqrt()
    };
    let total: f64 = seen.clone().map(|p| score(p).exp()).sum();
    let out = (0..HEAD_DIM)
        .map(|d| seen.clone().map(|p| score(p).exp() * f64::from(value(p, at + d))).sum::<f64>() / total);
    (out.collect(), total.ln())
}

/// How far merged attention over values in −1..1 may be from that over all keys at once. A score or log-sum-exp
/// of up to 32 is off by some 2^-19 (its unit in the last place times a few roundings), which moves a key's weight
/// by that share.
const TOLERANCE: f32 = 1e-5;

fn merged(queries: &Queries, ranges: &[Range<usize>]) -> Vec<f32> {
    let mut merge = Merge::new(queries);
    for keys in ranges {
        merge.add(keys.clone(), attend(keys.clone(), queries)).unwrap();
    }
    merge.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(64), ..ProptestConfig::default() })]

    #[test]
    fn any_partition_merges_to_the_whole(
        // More rows than one product takes, or one, as in decoding.
        rows in prop_oneof![Just(1usize), 2usize..40, 120usize..150],
        position in 0usize..250,
        beyond in 0usize..20,
        cuts in proptest::collection::vec(0usize..LENGTH, 0..5),
        probe in any::<prop::sample::Index>(),
    ) {
        let queries = queries(position, rows);
        let end = position + rows + beyond;
        let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut.min(end)).chain([0, end]).collect();
        borders.sort_unstable();
        let ranges: Vec<Range<usize>> = borders.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let whole = attend(0..end, &queries);
        for (i, (got, want)) in merged(&queries, &ranges).iter().zip(&whole.out).enumerate() {
            prop_assert!((got - want).abs() <= TOLERANCE, "element {i}: {got} for {want}");
        }
        // Each part is what it says it is.
        let keys = ranges[probe.index(ranges.len())].clone();
        let part = attend(keys.clone(), &queries);
        for row in [0, probe.index(rows), rows - 1] {
            for head in 0..HEADS {
                let line = row * HEADS + head;
                let out = &part.out[line * HEAD_DIM..][..HEAD_DIM];
                if keys.is_empty() || keys.start > position + row {
                    prop_assert_eq!(part.lse[line], f32::NEG_INFINITY);
                    prop_assert!(out.iter().all(|x| x.to_bits() == 0));
                    continue;
                }
                let (want, lse) = exact(keys.clone(), &queries, row, head);
                prop_assert!((f64::from(part.lse[line]) - lse).abs() <= 1e-5);
                for (got, want) in out.iter().zip(want) {
                    prop_assert!((f64::from(*got) - want).abs() <= f64::from(TOLERANCE));
                }
            }
        }
    }

    #[test]
    fn tokens_are_the_octets_that_were_written(
        kv in prop_oneof![Just(ElementType::Float32), Just(ElementType::Float16), Just(ElementType::Bfloat16)],
        block in 1u32..40,
        cuts in proptest::collection::vec(0usize..40, 0..4),
        seed in any::<u32>(),
    ) {
        let block_slots = block as usize;
        let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut.min(block_slots)).chain([0, block_slots]).collect();
        borders.sort_unstable();
        borders.dedup();
        let token = TOKEN * kv.octets();
        let k = any_numbers(kv, block_slots * TOKEN, seed as usize);
        let v = any_numbers(kv, block_slots * TOKEN, seed as usize + 1_000_003);
        let mut engine = tiny(block, kv);
        let (whole, parts) = (PageId(0), PageId(1));
        engine.write_layer(whole, LAYER, &k, &v).unwrap();
        for pair in borders.windows(2).rev() {
            let octets = pair[0] * token..pair[1] * token;
            engine.write_tokens(parts, LAYER, pair[0]..pair[1], &k[octets.clone()], &v[octets]).unwrap();
        }
        let mut sections = [Vec::new(), Vec::new()];
        engine.read_layer(whole, LAYER, &mut sections[0]).unwrap();
        engine.read_layer(parts, LAYER, &mut sections[1]).unwrap();
        prop_assert!(sections[0] == [&k[..], &v].concat() && sections[1] == sections[0]);
        let (mut read_k, mut read_v) = (vec![7], vec![9]);
        for pair in borders.windows(2) {
            engine.read_tokens(whole, LAYER, pair[0]..pair[1], &mut read_k, &mut read_v).unwrap();
        }
        prop_assert!(read_k[1..] == k && read_v[1..] == v && (read_k[0], read_v[0]) == (7, 9));
    }
}

/// So many cases, or what `PROPTEST_CASES` asks for.
fn cases(few: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// Any bits that are a number, infinities, subnormals and −0 among them.
fn any_numbers(kv: ElementType, elements: usize, seed: usize) -> Vec<u8> {
    let bits = |i: usize| (i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) as u32;
    let exponent = match kv {
        ElementType::Float32 => 0x7F80_0000,
        ElementType::Float16 => 0x7C00_0000,
        _ => 0x7F80_0000,
    };
    let mut octets = Vec::new();
    for i in 0..elements {
        // The exponent of all ones stays only with a mantissa of zeros.
        let mut bits = bits(i);
        if bits & exponent == exponent {
            bits &= exponent | 0x8000_0000;
        }
        match kv {
            ElementType::Float32 => octets.extend(bits.to_le_bytes()),
            _ => octets.extend(((bits >> 16) as u16).to_le_bytes()),
        }
    }
    octets
}

fn bits(partial: &Partial) -> Vec<u32> {
    partial.out.iter().chain(&partial.lse).map(|x| x.to_bits()).collect()
}

#[test]
fn nothing_but_the_keys_is_read() {
    for block in [1, 5, 16, 200] {
        let mut engine = tiny(block, ElementType::Float32);
        for keys in [0..1, 3..4, 13..130, 20..35, 128..256, 77..333] {
            for queries in
                [queries(keys.end - 1, 1), queries(keys.start.max(4) - 4, 9), queries(keys.end, 130)]
            {
                let want = attend(keys.clone(), &queries);
                // Not-a-number in all slots of their pages, infinities in those before and after.
                let run = run(&keys, block as usize);
                let all = run.first * block as usize..(run.first + run.pages.len()) * block as usize;
                let rubbish = vec![0xFF; all.len() * TOKEN * 4];
                write(&mut engine, all.clone(), &rubbish, &rubbish);
                let infinite: Vec<u8> =
                    std::iter::repeat_n(f32::INFINITY.to_le_bytes(), TOKEN).flatten().collect();
                for slot in [keys.start.checked_sub(1), Some(keys.end)].into_iter().flatten() {
                    if all.contains(&slot) {
                        write(&mut engine, slot..slot + 1, &infinite, &infinite);
                    }
                }
                fill(&mut engine, keys.clone());
                let got = engine.attend(LAYER, &run, keys.clone(), &queries).unwrap();
                assert_eq!(bits(&got), bits(&want), "keys {keys:?} in blocks of {block}");
            }
        }
    }
}

#[test]
fn slots_that_were_never_written_do_not_matter() {
    let mut engine = tiny(16, ElementType::Float32);
    fill(&mut engine, 21..39);
    let queries = queries(30, 12);
    let got = engine.attend(LAYER, &run(&(21..39), 16), 21..39, &queries).unwrap();
    assert_eq!(bits(&got), bits(&attend(21..39, &queries)));
}

#[test]
fn rows_before_the_first_key_see_none() {
    let part = attend(100..140, &queries(60, 40));
    assert!(part.lse.iter().all(|&lse| lse == f32::NEG_INFINITY));
    assert!(part.out.iter().all(|x| x.to_bits() == 0));
    // One row more.
    let part = attend(100..140, &queries(60, 41));
    let (before, last) = part.lse.split_at(40 * HEADS);
    assert!(before.iter().all(|&lse| lse == f32::NEG_INFINITY));
    assert!(last.iter().all(|lse| lse.is_finite()));
    // Alone with one key a row takes its value as it is.
    for head in 0..HEADS {
        let got = &part.out[(40 * HEADS + head) * HEAD_DIM..][..HEAD_DIM];
        let at = head / (HEADS / KV_HEADS) * HEAD_DIM;
        assert!(got.iter().zip(0..).all(|(x, d)| *x == value(100, at + d)));
    }
}

#[test]
fn keys_beyond_the_last_row_need_not_be_there() {
    let mut engine = tiny(16, ElementType::Float32);
    fill(&mut engine, 0..20);
    let queries = queries(19, 1);
    let run = run(&(0..20), 16);
    let want = engine.attend(LAYER, &run, 0..20, &queries).unwrap();
    assert_eq!(bits(&engine.attend(LAYER, &run, 0..4000, &queries).unwrap()), bits(&want));
    // No page at all where none of the keys is seen.
    let none = PageRun { first: 0, pages: Vec::new() };
    let part = engine.attend(LAYER, &none, 20..usize::MAX, &queries).unwrap();
    assert_eq!(part.lse, [f32::NEG_INFINITY; HEADS]);
}

fn misuse<T>(result: Result<T, EngineError>) -> bool {
    result.is_err_and(|error| matches!(error, EngineError::Misuse(_)))
}

#[test]
fn bad_questions_are_refused() {
    let mut engine = tiny(16, ElementType::Float32);
    fill(&mut engine, 16..48);
    let good = queries(40, 2);
    let pages = run(&(16..48), 16);
    let ask = |engine: &LlamaEngine, layer, pages: &PageRun, keys, queries: &Queries| {
        engine.attend(layer, pages, keys, queries)
    };
    assert!(ask(&engine, LAYER, &pages, 16..42, &good).is_ok());
    // Another layer was never written; there is none of that number.
    assert!(misuse(ask(&engine, LAYER + 1, &pages, 16..42, &good)));
    assert!(misuse(ask(&engine, 4, &pages, 16..42, &good)));
    // Pages before, after and unknown.
    assert!(misuse(ask(&engine, LAYER, &pages, 15..42, &good)));
    assert!(misuse(ask(&engine, LAYER, &pages, 16..49, &queries(48, 1))));
    let count = engine.info().pages as u32;
    let unknown = PageRun { first: 1, pages: vec![PageId(1), PageId(count)] };
    assert!(misuse(ask(&engine, LAYER, &unknown, 16..42, &good)));
    let unwritten = PageRun { first: 1, pages: vec![PageId(1), PageId(7)] };
    assert!(misuse(ask(&engine, LAYER, &unwritten, 16..42, &good)));
    let (start, end) = (42, 16);
    assert!(misuse(ask(&engine, LAYER, &pages, start..end, &good)));
    let with = |change: &dyn Fn(&mut Queries)| {
        let mut queries = good.clone();
        change(&mut queries);
        queries
    };
    let bad = [
        with(&|q| q.rows = 0),
        with(&|q| q.rows = usize::MAX),
        with(&|q| q.rows = 3),
        with(&|q| q.heads = 2),
        with(&|q| (q.heads, q.head_dim) = (HEAD_DIM, HEADS)),
        with(&|q| q.values.truncate(5)),
        with(&|q| q.position = usize::MAX),
        with(&|q| q.position = 4095),
    ];
    for queries in bad {
        assert!(misuse(ask(&engine, LAYER, &pages, 16..42, &queries)), "{queries:?}");
    }
    // Queries that are no numbers are answered with such, and harm nobody.
    let part = ask(&engine, LAYER, &pages, 16..42, &with(&|q| q.values.fill(f32::NAN))).unwrap();
    assert!(part.lse.iter().all(|lse| lse.is_nan()));
    assert!(ask(&engine, LAYER, &pages, 16..42, &good).unwrap().lse.iter().all(|lse| lse.is_finite()));

    let octets = vec![0; 3 * TOKEN * 4];
    let mut put =
        |page, layer, slots, k: &[u8], v: &[u8]| engine.write_tokens(PageId(page), layer, slots, k, v);
    let want = Err(EngineError::SectionSize { got: octets.len(), want: 2 * TOKEN * 4 });
    assert_eq!(put(9, LAYER, 2..4, &octets, &octets), want);
    assert_eq!(put(9, LAYER, 2..5, &octets, &octets), Ok(()));
    assert!(misuse(put(9, LAYER, 14..17, &octets, &octets)));
    assert!(misuse(put(9, LAYER, 3..3, &[], &[])));
    assert!(misuse(put(9, 4, 2..5, &octets, &octets)));
    assert!(misuse(put(count, LAYER, 2..5, &octets, &octets)));
    let get =
        |page, layer, slots| engine.read_tokens(PageId(page), layer, slots, &mut Vec::new(), &mut Vec::new());
    assert_eq!(get(9, LAYER, 0..16), Ok(()));
    assert!(misuse(get(9, LAYER, 0..17)));
    assert!(misuse(get(9, LAYER, 5..5)));
    assert!(misuse(get(9, LAYER + 1, 0..16)));
    assert!(misuse(get(10, LAYER, 0..16)));
    assert!(misuse(get(count, LAYER, 0..16)));
}

#[test]
fn a_layer_in_two_halves() {
    let tokens = common::some_tokens(20);
    let span = |first_page, pages: &[u32]| Span {
        tokens: tokens.clone(),
        position: 40,
        first_page,
        pages: pages.iter().copied().map(PageId).collect(),
        logits: true,
    };
    let mut engine = tiny(16, ElementType::Float16);
    // The new tokens lie in blocks 2 and 3.
    assert!(misuse(engine.begin(vec![span(3, &[5, 6])])));
    assert!(misuse(engine.begin(vec![span(2, &[5])])));
    assert!(misuse(engine.begin(vec![span(2, &[5, 6]), span(1, &[6, 7, 8])])));
    assert!(misuse(engine.begin(vec![span(usize::MAX, &[5, 6])])));
    let mut pass = engine.begin(vec![span(2, &[5, 6]), span(1, &[9, 7, 8])]).unwrap();
    assert!(misuse(engine.step_layer(&mut pass)));
    let attention = vec![vec![0.5; tokens.len() * HEADS * HEAD_DIM]; 2];
    assert!(misuse(engine.complete(&mut pass, &attention)), "nothing is projected yet");
    let queries = engine.project(&mut pass).unwrap();
    assert_eq!(queries[0], queries[1]);
    assert_eq!((queries[0].position, queries[0].rows), (40, 20));
    // A step that is repeated.
    assert_eq!(engine.project(&mut pass).unwrap(), queries);
    assert!(misuse(engine.complete(&mut pass, &attention[..1])));
    assert!(misuse(engine.complete(&mut pass, &[attention[0].clone(), Vec::new()])));
    assert_eq!(engine.next_layer(&pass), Some(0));
    for layer in 0..4 {
        assert_eq!(engine.next_layer(&pass), Some(layer));
        engine.project(&mut pass).unwrap();
        engine.complete(&mut pass, &attention).unwrap();
    }
    assert!(misuse(engine.project(&mut pass)));
    assert!(misuse(engine.complete(&mut pass, &attention)));
    let logits = engine.finish(pass).unwrap();
    assert!(logits[0].is_some() && logits[0] == logits[1]);
    // The pages hold the same keys and values.
    let read = |page| {
        let mut sections = Vec::new();
        engine.read_layer(PageId(page), 3, &mut sections).unwrap();
        sections
    };
    assert!(read(5) == read(7) && read(6) == read(8) && read(5) != read(6));
}
