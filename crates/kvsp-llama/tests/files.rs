//! Models from files: both forms compute the same, and bad files are refused with a reason.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;

use common::files::{GgufSettings, gguf, hf_config, weights, write_hf};
use common::{bits, open, pages, prefill, transfer};
use kvsp_engine::{ChatMessage, Engine, Tokenizer};
use kvsp_llama::digest::{DigestError, model_digests};
use kvsp_llama::{LoadError, LoadOptions, ModelSource, describe, facts, load, tokenizer};
use kvsp_proto::digest::sha256_parts;
use kvsp_proto::registry::ElementType;
use serde_json::{Value, json};

fn source(path: &Path) -> ModelSource {
    ModelSource::Path(path.to_owned())
}

fn digests(path: &Path) -> Result<(String, String), DigestError> {
    let digests = model_digests(path, &|_, _| {})?;
    Ok((digests.model.to_string(), digests.tokenizer.to_string()))
}

fn sha256(parts: &[&[u8]]) -> String {
    format!("sha-256:{}", sha256_parts(parts.iter().copied()))
}

fn unsupported(path: &Path) -> String {
    match facts(&source(path)) {
        Err(LoadError::Unsupported(what)) => what,
        other => panic!("{other:?}"),
    }
}

fn prompt() -> Vec<u32> {
    (0..200).map(|i| (i * 73 + 11) % 256).collect()
}

#[test]
fn both_forms_give_the_same_logits() {
    for tied in [false, true] {
        let model = weights(1, tied);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model.gguf");
        std::fs::write(&file, gguf(&model, &GgufSettings::default())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write_hf(folder.path(), &model, &hf_config(tied), 1);
        let run = |path: &Path| {
            let mut engine = open(&source(path), 16, ElementType::Float32);
            let table = pages(&engine, 0, 200);
            prefill(&mut engine, &table, &prompt(), 0, &[usize::MAX])
        };
        let (a, b) = (run(&file), run(folder.path()));
        let spread = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(spread > 0.1);
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() < 1e-4 * spread, "{a} and {b}");
        }
    }
}

#[test]
fn keys_are_stored_in_the_order_of_the_files() {
    let model = weights(2, true);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.gguf"), gguf(&model, &GgufSettings::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), &model, &hf_config(true), 2);
    let keys = |path: &Path| {
        let mut engine = open(&source(path), 16, ElementType::Float32);
        let table = pages(&engine, 0, 16);
        prefill(&mut engine, &table, &prompt()[..16], 0, &[usize::MAX]);
        let mut sections = Vec::new();
        engine.read_layer(table[0], 0, &mut sections).unwrap();
        let elements = sections.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b));
        elements.collect::<Vec<f32>>()
    };
    let (interleaved, split) = (keys(dir.path()), keys(folder.path()));
    let half = interleaved.len() / 2;
    for (a, b) in interleaved[..half].chunks(8).zip(split[..half].chunks(8)) {
        for i in 0..4 {
            assert!((a[2 * i] - b[i]).abs() < 1e-5 && (a[2 * i + 1] - b[i + 4]).abs() < 1e-5);
        }
    }
    assert!(interleaved[half..].iter().zip(&split[half..]).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn reuse_is_exact_for_a_folder_too() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), &weights(3, false), &hf_config(false), 3);
    let mut cold = open(&source(folder.path()), 8, ElementType::Bfloat16);
    let table = pages(&cold, 0, 200);
    let want = prefill(&mut cold, &table, &prompt(), 0, &[64]);
    let mut warm = open(&source(folder.path()), 8, ElementType::Bfloat16);
    let target = pages(&warm, 7, 200);
    transfer(&cold, &table, &mut warm, &target, 20);
    assert_eq!(bits(&prefill(&mut warm, &target, &prompt(), 160, &[1, 2, 37])), bits(&want));
}

