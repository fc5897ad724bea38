//! A Llama model in GGUF files: configuration, tokenizer and weights.

use std::path::{Path, PathBuf};

use crate::bpe::Bpe;
use crate::chat::ChatTemplate;
use crate::config::{Config, Pairing, RopeScaling};
use crate::error::LoadError;
use crate::gguf::{Gguf, Meta, TensorInfo};
use crate::tokenizer::LlamaTokenizer;
use crate::weights::{Role, WeightSource};

/// Kinds of `tokenizer.ggml.token_type`.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Control tokens that end a text or a turn though a file may name only one of them.
const ENDS: [&str; 5] = ["<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"];

/// A model's GGUF files, the first with its metadata.
pub(crate) struct GgufModel {
    path: PathBuf,
    files: Vec<Gguf>,
}

impl GgufModel {
    /// Read the headers of a model's files, in the order of their names.
    pub(crate) fn open(path: &Path, files: &[PathBuf]) -> Result<Self, LoadError> {
        let files: Result<Vec<Gguf>, LoadError> = files.iter().map(|file| Gguf::open(file)).collect();
        let model = Self { path: path.to_owned(), files: files?.into_iter().collect() };
        let splits = model.integer("split.count")?.unwrap_or(1).max(1);
        if splits as usize != model.files.len() {
            return Err(LoadError::malformed(
                "GGUF model",
                format!(
                    "{} files where the model has {splits}: give the folder of all its parts",
                    model.files.len()
                ),
            ));
        }
        let architecture = model.text("general.architecture")?;
        if architecture != Some("llama") {
            return Err(LoadError::Unsupported(format!(
                "the architecture {:?} (llama is computed)",
                architecture.unwrap_or("none")
            )));
        }
        Ok(model)
    }

    pub(crate) fn config(&self) -> Result<Config, LoadError> {
        self.refuse_variants()?;
        let hidden = self.required("llama.embedding_length")?;
        let heads = self.required("llama.attention.head_count")?;
        let head_dim = match self.integer("llama.attention.key_length")? {
            Some(length) => length as usize,
            None => hidden / heads.max(1),
        };
        for name in ["llama.attention.value_length", "llama.rope.dimension_count"] {
            if self.integer(name)?.is_some_and(|n| n as usize != head_dim) {
                return Err(LoadError::Unsupported(format!("{name} other than the head's {head_dim}")));
            }
        }
        let vocab = self.tensor("token_embd.weight")?.1.dims.first().copied().unwrap_or(0);
        Ok(Config {
            hidden,
            intermediate: self.required("llama.feed_forward_length")?,
            layers: self.required("llama.block_count")?,
            heads,
            kv_heads: self.integer("llama.attention.head_count_kv")?.map_or(heads, |n| n as usize),
            head_dim,
            vocab,
            max_context: self.required("llama.context_length")?,
            rms_eps: self.number("llama.attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
            rope_theta: self.number("llama.rope.freq_base")?.unwrap_or(10_000.0),
            scaling: self.scaling()?,
            pairing: Pairing::Interleaved,
            eos: self.eos()?,
        })
    }

    /// Refuse what has the name of the architecture but other arithmetic.
    fn refuse_variants(&self) -> Result<(), LoadError> {
        let refuse = |what: &str| Err(LoadError::Unsupported(what.to_owned()));
        if self.integer("llama.expert_count")?.unwrap_or(0) > 0 {
            return refuse("mixtures of experts");
        }
        if self.integer("llama.attention.sliding_window")?.unwrap_or(0) > 0 {
            return refuse("sliding-window attention");
        }
        if self.files.iter().flat_map(|file| file.tensors.keys()).any(|name| name.ends_with(".bias")) {
            return refuse("weights with biases");
        }
        Ok(())
    }

    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        if let Ok((file, info)) = self.tensor("rope_freqs.weight") {
            return file.read(info).map(RopeScaling::Factors);
        }
        let linear = |factor: Option<f64>| match factor {
            None | Some(1.0) => RopeScaling::None,
            Some(factor) => RopeScaling::Linear { factor },
        };
        match self.text("llama.rope.scaling.type")? {
            None => Ok(linear(self.number("llama.rope.scale_linear")?)),
            Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(linear(self.number("llama.rope.scaling.factor")?)),
            Some(other) => Err(LoadError::Unsupported(format!("the rope scaling {other:?}"))),
        }
    }

    fn eos(&self) -> Result<Vec<u32>, LoadError> {
        let mut eos = Vec::new();
        for key in ["eos", "eot", "eom"] {
            let id = self.integer(&format!("tokenizer.ggml.{key}_token_id"))?;
            eos.extend(id.and_then(|id| u32::try_from(id).ok()));
        }
        let tokens = self.texts("tokenizer.ggml.tokens")?;
        let kinds = self.token_kinds()?;
        for ((id, token), kind) in (0u32..).zip(tokens).zip(kinds) {
            if *kind == CONTROL && ENDS.contains(&token.as_str()) {
                eos.push(id);
            }
        }
        eos.sort_unstable();
        eos.dedup();
        Ok(eos)
    }

