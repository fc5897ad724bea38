//! Reuse is exact: the same logits, bit for bit, however the keys and values came to be in the pages.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{bits, greedy, pages, pass, prefill, some_tokens, tiny, transfer};
use kvsp_engine::{Engine, EngineError, PageId, Span};
use kvsp_proto::registry::ElementType;

const TYPES: [ElementType; 3] = [ElementType::Float32, ElementType::Float16, ElementType::Bfloat16];

#[test]
fn chunk_borders_change_nothing() {
    let tokens = some_tokens(300);
    for kv in TYPES {
        let mut engine = tiny(16, kv);
        let table = pages(&engine, 0, tokens.len());
        let whole = prefill(&mut engine, &table, &tokens, 0, &[usize::MAX]);
        for chunks in [&[1][..], &[2], &[7], &[64], &[127, 2, 128], &[128], &[256], &[299], &[255, 1, 44]] {
            let table = pages(&engine, 100, tokens.len());
            let logits = prefill(&mut engine, &table, &tokens, 0, chunks);
            assert_eq!(bits(&logits), bits(&whole), "{kv} in chunks of {chunks:?}");
        }
    }
}

#[test]
fn every_row_of_a_prefill_equals_its_decode() {
    let tokens = some_tokens(140);
    let mut engine = tiny(16, ElementType::Float16);
    let table = pages(&engine, 0, tokens.len());
    let other = pages(&engine, 50, tokens.len());
    for end in 1..=tokens.len() {
        let step = Span {
            tokens: vec![tokens[end - 1]],
            position: end - 1,
            first_page: 0,
            pages: table.clone(),
            logits: true,
        };
        let decoded = pass(&mut engine, vec![step]).remove(0).unwrap();
        let whole = prefill(&mut engine, &other, &tokens[..end], 0, &[usize::MAX]);
        assert_eq!(bits(&decoded), bits(&whole), "after {end} tokens");
    }
}

#[test]
fn a_transferred_prefix_gives_the_logits_of_a_computed_one() {
    for kv in TYPES {
        for block in [1, 4, 16, 24, 32, 200] {
            for length in [1, 31, 129, 257] {
                let tokens = some_tokens(length);
                let mut cold = tiny(block, kv);
                let table = pages(&cold, 0, length);
                let want = prefill(&mut cold, &table, &tokens, 0, &[usize::MAX]);
                // The last token is always computed: its logits are wanted.
                let full = (length - 1) / block as usize;
                for blocks in [full / 2, full] {
                    let mut warm = tiny(block, kv);
                    let target: Vec<PageId> = pages(&warm, 3, length).into_iter().rev().collect();
                    transfer(&cold, &table, &mut warm, &target, blocks);
                    let from = blocks * block as usize;
                    let got = prefill(&mut warm, &target, &tokens, from, &[usize::MAX]);
                    assert_eq!(bits(&got), bits(&want), "{kv}, {blocks} of {block} tokens, {length} in all");
                }
            }
        }
    }
}

#[test]
fn octets_are_the_same_whichever_block_size_computed_them() {
    let tokens = some_tokens(96);
    let read = |block: u32| {
        let mut engine = tiny(block, ElementType::Bfloat16);
        let table = pages(&engine, 0, tokens.len());
        prefill(&mut engine, &table, &tokens, 0, &[17]);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for &page in &table {
            let mut sections = Vec::new();
            engine.read_layer(page, 3, &mut sections).unwrap();
            let half = sections.len() / 2;
            v.extend_from_slice(&sections[half..]);
            sections.truncate(half);
            k.extend_from_slice(&sections);
        }
        (k, v)
    };
    let want = read(4);
    assert_eq!(want.0.len(), 96 * 2 * 16 * 2);
    for block in [8, 16, 32, 96] {
        assert_eq!(read(block), want);
    }
}

#[test]
fn sessions_in_one_pass_do_not_touch_each_other() {
    let prompts: Vec<Vec<u32>> = [5, 130, 41, 256, 1].iter().map(|&n| some_tokens(n)).collect();
    let steps = 20;
    let mut alone = tiny(16, ElementType::Float16);
    let mut want = Vec::new();
    for prompt in &prompts {
        let mut tokens = prompt.clone();
        let table = pages(&alone, 0, prompt.len() + steps);
        let mut rows = vec![prefill(&mut alone, &table, &tokens, 0, &[usize::MAX])];
        for _ in 1..steps {
            tokens.push(greedy(&rows[rows.len() - 1]));
            let from = tokens.len() - 1;
            rows.push(prefill(&mut alone, &table, &tokens, from, &[1]));
        }
        want.push(rows);
    }

    // Session i joins at step i with its whole prompt while the others decode.
    let mut together = tiny(16, ElementType::Float16);
    let mut tokens = prompts.clone();
    let mut done = vec![0; prompts.len()];
    let tables: Vec<Vec<PageId>> =
        (0u32..).zip(&prompts).map(|(i, p)| pages(&together, i * 30, p.len() + steps)).collect();
    let mut got = vec![Vec::new(); prompts.len()];
    for step in 0.. {
        let running: Vec<usize> = (0..prompts.len()).filter(|&i| i <= step && got[i].len() < steps).collect();
        if running.is_empty() && step >= prompts.len() {
            break;
        }
        let spans = running.iter().map(|&i| Span {
            tokens: tokens[i][done[i]..].to_vec(),
            position: done[i],
            first_page: 0,
            pages: tables[i].clone(),
            logits: true,
        });
        let spans = spans.collect();
        for (&i, row) in running.iter().zip(pass(&mut together, spans)) {
            let row = row.unwrap();
            done[i] = tokens[i].len();
            tokens[i].push(greedy(&row));
            got[i].push(row);
        }
    }
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert_eq!(bits(got), bits(want));
        }
    }
}

