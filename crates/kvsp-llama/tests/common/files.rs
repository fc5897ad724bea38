//! Writes one small random model in both file forms.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};

pub const HIDDEN: usize = 32;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 8;
const INTERMEDIATE: usize = 48;
const LAYERS: usize = 2;
pub const VOCAB: usize = 259;
pub const CONTEXT: usize = 512;

/// A weight: its names in a folder and in a GGUF file, dimensions slowest first, elements in folder order.
pub struct Weight {
    hf: String,
    gguf: String,
    dims: Vec<usize>,
    elements: Vec<f32>,
    /// Heads whose rows the two forms order differently.
    heads: usize,
}

/// Random weights of the model; equal for equal seeds.
pub fn weights(seed: u64, tied: bool) -> Vec<Weight> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut weight = |hf: String, gguf: String, dims: &[usize], heads: usize| {
        let count = dims.iter().product();
        let elements = (0..count).map(|_| (rng.next_u32() >> 8) as f32 / (1 << 24) as f32 - 0.5).collect();
        Weight {
            hf: format!("{hf}.weight"),
            gguf: format!("{gguf}.weight"),
            dims: dims.to_vec(),
            elements,
            heads,
        }
    };
    let mut out = vec![
        weight("model.embed_tokens".into(), "token_embd".into(), &[VOCAB, HIDDEN], 0),
        weight("model.norm".into(), "output_norm".into(), &[HIDDEN], 0),
    ];
    if !tied {
        out.push(weight("lm_head".into(), "output".into(), &[VOCAB, HIDDEN], 0));
    }
    for l in 0..LAYERS {
        let parts: [(&str, &str, &[usize], usize); 9] = [
            ("input_layernorm", "attn_norm", &[HIDDEN], 0),
            ("self_attn.q_proj", "attn_q", &[HEADS * HEAD_DIM, HIDDEN], HEADS),
            ("self_attn.k_proj", "attn_k", &[KV_HEADS * HEAD_DIM, HIDDEN], KV_HEADS),
            ("self_attn.v_proj", "attn_v", &[KV_HEADS * HEAD_DIM, HIDDEN], 0),
            ("self_attn.o_proj", "attn_output", &[HIDDEN, HEADS * HEAD_DIM], 0),
            ("post_attention_layernorm", "ffn_norm", &[HIDDEN], 0),
            ("mlp.gate_proj", "ffn_gate", &[INTERMEDIATE, HIDDEN], 0),
            ("mlp.up_proj", "ffn_up", &[INTERMEDIATE, HIDDEN], 0),
            ("mlp.down_proj", "ffn_down", &[HIDDEN, INTERMEDIATE], 0),
        ];
        for (hf, gguf, dims, heads) in parts {
            out.push(weight(format!("model.layers.{l}.{hf}"), format!("blk.{l}.{gguf}"), dims, heads));
        }
    }
    out
}

/// Octet tokens in byte-level form, then three special ones.
fn vocabulary() -> Vec<String> {
    let mut next = 0x100;
    let mut octet = |o: u8| {
        if matches!(o, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(o).to_string();
        }
        next += 1;
        char::from_u32(next - 1).unwrap().to_string()
    };
    let mut tokens: Vec<String> = (0..=255).map(&mut octet).collect();
    tokens.extend(["<s>", "</s>", "<turn>"].map(str::to_owned));
    tokens
}

pub const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<turn>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<turn>{% endif %}";

/// The configuration of the folder form.
pub fn hf_config(tied: bool) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": tied, "eos_token_id": 257, "rope_scaling": null,
    })
}

