//! The Compatibility Descriptor and the Compatibility ID (draft section 4.1, profile section 2).

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::digest::sha256_parts;
use crate::id::{CompatId, NamedDigest};
use crate::json::{self, JsonError};
use crate::positional::Positional;
use crate::registry::{ElementType, Layout};

/// The configuration under which caches may substitute for each other. The identity is that of the
/// JSON as received, unknown members included; a descriptor cannot be changed after the fact, only
/// read from other JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor {
    /// Names the model; part of the identity.
    pub model: String,
    /// Of the weight files, concatenated in ascending order of their names.
    pub model_digest: NamedDigest,
    /// Of the tokenizer's definition.
    pub tokenizer_digest: NamedDigest,
    /// Adapters in the order of application; empty where the member is absent.
    pub adapters: Vec<NamedDigest>,
    /// L, the layers that hold a cache.
    pub layers: u32,
    /// Key and value heads of a layer.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Element type of the stored cache.
    pub kv_dtype: ElementType,
    /// Positional encoding with its parameters.
    pub positional: Positional,
    /// B, the tokens of a block.
    pub block_tokens: u32,
    /// Layout of the sections of codec `raw`.
    pub layout: Layout,
    json: Value,
    compat_id: CompatId,
}

/// A descriptor is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// Not I-JSON, not an object, or a required member is missing or of the wrong JSON type
    /// (`kvsp-malformed-json`).
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Well-formed but false, or with a lone surrogate (`kvsp-descriptor-invalid`).
    #[error("{member}: {why}")]
    Invalid {
        /// The member, or `descriptor` for a lone surrogate anywhere.
        member: &'static str,
        /// What is wrong with it, without repeating it.
        why: &'static str,
    },
}

/// A number of `layers`, `kv_heads`, `head_dim` or `block_tokens` lies in 1..=2^31 − 1.
const MAX_COUNT: u64 = (1 << 31) - 1;

