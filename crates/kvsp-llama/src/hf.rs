//! A Llama model in a Hugging Face folder: config.json, safetensors, tokenizer.json.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::chat::ChatTemplate;
use crate::config::{Config, Pairing, RopeScaling};
use crate::digest::read_limited;
use crate::error::LoadError;
use crate::safetensors::Safetensors;
use crate::tokenizer::LlamaTokenizer;
use crate::weights::{Role, WeightSource};

/// Longest tokenizer.json taken.
pub(crate) const MAX_TOKENIZER: u64 = 256 << 20;
/// Longest configuration file taken.
const MAX_JSON: u64 = 16 << 20;

/// A model's folder with its configuration and the headers of its weight files read.
pub(crate) struct HfModel {
    folder: PathBuf,
    config: RawConfig,
    files: Vec<Safetensors>,
}

/// The members of config.json that decide the arithmetic.
#[derive(Debug, Deserialize)]
struct RawConfig {
    #[serde(default)]
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// Newer files gather the rotary settings here.
    rope_parameters: Option<Rope>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    eos_token_id: Value,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    sliding_window: Option<Value>,
    partial_rotary_factor: Option<f64>,
    quantization_config: Option<Value>,
}

/// `rope_scaling` or `rope_parameters`.
#[derive(Debug, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

fn default_eps() -> f32 {
    1e-6
}

impl HfModel {
    /// Read config.json and the headers of the weight files.
    pub(crate) fn open(folder: &Path, files: &[PathBuf]) -> Result<Self, LoadError> {
        let octets = read_limited(&folder.join("config.json"), MAX_JSON)?;
        let config = serde_json::from_slice(&octets)
            .map_err(|e| LoadError::malformed("config.json", e.to_string()))?;
        let files: Result<Vec<Safetensors>, LoadError> =
            files.iter().map(|file| Safetensors::open(file)).collect();
        Ok(Self { folder: folder.to_owned(), config, files: files? })
    }

    pub(crate) fn config(&self) -> Result<Config, LoadError> {
        self.refuse_variants()?;
        let c = &self.config;
        let rope = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
        let theta = c.rope_theta.or(rope.and_then(|rope| rope.rope_theta));
        Ok(Config {
            hidden: c.hidden_size,
            intermediate: c.intermediate_size,
            layers: c.num_hidden_layers,
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads.unwrap_or(c.num_attention_heads),
            head_dim: c.head_dim.unwrap_or(c.hidden_size / c.num_attention_heads.max(1)),
            vocab: c.vocab_size,
            max_context: c.max_position_embeddings,
            rms_eps: c.rms_norm_eps,
            rope_theta: theta.unwrap_or(10_000.0),
            scaling: rope.map_or(Ok(RopeScaling::None), Rope::scaling)?,
            pairing: Pairing::HalfSplit,
            eos: self.eos()?,
        })
    }

    /// Refuse other architectures, and settings this engine does not compute.
    fn refuse_variants(&self) -> Result<(), LoadError> {
        let c = &self.config;
        let refuse = |what: String| Err(LoadError::Unsupported(what));
        if c.model_type != "llama" {
            return refuse(format!("the architecture {:?} (llama is computed)", c.model_type));
        }
        let biased =
            self.files.iter().flat_map(|file| file.tensors.keys()).any(|name| name.ends_with("_proj.bias"));
        if c.attention_bias || c.mlp_bias || biased {
            return refuse("weights with biases".into());
        }
        if c.sliding_window.as_ref().is_some_and(|window| !window.is_null()) {
            return refuse("sliding-window attention".into());
        }
        if c.partial_rotary_factor.is_some_and(|part| part != 1.0) {
            return refuse("a rotary encoding of part of a head".into());
        }
        if c.quantization_config.as_ref().is_some_and(|q| !q.is_null()) {
            return refuse("quantised safetensors (use GGUF)".into());
        }
        match c.hidden_act.as_deref() {
            None | Some("silu" | "swish") => Ok(()),
            Some(other) => refuse(format!("the activation {other:?}")),
        }
    }

    /// The generation configuration, where there is one, knows more ends than the model's.
    fn eos(&self) -> Result<Vec<u32>, LoadError> {
        let mut eos = token_ids(&self.config.eos_token_id);
        if let Some(generation) = self.json("generation_config.json")? {
            eos.extend(token_ids(&generation["eos_token_id"]));
        }
        eos.sort_unstable();
        eos.dedup();
        Ok(eos)
    }