#[test]
fn tokenizers_of_both_forms_agree_and_chat_begins_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    std::fs::write(&file, gguf(&weights(1, true), &GgufSettings::default())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), &weights(1, true), &hf_config(true), 1);
    let message = ChatMessage { role: "user".into(), content: "hé".into() };
    for path in [file.as_path(), folder.path()] {
        let t = tokenizer(&source(path)).unwrap();
        assert_eq!(t.encode("a1").unwrap(), [256, 97, 49]);
        assert_eq!(t.encode("a</s>").unwrap(), [256, 97, 257]);
        assert_eq!(t.decode(&[256, 104, 0xC3, 0xA9, 257]).unwrap(), "hé");
        let chat = t.chat(std::slice::from_ref(&message)).unwrap();
        assert_eq!(chat, [256, 258, 104, 0xC3, 0xA9, 257, 258]);
        let facts = facts(&source(path)).unwrap();
        assert_eq!((facts.max_context, facts.vocab, facts.eos), (512, 259, vec![257]));
    }
}

#[test]
fn digests_follow_the_names_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A symlink is hashed at its own name's place, whatever its target is called.
    std::fs::write(at("zz"), b"one").unwrap();
    std::os::unix::fs::symlink(at("zz"), at("a.gguf")).unwrap();
    std::fs::write(at("b.gguf"), b"two").unwrap();
    std::fs::write(at("B.gguf"), b"big").unwrap();
    let gguf = sha256(&[b"big", b"one", b"two"]);
    assert_eq!(digests(dir.path()).unwrap(), (gguf.clone(), gguf.clone()));
    assert_eq!(digests(&at("b.gguf")).unwrap().0, sha256(&[b"two"]));
    std::fs::write(at("tokenizer.model"), b"tm").unwrap();
    assert_eq!(digests(dir.path()).unwrap(), (gguf, sha256(&[b"tm"])));
    std::fs::write(at("model.safetensors"), b"st").unwrap();
    std::fs::write(at("tokenizer.json"), b"tj").unwrap();
    assert_eq!(digests(dir.path()).unwrap(), (sha256(&[b"st"]), sha256(&[b"tj"])));
    let index = |map: Value| {
        std::fs::write(at("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
        digests(dir.path())
    };
    std::fs::write(at("s10"), b"10").unwrap();
    std::fs::write(at("s2"), b"2").unwrap();
    assert_eq!(index(json!({"x": "s2", "y": "s10", "z": "s2"})).unwrap().0, sha256(&[b"10", b"2"]));
    for bad in [json!({"x": "../s2"}), json!({"x": "a/b"}), json!({"x": "gone"}), json!({"x": 1}), json!({})]
    {
        assert!(matches!(index(bad), Err(DigestError::Index(_))));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(digests(empty.path()), Err(DigestError::NoWeights(_))));
    std::fs::write(empty.path().join("model.safetensors"), b"st").unwrap();
    assert!(matches!(digests(empty.path()), Err(DigestError::NoTokenizer(_))));
    assert!(matches!(digests(&empty.path().join("gone")), Err(DigestError::Io { .. })));
}

#[test]
fn a_path_needs_a_name_and_positional_says_what_is_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let describe_as = |scaling: Value| {
        let mut config = hf_config(true);
        config["rope_scaling"] = scaling;
        write_hf(folder.path(), &weights(1, true), &config, 1);
        let options = LoadOptions { name: Some("org/m".into()), ..LoadOptions::default() };
        describe(&source(folder.path()), &options, &|_, _| {}).map(|value| value["positional"].clone())
    };
    assert_eq!(describe_as(Value::Null).unwrap(), "rope");
    assert_eq!(describe_as(json!({"type": "linear", "factor": 4.0})).unwrap(), "rope-linear;factor=4");
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256});
    assert_eq!(describe_as(llama3).unwrap(), "rope-llama3");
    assert!(matches!(describe_as(json!({"type": "yarn", "factor": 4.0})), Err(LoadError::Unsupported(_))));
    let nameless = describe(&source(folder.path()), &LoadOptions::default(), &|_, _| {});
    assert!(matches!(nameless, Err(LoadError::NameRequired)));
    let fp8 =
        LoadOptions { name: Some("m".into()), kv_dtype: ElementType::Fp8E4m3, ..LoadOptions::default() };
    assert!(matches!(load(&source(folder.path()), &fp8, &|_, _| {}), Err(LoadError::Unsupported(_))));
}