/// Write the folder form; with `shards` above 1, as so many files with an index.
pub fn write_hf(folder: &Path, weights: &[Weight], config: &Value, shards: usize) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tokens = vocabulary();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(i, t)| (t.clone(), i.into())).collect();
    let special: Vec<Value> = (256..259)
        .map(|id| {
            json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let settings = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]});
    std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
    if shards == 1 {
        write_safetensors(&folder.join("model.safetensors"), weights);
        return;
    }
    let mut map = serde_json::Map::new();
    for (i, part) in weights.chunks(weights.len().div_ceil(shards)).enumerate() {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", i + 1);
        write_safetensors(&folder.join(&name), part);
        map.extend(part.iter().map(|w| (w.hf.clone(), name.clone().into())));
    }
    let index = json!({"metadata": {}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn write_safetensors(path: &Path, weights: &[Weight]) {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for weight in weights {
        let start = data.len();
        data.extend(weight.elements.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": weight.dims, "data_offsets": [start, data.len()]});
        header.insert(weight.hf.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend(data);
    std::fs::write(path, out).unwrap();
}

/// Metadata of the GGUF form that the tests change.
pub struct GgufSettings {
    pub architecture: &'static str,
    pub pre: &'static str,
    pub scaling: Option<(&'static str, f32)>,
    pub add_bos: bool,
}

impl Default for GgufSettings {
    fn default() -> Self {
        Self { architecture: "llama", pre: "gpt-2", scaling: None, add_bos: true }
    }
}

/// The GGUF form.
pub fn gguf(weights: &[Weight], settings: &GgufSettings) -> Vec<u8> {
    let mut meta = Meta::default();
    meta.text("general.architecture", settings.architecture);
    meta.u32("llama.block_count", LAYERS);
    meta.u32("llama.context_length", CONTEXT);
    meta.u32("llama.embedding_length", HIDDEN);
    meta.u32("llama.feed_forward_length", INTERMEDIATE);
    meta.u32("llama.attention.head_count", HEADS);
    meta.u32("llama.attention.head_count_kv", KV_HEADS);
    meta.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    if let Some((kind, factor)) = settings.scaling {
        meta.text("llama.rope.scaling.type", kind);
        meta.f32("llama.rope.scaling.factor", factor);
    }
    meta.text("tokenizer.ggml.model", "gpt2");
    meta.text("tokenizer.ggml.pre", settings.pre);
    meta.texts("tokenizer.ggml.tokens", &vocabulary());
    meta.texts("tokenizer.ggml.merges", &[]);
    meta.token_types("tokenizer.ggml.token_type", VOCAB, 3);
    meta.u32("tokenizer.ggml.bos_token_id", 256);
    meta.u32("tokenizer.ggml.eos_token_id", 257);
    meta.boolean("tokenizer.ggml.add_bos_token", settings.add_bos);
    meta.text("tokenizer.chat_template", TEMPLATE);

    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((weights.len() as u64).to_le_bytes());
    out.extend(meta.count.to_le_bytes());
    out.extend(meta.octets);
    let mut data: Vec<u8> = Vec::new();
    for weight in weights {
        string(&mut out, &weight.gguf);
        out.extend((weight.dims.len() as u32).to_le_bytes());
        for &dim in weight.dims.iter().rev() {
            out.extend((dim as u64).to_le_bytes());
        }
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(interleaved(weight).iter().flat_map(|x| x.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// Rows of each head in GGUF's order: element i of the first half, then i of the second, for each i.
fn interleaved(weight: &Weight) -> Vec<f32> {
    if weight.heads == 0 {
        return weight.elements.clone();
    }
    let inner = weight.dims[1];
    let mut out = Vec::new();
    for head in weight.elements.chunks_exact(HEAD_DIM * inner) {
        for i in 0..HEAD_DIM / 2 {
            for row in [i, i + HEAD_DIM / 2] {
                out.extend_from_slice(&head[row * inner..(row + 1) * inner]);
            }
        }
    }
    out
}

#[derive(Default)]
struct Meta {
    count: u64,
    octets: Vec<u8>,
}

impl Meta {
    fn entry(&mut self, key: &str, kind: u32) {
        self.count += 1;
        string(&mut self.octets, key);
        self.octets.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: usize) {
        self.entry(key, 4);
        self.octets.extend((value as u32).to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, 6);
        self.octets.extend(value.to_le_bytes());
    }

    fn boolean(&mut self, key: &str, value: bool) {
        self.entry(key, 7);
        self.octets.push(value.into());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.entry(key, 8);
        string(&mut self.octets, value);
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.entry(key, 9);
        self.octets.extend(8u32.to_le_bytes());
        self.octets.extend((values.len() as u64).to_le_bytes());
        for value in values {
            string(&mut self.octets, value);
        }
    }

    /// All normal but the last `control`.
    fn token_types(&mut self, key: &str, count: usize, control: usize) {
        self.entry(key, 9);
        self.octets.extend(5u32.to_le_bytes());
        self.octets.extend((count as u64).to_le_bytes());
        for i in 0..count {
            let kind: i32 = if i < count - control { 1 } else { 3 };
            self.octets.extend(kind.to_le_bytes());
        }
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