    pub(crate) fn tokenizer(&self) -> Result<LlamaTokenizer, LoadError> {
        let path = self.folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(LoadError::Tokenizer("the folder has no tokenizer.json".into()));
        }
        let json = read_limited(&path, MAX_TOKENIZER)?;
        LlamaTokenizer::from_json(&json, self.template()?)
    }

    /// The template of chat_template.jinja, else of tokenizer_config.json.
    fn template(&self) -> Result<Option<ChatTemplate>, LoadError> {
        let config = self.json("tokenizer_config.json")?.unwrap_or_default();
        let file = self.folder.join("chat_template.jinja");
        let source = if file.is_file() {
            let octets = read_limited(&file, MAX_JSON)?;
            Some(String::from_utf8(octets).map_err(|e| LoadError::Tokenizer(e.to_string()))?)
        } else {
            named_template(&config["chat_template"])
        };
        let Some(source) = source else { return Ok(None) };
        let template =
            ChatTemplate::new(&source, special(&config["bos_token"]), special(&config["eos_token"]));
        template.map(Some).map_err(|e| LoadError::Tokenizer(e.to_string()))
    }

    /// A JSON file of the folder, if it is there.
    fn json(&self, name: &str) -> Result<Option<Value>, LoadError> {
        let path = self.folder.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let octets = read_limited(&path, MAX_JSON)?;
        serde_json::from_slice(&octets).map(Some).map_err(|e| LoadError::malformed(name, e.to_string()))
    }
}

impl Rope {
    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        let need = |value: Option<f64>, name: &str| {
            value.ok_or_else(|| LoadError::malformed("config.json", format!("the rope scaling lacks {name}")))
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => match need(self.factor, "factor")? {
                1.0 => Ok(RopeScaling::None),
                factor => Ok(RopeScaling::Linear { factor }),
            },
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: need(self.factor, "factor")?,
                low: need(self.low_freq_factor, "low_freq_factor")?,
                high: need(self.high_freq_factor, "high_freq_factor")?,
                original: need(self.original_max_position_embeddings, "original_max_position_embeddings")?,
            }),
            Some(other) => Err(LoadError::Unsupported(format!("the rope scaling {other:?}"))),
        }
    }
}

impl WeightSource for HfModel {
    fn tied(&self) -> bool {
        self.config.tie_word_embeddings
    }

    fn read(&mut self, role: Role, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let name = tensor_name(role);
        let mut found = self.files.iter().filter_map(|file| Some((file, file.tensors.get(&name)?)));
        let Some((file, info)) = found.next() else { return Err(LoadError::MissingTensor(name)) };
        if info.dims != shape {
            return Err(LoadError::TensorShape { name, got: info.dims.clone(), want: shape.to_vec() });
        }
        file.read(info)
    }
}

fn tensor_name(role: Role) -> String {
    let (layer, part) = match role {
        Role::Embedding => return "model.embed_tokens.weight".into(),
        Role::Norm => return "model.norm.weight".into(),
        Role::Head => return "lm_head.weight".into(),
        Role::AttentionNorm(l) => (l, "input_layernorm"),
        Role::Query(l) => (l, "self_attn.q_proj"),
        Role::Key(l) => (l, "self_attn.k_proj"),
        Role::Value(l) => (l, "self_attn.v_proj"),
        Role::Output(l) => (l, "self_attn.o_proj"),
        Role::MlpNorm(l) => (l, "post_attention_layernorm"),
        Role::Gate(l) => (l, "mlp.gate_proj"),
        Role::Up(l) => (l, "mlp.up_proj"),
        Role::Down(l) => (l, "mlp.down_proj"),
    };
    format!("model.layers.{layer}.{part}.weight")
}

/// One identifier or a list of them.
fn token_ids(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// A template, or the default one of a list of named templates.
fn named_template(value: &Value) -> Option<String> {
    match value {
        Value::String(source) => Some(source.clone()),
        Value::Array(list) => {
            let default = list.iter().find(|entry| entry["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// A special token: its text, or an object with the text as `content`.
fn special(value: &Value) -> String {
    value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
}