#[test]
fn what_lies_in_pages_after_the_sequence_is_not_read() {
    let tokens = some_tokens(20);
    let mut engine = tiny(16, ElementType::Float16);
    let table = pages(&engine, 0, tokens.len());
    let want = prefill(&mut engine, &table, &tokens, 0, &[usize::MAX]);
    // Not-a-number everywhere.
    let garbage = vec![0xFF; 16 * 2 * 16 * 2];
    for &page in &table {
        for layer in 0..4 {
            engine.write_layer(page, layer, &garbage, &garbage).unwrap();
        }
    }
    let got = prefill(&mut engine, &table, &tokens, 0, &[6]);
    assert_eq!(bits(&got), bits(&want));
}

#[test]
fn a_later_layer_may_arrive_while_an_earlier_one_is_computed() {
    let tokens = some_tokens(50);
    let mut cold = tiny(16, ElementType::Float16);
    let table = pages(&cold, 0, tokens.len());
    let want = prefill(&mut cold, &table, &tokens, 0, &[usize::MAX]);
    let mut warm = tiny(16, ElementType::Float16);
    let span = Span {
        tokens: tokens[48..].to_vec(),
        position: 48,
        first_page: 0,
        pages: table.clone(),
        logits: true,
    };
    let mut pass = warm.begin(vec![span]).unwrap();
    while let Some(layer) = warm.next_layer(&pass) {
        for &page in &table[..3] {
            let mut sections = Vec::new();
            cold.read_layer(page, layer, &mut sections).unwrap();
            let (k, v) = sections.split_at(sections.len() / 2);
            warm.write_layer(page, layer, k, v).unwrap();
        }
        warm.step_layer(&mut pass).unwrap();
    }
    let got = warm.finish(pass).unwrap().remove(0).unwrap();
    assert_eq!(bits(&got), bits(&want));
}

#[test]
fn misuse_is_refused() {
    let mut engine = tiny(16, ElementType::Float16);
    let span = |tokens: &[u32], position, pages: &[u32]| Span {
        tokens: tokens.to_vec(),
        position,
        first_page: 0,
        pages: pages.iter().copied().map(PageId).collect(),
        logits: false,
    };
    let count = engine.info().pages as u32;
    let bad = [
        vec![],
        vec![span(&[], 0, &[0])],
        vec![span(&[1; 17], 0, &[0])],
        vec![span(&[1], 0, &[count])],
        vec![span(&[260], 0, &[0])],
        vec![span(&[1], usize::MAX, &[0])],
        vec![span(&[1], 4096, &[0; 300])],
        vec![span(&[1], 0, &[5]), span(&[1], 0, &[5])],
        vec![span(&[1], 16, &[5, 6]), span(&[1], 16, &[6, 7])],
    ];
    for spans in bad {
        assert!(matches!(engine.begin(spans), Err(EngineError::Misuse(_))));
    }
    // A prefix page may be shared.
    assert!(engine.begin(vec![span(&[1], 16, &[5, 6]), span(&[1], 16, &[5, 7])]).is_ok());
    // A prefix that never arrived.
    let mut pass = engine.begin(vec![span(&[1], 16, &[8, 9])]).unwrap();
    assert!(matches!(engine.step_layer(&mut pass), Err(EngineError::Misuse(_))));
    assert!(matches!(engine.finish(pass), Err(EngineError::Misuse(_))));
    let wrong = engine.write_layer(PageId(0), 0, &[0; 3], &[0; 3]);
    assert_eq!(wrong, Err(EngineError::SectionSize { got: 3, want: 1024 }));
    let good = vec![0; 1024];
    assert!(matches!(engine.write_layer(PageId(0), 4, &good, &good), Err(EngineError::Misuse(_))));
    assert!(matches!(engine.write_layer(PageId(count), 0, &good, &good), Err(EngineError::Misuse(_))));
    assert!(matches!(engine.read_layer(PageId(0), 0, &mut Vec::new()), Err(EngineError::Misuse(_))));
}
