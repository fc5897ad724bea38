//! A model whose cache has the shape of a real one and whose weights are few: 30 layers of 3 heads of 64 elements, as
//! SmolLM2-135M has them, around a state of 64 elements.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::commands::bench::error::BenchError;

const LAYERS: usize = 30;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const HIDDEN: usize = 64;
pub(super) const VOCABULARY: usize = 64;
/// Longest sequence.
const CONTEXT: usize = 16_384;

/// Octets of K and V of one token in all layers, with two octets an element.
pub(super) const TOKEN_OCTETS: usize = LAYERS * LAYER_TOKEN_OCTETS * 2;
/// Octets of K, or of V, of one token in one layer.
pub(super) const LAYER_TOKEN_OCTETS: usize = KV_HEADS * HEAD_DIM * 2;

/// Layers of the model.
pub(super) const fn layers() -> usize {
    LAYERS
}

/// Writes the model into a folder.
pub(super) fn write(folder: &Path) -> Result<(), BenchError> {
    let failed = BenchError::io("the model's folder");
    let written = || {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("config.json"), config().to_string())?;
        fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
        weights(folder)
    };
    written().map_err(failed)
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    })
}

/// A word a token; nobody is told a text.
fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> =
        (0..VOCABULARY).map(|token| (format!("w{token}"), token.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    })
}

/// Names and dimensions of all weights.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    let parts: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[HIDDEN]),
        ("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.k_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.v_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]),
        ("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]),
        ("post_attention_layernorm", &[HIDDEN]),
        ("mlp.gate_proj", &[HIDDEN, HIDDEN]),
        ("mlp.up_proj", &[HIDDEN, HIDDEN]),
        ("mlp.down_proj", &[HIDDEN, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let named =
            |(part, dims): &(&str, &[usize])| (format!("model.layers.{layer}.{part}.weight"), dims.to_vec());
        tensors.extend(parts.iter().map(named));
    }
    tensors
}

/// One file of `float32`; what is in it does not change the speed.
fn weights(folder: &Path) -> std::io::Result<()> {
    let tensors = tensors();
    let (mut header, mut at) = (Map::new(), 0);
    for (name, dims) in &tensors {
        let end = at + dims.iter().product::<usize>() * size_of::<f32>();
        header.insert(name.clone(), json!({"dtype": "F32", "shape": dims, "data_offsets": [at, end]}));
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 1_u64;
    for _ in 0..at / size_of::<f32>() {
        // Xorshift: not random, but different.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let weight = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        file.write_all(&weight.to_le_bytes())?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_has_the_shape_that_is_told() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        let source = dir.path().to_str().unwrap().parse().unwrap();
        let options = kvsp_llama::LoadOptions { name: Some("x/y".to_owned()), ..Default::default() };
        let described = kvsp_llama::describe(&source, &options, &|_, _| ()).unwrap();
        let descriptor = kvsp_proto::descriptor::Descriptor::from_value(described).unwrap();
        assert_eq!(crate::commands::fleet::token_octets(&descriptor), TOKEN_OCTETS as u64);
        assert_eq!(descriptor.layers as usize, layers());
        assert!(kvsp_llama::tokenizer(&source).is_ok());
    }
}