#[test]
fn other_architectures_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let changes = [
        (json!({"model_type": "qwen2"}), "qwen2"),
        (json!({"attention_bias": true}), "bias"),
        (json!({"sliding_window": 4096}), "sliding"),
        (json!({"hidden_act": "gelu"}), "gelu"),
        (json!({"quantization_config": {"bits": 4}}), "quantised"),
        (json!({"partial_rotary_factor": 0.5}), "rotary"),
    ];
    for (change, word) in changes {
        let mut config = hf_config(true);
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        write_hf(folder.path(), &weights(1, true), &config, 1);
        let why = unsupported(folder.path());
        assert!(why.contains(word), "{why}");
    }
    let file = folder.path().join("m.gguf");
    let write = |settings| std::fs::write(&file, gguf(&weights(1, true), &settings)).unwrap();
    write(GgufSettings { architecture: "mamba", ..GgufSettings::default() });
    assert!(unsupported(&file).contains("mamba"));
    write(GgufSettings { scaling: Some(("yarn", 4.0)), ..GgufSettings::default() });
    assert!(unsupported(&file).contains("yarn"));
    write(GgufSettings { pre: "qwen2", ..GgufSettings::default() });
    assert!(matches!(tokenizer(&source(&file)), Err(LoadError::Unsupported(why)) if why.contains("qwen2")));
}

#[test]
fn broken_gguf_files_are_errors_not_panics() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let good = gguf(&weights(1, true), &GgufSettings::default());
    let header = good.len() - 200_000.min(good.len() / 2);
    let options = LoadOptions { name: Some("m".into()), pool_octets: 1 << 20, ..LoadOptions::default() };
    // Cut anywhere.
    for cut in (0..good.len()).step_by(good.len() / 150) {
        std::fs::write(&file, &good[..cut]).unwrap();
        assert!(load(&source(&file), &options, &|_, _| {}).is_err(), "cut at {cut}");
    }
    // Any octet of the header replaced, and runs of 0xFF where lengths lie.
    for at in (0..header.min(9000)).step_by(61) {
        for (value, run) in [(0u8, 1), (0xFF, 1), (0xFF, 8), (0x7F, 8)] {
            let mut bad = good.clone();
            bad[at..at + run].fill(value);
            std::fs::write(&file, &bad).unwrap();
            let source = source(&file);
            // What still parses may be valid; neither may panic or exhaust memory.
            let (facts, tokenizer) = (facts(&source), tokenizer(&source));
            drop((facts, tokenizer));
        }
    }
}

#[test]
fn broken_safetensors_are_errors_not_panics() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), &weights(1, true), &hf_config(true), 1);
    let file = folder.path().join("model.safetensors");
    let good = std::fs::read(&file).unwrap();
    let load = || {
        let options = LoadOptions { name: Some("m".into()), pool_octets: 1 << 20, ..LoadOptions::default() };
        load(&source(folder.path()), &options, &|_, _| {}).map(drop)
    };
    assert!(load().is_ok());
    for cut in [0, 7, 8, 100, good.len() / 2, good.len() - 1] {
        std::fs::write(&file, &good[..cut]).unwrap();
        assert!(load().is_err(), "cut at {cut}");
    }
    let mut huge = good.clone();
    huge[..8].fill(0xFF);
    std::fs::write(&file, huge).unwrap();
    assert!(matches!(load(), Err(LoadError::Malformed { .. })));
    let entries = [
        json!({"dtype": "F32", "shape": [u64::MAX, 2], "data_offsets": [0, 8]}),
        json!({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}),
        json!({"dtype": "F32", "shape": [2], "data_offsets": [0, u64::MAX]}),
        json!({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}),
        json!({"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}),
        json!([]),
    ];
    for entry in entries {
        let header = json!({"model.norm.weight": entry}).to_string();
        let mut octets = (header.len() as u64).to_le_bytes().to_vec();
        octets.extend_from_slice(header.as_bytes());
        octets.extend([0; 8]);
        std::fs::write(&file, octets).unwrap();
        assert!(matches!(load(), Err(LoadError::Malformed { .. })), "{entry}");
    }
    std::fs::write(&file, good).unwrap();
    let mut config = hf_config(true);
    config["intermediate_size"] = json!(40);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(matches!(load(), Err(LoadError::TensorShape { .. })));
    config["num_hidden_layers"] = json!(3);
    config["intermediate_size"] = json!(48);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(matches!(load(), Err(LoadError::MissingTensor(_))));
}
