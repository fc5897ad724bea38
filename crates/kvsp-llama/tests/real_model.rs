//! SmolLM2-135M-Instruct: the path of its GGUF file from `KVSP_TEST_MODEL`, else downloaded once.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use common::real::model;
use common::{bits, greedy, pages, prefill, transfer};
use kvsp_engine::{ChatMessage, Engine, Tokenizer};
use kvsp_llama::{LlamaEngine, LoadOptions, facts, load, tokenizer};
use kvsp_proto::registry::ElementType;

/// One loaded engine for all tests; each takes pages of its own.
fn engine() -> MutexGuard<'static, LlamaEngine> {
    static ENGINE: OnceLock<Mutex<LlamaEngine>> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| Mutex::new(fresh()));
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fresh() -> LlamaEngine {
    let options = LoadOptions {
        name: Some("HuggingFaceTB/SmolLM2-135M-Instruct".into()),
        block_tokens: 16,
        kv_dtype: ElementType::Float16,
        pool_octets: 256 << 20,
    };
    load(&model(), &options, &|_, _| {}).unwrap()
}

/// The greedy continuation of `tokens`.
fn generate(engine: &mut LlamaEngine, mut tokens: Vec<u32>, count: usize) -> Vec<u32> {
    let table = pages(engine, 0, tokens.len() + count);
    let start = tokens.len();
    let mut from = 0;
    while tokens.len() < start + count {
        let logits = prefill(engine, &table, &tokens, from, &[256]);
        from = tokens.len();
        tokens.push(greedy(&logits));
    }
    tokens.split_off(start)
}

#[test]
fn it_knows_the_capital_of_france() {
    let t = tokenizer(&model()).unwrap();
    let tokens = t.encode("The capital of France is").unwrap();
    let out = generate(&mut engine(), tokens, 1);
    assert_eq!(t.decode(&out).unwrap(), " Paris");
}

#[test]
fn it_answers_a_chat_and_ends_its_turn() {
    let t = tokenizer(&model()).unwrap();
    let message =
        ChatMessage { role: "user".into(), content: "What is the capital of France? Answer briefly.".into() };
    let out = generate(&mut engine(), t.chat(&[message]).unwrap(), 24);
    let eos = facts(&model()).unwrap().eos;
    assert!(t.decode(&out).unwrap().contains("Paris"));
    assert!(out.iter().any(|token| eos.contains(token)), "{:?}", t.decode(&out));
}

#[test]
fn reuse_decode_and_chunks_are_exact() {
    let t = tokenizer(&model()).unwrap();
    let text = "The tide tables for 1904 list every harbour from Brest to Bergen. ".repeat(20);
    let mut tokens = t.encode(&text).unwrap();
    tokens.truncate(303);
    assert_eq!(tokens.len(), 303);
    let mut cold = engine();
    let table = pages(&cold, 0, tokens.len());
    let want = prefill(&mut cold, &table, &tokens, 0, &[usize::MAX]);
    let other = pages(&cold, 40, tokens.len());
    assert_eq!(bits(&prefill(&mut cold, &other, &tokens, 0, &[100, 1, 2, 150])), bits(&want));
    // Decode the last five tokens one at a time.
    assert_eq!(bits(&prefill(&mut cold, &other, &tokens, 298, &[1])), bits(&want));
    let mut warm = fresh();
    let target = pages(&warm, 5, tokens.len());
    prefill(&mut cold, &table, &tokens, 0, &[64]);
    transfer(&cold, &table, &mut warm, &target, 18);
    assert_eq!(bits(&prefill(&mut warm, &target, &tokens, 288, &[usize::MAX])), bits(&want));
    assert_eq!(bits(&prefill(&mut warm, &target, &tokens, 112, &[usize::MAX])), bits(&want));
}

#[test]
fn tokens_are_those_of_a_second_implementation() {
    // From a separate implementation of byte-level BPE over the file's vocabulary and merges.
    let golden: [(&str, &[u32]); 5] = [
        ("The capital of France is", &[504, 3575, 282, 4649, 314]),
        ("Hello, world! It's 2024.", &[19556, 28, 905, 17, 657, 506, 216, 34, 32, 34, 36, 30]),
        (
            "fn main() {\n    println!(\"{x:?}\");\n}\n",
            &[7853, 1085, 1000, 1662, 472, 1628, 34115, 17, 45257, 104, 42, 47, 15201, 43, 198, 109, 198],
        ),
        ("naïve café — 東京 😀", &[3546, 46494, 37366, 1841, 17097, 247, 126, 16736, 122, 40303, 218]),
        ("  two  spaces\t\n\n end ", &[216, 827, 216, 5600, 197, 1116, 1112, 216]),
    ];
    let t = tokenizer(&model()).unwrap();
    for (text, want) in golden {
        let tokens = t.encode(text).unwrap();
        assert_eq!(tokens, want, "{text:?}");
        assert_eq!(t.decode(&tokens).unwrap(), text);
    }
}

#[test]
fn digits_are_split_one_by_one() {
    let t = tokenizer(&model()).unwrap();
    for token in t.encode("31415 926").unwrap() {
        let text = t.decode(&[token]).unwrap();
        assert!(text.chars().filter(char::is_ascii_digit).count() <= 1, "{text:?}");
    }
}

#[test]
fn special_tokens_are_recognised_and_left_out_of_text() {
    let t = tokenizer(&model()).unwrap();
    let tokens = t.encode("<|im_start|>user\nhi<|im_end|>").unwrap();
    assert_eq!((tokens[0], tokens[tokens.len() - 1]), (1, 2));
    assert_eq!(t.decode(&tokens).unwrap(), "user\nhi");
    let chat = t.chat(&[ChatMessage { role: "user".into(), content: "hi".into() }]).unwrap();
    let text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(chat, t.encode(text).unwrap());
    let facts = facts(&model()).unwrap();
    assert_eq!((facts.max_context, facts.vocab), (8192, 49152));
    assert!(facts.eos.contains(&2));
    assert_eq!(engine().info().descriptor.positional.to_string(), "rope");
}
