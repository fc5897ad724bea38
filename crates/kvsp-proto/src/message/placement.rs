//! The Placement Controller's bodies (draft section 6.4, profile section 5).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::id::{BlockKey, CompatId, ScopeId};
use crate::json;
use crate::message::MapVersion;
use crate::record::{InstanceState, InstanceStatus, RecordError};
use crate::uri::BaseUri;

/// `{"state": …}`: the answer to a status and the body of `PUT {ii}state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBody {
    /// The state.
    pub state: InstanceState,
}

impl StateBody {
    /// Read a state that is ordered.
    ///
    /// # Errors
    /// [`RecordError`]; invalid for anything but `active`, `draining` or `sleeping`.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        StateOrder::from_json(body).map(|StateOrder { state, .. }| Self { state })
    }
}

/// The body of `PUT {pc}instances/{uri64}/state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateOrder {
    /// The state.
    pub state: InstanceState,
    /// Whether the instance's sessions go on elsewhere instead of being finished there (an extension of ours).
    /// It counts with `draining` and `sleeping`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migrate: bool,
}

impl StateOrder {
    /// Read a state that is ordered.
    ///
    /// # Errors
    /// [`RecordError`]; invalid for anything but `active`, `draining` or `sleeping`.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        #[serde(expecting = "an object")]
        struct Wire {
            state: String,
            #[serde(default)]
            migrate: bool,
        }
        use InstanceState::{Active, Draining, Sleeping};
        let Wire { state, migrate } = json::from_slice(body)?;
        let state = [Active, Draining, Sleeping].into_iter().find(|known| known.as_str() == state);
        let why = "member state is not active, draining or sleeping";
        state.map(|state| Self { state, migrate }).ok_or_else(|| RecordError::Invalid(why.to_owned()))
    }
}

/// `POST {pc}placements`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// The scope of the keys.
    pub scope_id: ScopeId,
    /// The compatibility of the caches wanted.
    pub compat_id: CompatId,
    /// Keys of the prompt's complete blocks, in prefix order.
    pub block_keys: Vec<BlockKey>,
    /// Prompt tokens.
    pub tokens: u64,
    /// The front end's name for the request.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub request_ref: Option<String>,
    /// Whether a session is wanted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub session: bool,
    /// What a resumed instance needs beside the checkpoint; opaque, at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Value>,
    /// Instances that did not take the request when they were asked; not to be chosen again. An extension of
    /// ours: a controller that does not know the member ignores it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<BaseUri>,
}

/// One instance that was weighed; a member that cannot be computed is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The instance.
    pub instance: BaseUri,
    /// µs until it could begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_us: Option<u64>,
    /// µs to load the matched blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_us: Option<u64>,
    /// µs to prefill all prompt tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute_us: Option<u64>,
    /// The cost of draft section 6.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_us: Option<u64>,
    /// Leading matched blocks worth loading, where fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_blocks: Option<u64>,
}

/// The session of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedSession {
    /// The session.
    pub session: Uuid,
    /// Its epoch.
    pub epoch: u64,
}

/// The answer to a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementAnswer {
    /// The instance chosen.
    pub instance: BaseUri,
    /// What ties the directive to the request.
    pub request_ref: String,
    /// The session, where one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<PlacedSession>,
    /// The cost at the instance chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_us: Option<u64>,
    /// All that were weighed, cheapest first.
    pub candidates: Vec<Candidate>,
    /// The directive's status resource, where one was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<String>,
    /// The shard map that the context is split by, where it is (an extension of ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<MapVersion>,
}

/// One instance as the controller sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceView {
    /// Its last status, with the state that the controller holds it to be in.
    #[serde(flatten)]
    pub status: InstanceStatus,
    /// The state that it is to be in (this and the next two are extensions of ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<InstanceState>,
    /// Sessions that it has, or is being given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    /// Shards of maps that it has, or is being given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u64>,
}

/// `GET {pc}instances`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceList {
    /// Instances ordered by URI.
    pub instances: Vec<InstanceView>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_order_says_whether_sessions_go_elsewhere() {
        let order = |body: &str| StateOrder::from_json(body.as_bytes());
        let draining = |migrate| StateOrder { state: InstanceState::Draining, migrate };
        assert_eq!(order(r#"{"state":"draining"}"#).unwrap(), draining(false));
        assert_eq!(order(r#"{"state":"draining","migrate":true,"x":1}"#).unwrap(), draining(true));
        assert_eq!(serde_json::to_value(draining(false)).unwrap(), json!({"state": "draining"}));
        assert!(matches!(order(r#"{"state":"draining","migrate":1}"#), Err(RecordError::Json(_))));
        assert!(matches!(order(r#"{"state":"failed"}"#), Err(RecordError::Invalid(_))));
    }
}
