//! The Session Checkpoint.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::RecordError;
use crate::id::{BlockKey, CompatId, ScopeId};
use crate::json;
use crate::registry::SamplerMethod;

/// The state of a sampler: a counter-based generator keyed by (seed, step) (profile section 7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplerState {
    /// The method.
    #[serde(deserialize_with = "registered")]
    pub method: SamplerMethod,
    /// Its parameters by name.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// The seed.
    pub seed: u64,
    /// Output tokens sampled so far.
    pub step: u64,
    /// Whether every eligible instance yields bit-identical tokens from this state.
    pub deterministic: bool,
}

/// A method that is not registered is well-formed, but false.
fn registered<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SamplerMethod, D::Error> {
    use serde::de::Error as _;
    let name = String::deserialize(deserializer)?;
    let unregistered = |e| D::Error::custom(format_args!("{}member method: {e}", json::UNREGISTERED_MARK));
    name.parse().map_err(unregistered)
}

/// What another instance needs to resume a session (draft section 4.4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionCheckpoint {
    /// The session.
    #[serde(deserialize_with = "crate::id::uuid")]
    pub session: Uuid,
    /// Its epoch.
    pub epoch: u64,
    /// The compatibility of its cache.
    pub compat_id: CompatId,
    /// The scope of its block keys.
    pub scope_id: ScopeId,
    /// Keys of the complete prompt blocks.
    pub prompt_blocks: Vec<BlockKey>,
    /// Prompt tokens after the last complete block.
    pub prompt_tail: Vec<u32>,
    /// Output tokens so far.
    pub generated: Vec<u32>,
    /// Output tokens that the checkpoint covers; equals the length of `generated`.
    pub output_offset: u64,
    /// The sampler's state.
    pub sampler: SamplerState,
}

impl SessionCheckpoint {
    /// Read a checkpoint from I-JSON.
    ///
    /// # Errors
    /// [`RecordError`]; invalid where `generated` is not `output_offset` tokens long.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        let checkpoint: Self = json::from_slice(body)?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Check what a record says of itself.
    ///
    /// # Errors
    /// [`RecordError::Invalid`] where `generated` is not `output_offset` tokens long.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        if self.generated.len() as u64 == self.output_offset {
            Ok(())
        } else {
            Err(RecordError::invalid("member generated is not output_offset tokens long"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_method_is_registered_or_false_but_never_malformed() {
        let text = |method: &str| {
            format!(
                r#"{{"session": "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11", "epoch": 1, "compat_id": "{}",
                "scope_id": "{}", "prompt_blocks": [], "prompt_tail": [], "generated": [], "output_offset": 0,
                "sampler": {{"method": {method}, "params": {{}}, "seed": 7, "step": 0, "deterministic": false}}}}"#,
                "22".repeat(32),
                "33".repeat(16)
            )
        };
        let read = |method: &str| SessionCheckpoint::from_json(text(method).as_bytes());
        assert_eq!(read(r#""min-p""#).unwrap().sampler.method, SamplerMethod::MinP);
        assert!(matches!(read(r#""beam""#), Err(RecordError::Invalid(_))));
        assert!(matches!(read("7"), Err(RecordError::Json(_))));
    }

    #[test]
    fn generated_has_output_offset_tokens() {
        let mut sample = json!({
            "session": "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11", "epoch": 1,
            "compat_id": "22".repeat(32), "scope_id": "33".repeat(16), "prompt_blocks": [],
            "prompt_tail": [374, 264], "generated": [1296, 315, 279], "output_offset": 3,
            "sampler": {"method": "top-p", "params": {"p": 0.9}, "seed": 7, "step": 3, "deterministic": false}
        });
        let read = |v: &Value| SessionCheckpoint::from_json(v.to_string().as_bytes());
        assert_eq!(read(&sample).unwrap().sampler.method, SamplerMethod::TopP);
        sample["output_offset"] = json!(2);
        assert!(matches!(read(&sample), Err(RecordError::Invalid(_))));
        sample["generated"] = json!([1, 4_294_967_296_u64]);
        assert!(matches!(read(&sample), Err(RecordError::Json(_))));
    }
}