impl Descriptor {
    /// Reads a descriptor as it came from a peer or a file.
    ///
    /// # Errors
    /// See [`DescriptorError`].
    pub fn from_json(text: &[u8]) -> Result<Self, DescriptorError> {
        match json::parse(text) {
            Ok(value) => Self::from_value(value),
            Err(JsonError::LoneSurrogate) => {
                Err(DescriptorError::Invalid { member: "descriptor", why: "a lone surrogate" })
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Reads a descriptor that is already a JSON value, for example one made with `json!`.
    ///
    /// # Errors
    /// As [`Self::from_json`], but for what only a text can have.
    pub fn from_value(mut value: Value) -> Result<Self, DescriptorError> {
        json::normalise(&mut value);
        let Value::Object(object) = &value else {
            return Err(malformed("a descriptor is an object"));
        };
        // All types first: a breach of the JSON form (400) goes before a false value (422).
        let members = Members::read(object)?;
        let compat_id = compat_id_of(&canonical(&value)?);
        Ok(Self {
            model: members.model.to_owned(),
            model_digest: digest("model_digest", members.model_digest)?,
            tokenizer_digest: digest("tokenizer_digest", members.tokenizer_digest)?,
            adapters: adapters(members.adapters.as_deref())?,
            layers: count("layers", members.layers)?,
            kv_heads: kv_heads(&members)?,
            head_dim: count("head_dim", members.head_dim)?,
            kv_dtype: kv_dtype(&members)?,
            positional: members
                .positional
                .parse()
                .map_err(|_| DescriptorError::Invalid { member: "positional", why: "does not parse" })?,
            block_tokens: count("block_tokens", members.block_tokens)?,
            layout: layout(&members)?,
            compat_id,
            json: value,
        })
    }

    /// The Compatibility ID, computed from the JSON as received.
    #[must_use]
    pub const fn compat_id(&self) -> CompatId {
        self.compat_id
    }

    /// The JSON as received.
    #[must_use]
    pub const fn json(&self) -> &Value {
        &self.json
    }

    /// The canonical form (RFC 8785) that the Compatibility ID covers.
    #[must_use]
    pub fn jcs(&self) -> Vec<u8> {
        // It was serialised once already, when the descriptor was read.
        canonical(&self.json).unwrap_or_default()
    }

    /// Octets of the K and of the V section of one layer of codec `raw`, for `tokens` tokens.
    /// `None` where they exceed 2^64 − 1.
    #[must_use]
    pub fn section_octets(&self, tokens: u32) -> Option<(u64, u64)> {
        let element = self.kv_dtype.octets() as u64;
        let vector = u64::from(self.kv_heads).checked_mul(u64::from(self.head_dim))?;
        let octets = vector.checked_mul(u64::from(tokens))?.checked_mul(element)?;
        match self.layout {
            Layout::Kvsp1 => Some((octets, octets)),
            Layout::Mla1 => Some((octets, 0)),
        }
    }

    /// Octets of a whole container of codec `raw`: all layers of one block, with header and table.
    /// `None` where they exceed 2^64 − 1.
    #[must_use]
    pub fn block_octets(&self) -> Option<u64> {
        let (k, v) = self.section_octets(self.block_tokens)?;
        let layer = k.checked_add(v)?.checked_add(crate::container::ENTRY_OCTETS as u64)?;
        layer.checked_mul(u64::from(self.layers))?.checked_add(crate::container::HEADER_OCTETS as u64)
    }
}

impl Serialize for Descriptor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

/// The members, each known to be there and of the right JSON type.
struct Members<'a> {
    model: &'a str,
    model_digest: &'a str,
    tokenizer_digest: &'a str,
    adapters: Option<Vec<&'a str>>,
    layers: &'a Value,
    kv_heads: &'a Value,
    head_dim: &'a Value,
    kv_dtype: &'a str,
    kv_scales: Option<&'a str>,
    positional: &'a str,
    block_tokens: &'a Value,
    layout: &'a str,
}

impl<'a> Members<'a> {
    fn read(object: &'a Map<String, Value>) -> Result<Self, DescriptorError> {
        Ok(Self {
            model: string(object, "model")?,
            model_digest: string(object, "model_digest")?,
            tokenizer_digest: string(object, "tokenizer_digest")?,
            adapters: object.get("adapters").map(strings).transpose()?,
            layers: number(object, "layers")?,
            kv_heads: number(object, "kv_heads")?,
            head_dim: number(object, "head_dim")?,
            kv_dtype: string(object, "kv_dtype")?,
            kv_scales: object.get("kv_scales").map(|_| string(object, "kv_scales")).transpose()?,
            positional: string(object, "positional")?,
            block_tokens: number(object, "block_tokens")?,
            layout: string(object, "layout")?,
        })
    }
}

fn malformed(what: impl Into<String>) -> DescriptorError {
    DescriptorError::Json(JsonError::Malformed(what.into()))
}

fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value, DescriptorError> {
    object.get(name).ok_or_else(|| malformed(format!("the member {name} is missing")))
}

fn string<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, DescriptorError> {
    member(object, name)?.as_str().ok_or_else(|| malformed(format!("{name} is not a string")))
}

fn number<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value, DescriptorError> {
    let value = member(object, name)?;
    if value.is_number() { Ok(value) } else { Err(malformed(format!("{name} is not a number"))) }
}

fn strings(value: &Value) -> Result<Vec<&str>, DescriptorError> {
    let items = value.as_array().ok_or_else(|| malformed("adapters is not an array"))?;
    items.iter().map(|item| item.as_str().ok_or_else(|| malformed("an adapter is not a string"))).collect()
}

fn digest(member: &'static str, text: &str) -> Result<NamedDigest, DescriptorError> {
    text.parse()
        .map_err(|_| DescriptorError::Invalid { member, why: "not sha-256: and 64 lowercase hex digits" })
}

fn adapters(texts: Option<&[&str]>) -> Result<Vec<NamedDigest>, DescriptorError> {
    match texts {
        Some([]) => {
            Err(DescriptorError::Invalid { member: "adapters", why: "empty: the member must be absent" })
        }
        Some(texts) => texts.iter().map(|text| digest("adapters", text)).collect(),
        None => Ok(Vec::new()),
    }
}

fn count(member: &'static str, value: &Value) -> Result<u32, DescriptorError> {
    value
        .as_u64()
        .filter(|n| (1..=MAX_COUNT).contains(n))
        .and_then(|n| u32::try_from(n).ok())
        .ok_or(DescriptorError::Invalid { member, why: "not an integer in 1..=2^31-1" })
}

fn layout(members: &Members<'_>) -> Result<Layout, DescriptorError> {
    members.layout.parse().map_err(|_| DescriptorError::Invalid { member: "layout", why: "not registered" })
}

fn kv_heads(members: &Members<'_>) -> Result<u32, DescriptorError> {
    match (layout(members)?, count("kv_heads", members.kv_heads)?) {
        (Layout::Kvsp1, heads) | (Layout::Mla1, heads @ 1) => Ok(heads),
        (Layout::Mla1, _) => Err(DescriptorError::Invalid { member: "kv_heads", why: "kvsp-mla-1 has one" }),
    }
}

/// The element type; scales that come with it must at least be a digest.
fn kv_dtype(members: &Members<'_>) -> Result<ElementType, DescriptorError> {
    members.kv_scales.map(|text| digest("kv_scales", text)).transpose()?;
    members
        .kv_dtype
        .parse()
        .map_err(|_| DescriptorError::Invalid { member: "kv_dtype", why: "not registered" })
}

fn canonical(value: &Value) -> Result<Vec<u8>, DescriptorError> {
    serde_json_canonicalizer::to_vec(value).map_err(|_| malformed("no canonical form"))
}

fn compat_id_of(jcs: &[u8]) -> CompatId {
    CompatId(sha256_parts([b"KVSP-COMPAT-1\0".as_slice(), jcs]).0)
}

#[cfg(test)]
mod tests;