    pub(crate) fn tokenizer(&self) -> Result<LlamaTokenizer, LoadError> {
        // The definition whose digest the descriptor carries is the one to use.
        let definition = self.path.join("tokenizer.json");
        if definition.is_file() {
            let json = crate::digest::read_limited(&definition, crate::hf::MAX_TOKENIZER)?;
            return LlamaTokenizer::from_json(&json, self.template()?);
        }
        let model = self.text("tokenizer.ggml.model")?.unwrap_or("none");
        if model != "gpt2" {
            return Err(LoadError::Unsupported(format!("the GGUF tokenizer {model:?} (gpt2 is read)")));
        }
        let pre = self.text("tokenizer.ggml.pre")?.unwrap_or("none").parse()?;
        let tokens = self.texts("tokenizer.ggml.tokens")?.to_vec();
        let mut merges = Vec::new();
        for merge in self.texts("tokenizer.ggml.merges")? {
            let pair = merge.split_once(' ');
            let (a, b) = pair.ok_or_else(|| LoadError::Tokenizer("a merge is no pair".into()))?;
            merges.push((a.to_owned(), b.to_owned()));
        }
        let kinds = self.token_kinds()?;
        let of_kind = |kind| (0u32..).zip(kinds).filter(|&(_, &k)| k == kind).map(|(id, _)| id).collect();
        let default = pre == crate::bpe::PreTokenizer::LlamaBpe;
        let add_bos = match self.get("tokenizer.ggml.add_bos_token") {
            Some(Meta::Bool(add)) => *add,
            _ => default,
        };
        let bos = if add_bos { self.integer("tokenizer.ggml.bos_token_id")? } else { None };
        let bpe = Bpe {
            control: of_kind(CONTROL),
            user_defined: of_kind(USER_DEFINED),
            bos: bos.and_then(|id| u32::try_from(id).ok()),
            tokens,
            merges,
            pre,
        };
        LlamaTokenizer::from_bpe(bpe, self.template()?)
    }

    fn template(&self) -> Result<Option<ChatTemplate>, LoadError> {
        let Some(source) = self.text("tokenizer.chat_template")? else { return Ok(None) };
        let named = |key| {
            let id = self.integer(key)?.and_then(|id| usize::try_from(id).ok());
            let token = id.and_then(|id| self.texts("tokenizer.ggml.tokens").ok()?.get(id));
            Ok::<_, LoadError>(token.cloned().unwrap_or_default())
        };
        let (bos, eos) = (named("tokenizer.ggml.bos_token_id")?, named("tokenizer.ggml.eos_token_id")?);
        let template = ChatTemplate::new(source, bos, eos);
        template.map(Some).map_err(|e| LoadError::Tokenizer(e.to_string()))
    }

    fn token_kinds(&self) -> Result<&[i64], LoadError> {
        match self.get("tokenizer.ggml.token_type") {
            Some(Meta::Integers(kinds)) => Ok(kinds),
            None => Ok(&[]),
            Some(_) => Err(wrong_type("tokenizer.ggml.token_type")),
        }
    }

    fn get(&self, key: &str) -> Option<&Meta> {
        self.files.first().and_then(|file| file.metadata.get(key))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Meta::Text(text)) => Ok(Some(text)),
            Some(_) => Err(wrong_type(key)),
        }
    }

    fn texts(&self, key: &str) -> Result<&[String], LoadError> {
        match self.get(key) {
            Some(Meta::Texts(texts)) => Ok(texts),
            _ => Err(LoadError::Tokenizer(format!("the file has no list {key}"))),
        }
    }

    /// An unsigned number of at most 32 bits.
    fn integer(&self, key: &str) -> Result<Option<u64>, LoadError> {
        let value = match self.get(key) {
            None => return Ok(None),
            Some(Meta::Unsigned(n)) => Some(*n),
            Some(Meta::Signed(n)) => u64::try_from(*n).ok(),
            Some(_) => None,
        };
        value.filter(|n| u32::try_from(*n).is_ok()).map(Some).ok_or_else(|| wrong_type(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Meta::Float(x)) => Ok(Some(*x)),
            Some(Meta::Unsigned(n)) => Ok(Some(*n as f64)),
            Some(_) => Err(wrong_type(key)),
        }
    }

    fn required(&self, key: &str) -> Result<usize, LoadError> {
        let value = self.integer(key)?;
        value
            .map(|n| n as usize)
            .ok_or_else(|| LoadError::malformed("GGUF metadata", format!("there is no {key}")))
    }

    fn tensor(&self, name: &str) -> Result<(&Gguf, &TensorInfo), LoadError> {
        let mut found = self.files.iter().filter_map(|file| Some((file, file.tensors.get(name)?)));
        match (found.next(), found.next()) {
            (Some(tensor), None) => Ok(tensor),
            (None, _) => Err(LoadError::MissingTensor(name.to_owned())),
            // A folder with two models.
            _ => Err(LoadError::malformed("GGUF model", format!("two files hold the tensor {name:?}"))),
        }
    }
}

impl WeightSource for GgufModel {
    fn tied(&self) -> bool {
        self.files.iter().all(|file| !file.tensors.contains_key("output.weight"))
    }

    fn read(&mut self, role: Role, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let name = tensor_name(role);
        let (file, info) = self.tensor(&name)?;
        if info.dims != shape {
            return Err(LoadError::TensorShape { name, got: info.dims.clone(), want: shape.to_vec() });
        }
        file.read(info)
    }
}

fn tensor_name(role: Role) -> String {
    let (layer, part) = match role {
        Role::Embedding => return "token_embd.weight".into(),
        Role::Norm => return "output_norm.weight".into(),
        Role::Head => return "output.weight".into(),
        Role::AttentionNorm(l) => (l, "attn_norm"),
        Role::Query(l) => (l, "attn_q"),
        Role::Key(l) => (l, "attn_k"),
        Role::Value(l) => (l, "attn_v"),
        Role::Output(l) => (l, "attn_output"),
        Role::MlpNorm(l) => (l, "ffn_norm"),
        Role::Gate(l) => (l, "ffn_gate"),
        Role::Up(l) => (l, "ffn_up"),
        Role::Down(l) => (l, "ffn_down"),
    };
    format!("blk.{layer}.{part}.weight")
}

fn wrong_type(key: &str) -> LoadError {
    LoadError::malformed("GGUF metadata", format!("{key} has the wrong type"))
}
