//! A small Llama model of seeded random weights, made in memory.

use kvsp_proto::digest::{Hasher, sha256};
use kvsp_proto::id::NamedDigest;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::bpe::{Bpe, PreTokenizer, octet_char};
use crate::chat::ChatTemplate;
use crate::config::{Config, Pairing, RopeScaling};
use crate::digest::ModelDigests;
use crate::error::LoadError;
use crate::tokenizer::LlamaTokenizer;
use crate::weights::{Role, WeightSource};

/// The model string where none is given.
pub(crate) const NAME: &str = "kvsp/tiny";

/// Ends a text.
const END_OF_TEXT: u32 = 256;
const TURN_START: u32 = 257;
/// Ends a turn.
const TURN_END: u32 = 258;
const PAD: u32 = 259;
const SPECIAL: [(u32, &str); 4] =
    [(END_OF_TEXT, "<|end_of_text|>"), (TURN_START, "<|turn|>"), (TURN_END, "<|end|>"), (PAD, "<|pad|>")];

const TEMPLATE: &str = "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";

/// Separates the tiny model's digests from all others.
const DOMAIN: &[u8] = b"KVSP-TINY-1\0";

/// The shape of the tiny model.
pub(crate) fn config() -> Config {
    Config {
        hidden: 64,
        intermediate: 128,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab: 260,
        max_context: 4096,
        rms_eps: 1e-5,
        rope_theta: 10_000.0,
        scaling: RopeScaling::None,
        pairing: Pairing::Interleaved,
        eos: vec![END_OF_TEXT, TURN_END],
    }
}

/// The weights of a seed.
pub(crate) struct TinyWeights {
    seed: u64,
}

impl TinyWeights {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl WeightSource for TinyWeights {
    fn tied(&self) -> bool {
        false
    }

    fn read(&mut self, role: Role, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let elements = shape.iter().product();
        if matches!(role, Role::Norm | Role::AttentionNorm(_) | Role::MlpNorm(_)) {
            return Ok(vec![1.0; elements]);
        }
        let mut key = [0; 32];
        key[..DOMAIN.len()].copy_from_slice(DOMAIN);
        key[24..].copy_from_slice(&self.seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(stream(role));
        let gain = gain(role) * (3.0 / shape.last().copied().unwrap_or(1) as f32).sqrt();
        // 24 random bits each are exact in f32, so every machine makes the same weights.
        let mut uniform = || (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let mut weights: Vec<f32> = (0..elements).map(|_| uniform() * gain).collect();
        if role == Role::Head {
            mute_unprintable(&mut weights, shape[1]);
        }
        Ok(weights)
    }
}

/// A stream of random numbers for each weight.
fn stream(role: Role) -> u64 {
    let (kind, layer) = match role {
        Role::Embedding => (0, 0),
        Role::Norm => (1, 0),
        Role::Head => (2, 0),
        Role::AttentionNorm(l) => (3, l),
        Role::Query(l) => (4, l),
        Role::Key(l) => (5, l),
        Role::Value(l) => (6, l),
        Role::Output(l) => (7, l),
        Role::MlpNorm(l) => (8, l),
        Role::Gate(l) => (9, l),
        Role::Up(l) => (10, l),
        Role::Down(l) => (11, l),
    };
    kind << 32 | layer as u64
}

/// Attention that is sharp, and strong beside the token's own state, keeps greedy text from running in short
/// circles.
fn gain(role: Role) -> f32 {
    match role {
        Role::Query(_) | Role::Key(_) => 2.0,
        Role::Value(_) | Role::Output(_) => 1.6,
        Role::Head => 3.0,
        _ => 1.0,
    }
}

/// Rows of the head for tokens that are no printable ASCII are made small, so that greedy text is legible and
/// does not end by chance.
fn mute_unprintable(head: &mut [f32], hidden: usize) {
    for (token, row) in head.chunks_exact_mut(hidden).enumerate() {
        let printable = matches!(u8::try_from(token), Ok(b' '..=b'~'));
        if !printable {
            row.iter_mut().for_each(|x| *x *= 0.01);
        }
    }
}

/// The digests of a seed: SHA-256 over a domain string and all weights as little-endian `f32` in the order of
/// [`Role::all`]; over the tokens of the vocabulary, each ended by a zero octet.
pub(crate) fn digests(seed: u64) -> Result<ModelDigests, LoadError> {
    let config = config();
    let mut weights = TinyWeights::new(seed);
    let mut hasher = Hasher::new();
    hasher.update(DOMAIN);
    for role in Role::all(config.layers, weights.tied()) {
        for x in weights.read(role, &role.shape(&config))? {
            hasher.update(&x.to_le_bytes());
        }
    }
    let mut vocabulary = DOMAIN.to_vec();
    for token in tokens() {
        vocabulary.extend_from_slice(token.as_bytes());
        vocabulary.push(0);
    }
    Ok(ModelDigests { model: NamedDigest(hasher.finish()), tokenizer: NamedDigest(sha256(&vocabulary)) })
}

fn tokens() -> Vec<String> {
    let octets = (0..=255).map(|octet| octet_char(octet).to_string());
    octets.chain(SPECIAL.iter().map(|(_, token)| (*token).to_owned())).collect()
}

/// One token an octet, and a plain chat template.
pub(crate) fn tokenizer() -> Result<LlamaTokenizer, LoadError> {
    let bpe = Bpe {
        tokens: tokens(),
        merges: Vec::new(),
        pre: PreTokenizer::Gpt2,
        control: SPECIAL.iter().map(|(id, _)| *id).collect(),
        user_defined: Vec::new(),
        bos: None,
    };
    let template = ChatTemplate::new(TEMPLATE, String::new(), SPECIAL[0].1.into());
    let template = template.map_err(|e| LoadError::Tokenizer(e.to_string()))?;
    LlamaTokenizer::from_bpe(bpe, Some(template))
}

#[cfg(test)]
mod tests {
    use kvsp_engine::{ChatMessage, Tokenizer};

    use super::*;

    #[test]
    fn digests_depend_on_the_seed_alone() {
        let a = digests(1).unwrap();
        assert_eq!(a, digests(1).unwrap());
        let b = digests(2).unwrap();
        assert_ne!(a.model, b.model);
        assert_eq!(a.tokenizer, b.tokenizer);
        // Pinned: a change of the generated weights is a change of every identity derived from them.
        assert_eq!(
            digests(0).unwrap().model.to_string(),
            "sha-256:7de4d71784600fd7686b40e0554d66181884bf3c7e32bda2b980c98f234318b3"
        );
    }

    #[test]
    fn text_round_trips_octet_by_octet() {
        let t = tokenizer().unwrap();
        let text = "Hello, wörld 😀\n\t12";
        let tokens = t.encode(text).unwrap();
        assert_eq!(tokens, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(t.decode(&tokens).unwrap(), text);
        assert!(t.decode(&[9999]).is_err());
    }

    #[test]
    fn a_chat_opens_the_assistants_turn() {
        let t = tokenizer().unwrap();
        let message = ChatMessage { role: "user".into(), content: "hi".into() };
        let tokens = t.chat(&[message]).unwrap();
        assert_eq!((tokens[0], tokens[8]), (TURN_START, TURN_END));
        assert_eq!(t.decode(&tokens).unwrap(), "user\nhi\nassistant\n");
    }
}
