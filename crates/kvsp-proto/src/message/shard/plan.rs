//! What a member of a map is told: a plan, and what became of it (draft section 6.9).

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{MAX_RESHARD_MS, MapId, Shard, TokenRange, check_shards, some_uuid};
use crate::id::{CompatId, ScopeId};
use crate::json::{self, JsonError};
use crate::record::RecordError;
use crate::uri::BaseUri;

/// Most ranges of a list in a plan.
const MAX_RANGES: usize = 4096;

/// A range to load and where from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRange {
    /// Positions.
    pub tokens: TokenRange,
    /// An instance that holds them at the version before.
    pub from: BaseUri,
}

/// `POST {ii}reshard`: what one member keeps, loads and lets go of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshardPlan {
    /// The map.
    pub map: MapId,
    /// The version that holds.
    pub from: u64,
    /// The next one.
    pub to: u64,
    /// ms within which the member must have loaded what it lacks.
    pub deadline_ms: u64,
    /// Ranges that are the member's at both versions: they stay in place.
    pub retain: Vec<TokenRange>,
    /// Ranges that become the member's, and where to load them.
    pub fetch: Vec<FetchRange>,
    /// Ranges that are the member's no more once the plan is committed.
    pub release: Vec<TokenRange>,
    /// An extension: ranges that become the member's and of which no copy lives; they are computed after the commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rebuild: Vec<TokenRange>,
    /// An extension: tokens of the context whose K and V the owners hold; what lies beyond is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub length: Option<u64>,
    /// An extension: all shards of the next version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Shard>,
    /// An extension: the compatibility of K and V.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub compat_id: Option<CompatId>,
    /// An extension: the scope.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub scope_id: Option<ScopeId>,
    /// An extension: the session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_uuid")]
    pub session: Option<Uuid>,
    /// An extension: after an abort the next plan leads to the same version again; this number, which rises with each
    /// plan of a map, tells late messages of the former from those of the latter.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub attempt: Option<u64>,
}

impl ReshardPlan {
    fn check(mut self) -> Result<Self, RecordError> {
        self.deadline_ms = deadline(self.deadline_ms)?;
        let invalid = |why: &str| Err(RecordError::Invalid(why.to_owned()));
        if self.from == 0 {
            return invalid("member from is not at least 1, with which a map begins");
        }
        if self.from.checked_add(1) != Some(self.to) {
            return invalid("member to is not from + 1");
        }
        if !self.shards.is_empty() {
            check_shards(&self.shards)?;
        }
        let lists = [self.retain.len(), self.fetch.len(), self.release.len(), self.rebuild.len()];
        if lists.iter().any(|len| *len > MAX_RANGES) {
            return Err(RecordError::Invalid(format!("a list of ranges has over {MAX_RANGES} entries")));
        }
        // No range is the member's twice, neither at the version before nor at the next.
        let fetched = self.fetch.iter().map(|fetch| fetch.tokens);
        let next = self.retain.iter().copied().chain(fetched).chain(self.rebuild.iter().copied());
        let before = self.retain.iter().copied().chain(self.release.iter().copied());
        if overlap(next.collect()) {
            return invalid("a range is in two of retain, fetch and rebuild, or in one of them twice");
        }
        if overlap(before.collect()) {
            return invalid("a range is in both retain and release, or in one of them twice");
        }
        Ok(self)
    }
}

fn overlap(mut ranges: Vec<TokenRange>) -> bool {
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].overlaps(pair[1]))
}

/// A deadline as it counts.
pub(super) fn deadline(ms: u64) -> Result<u64, JsonError> {
    if ms == 0 {
        return Err(JsonError::Malformed("member deadline_ms is not at least 1".into()));
    }
    Ok(ms.min(MAX_RESHARD_MS))
}

/// What `POST {ii}reshard` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReshardMessage {
    /// Prepare for the next version.
    Plan(Box<ReshardPlan>),
    /// A version holds from now on.
    Commit {
        /// The map.
        map: MapId,
        /// The version.
        version: u64,
        /// An extension: the number of the plan.
        attempt: Option<u64>,
        /// An extension: of what the plan releases, ranges that are not to be discarded yet: whoever was to hold them is
        /// lost. They are for others to fetch, and are discarded with the next commit.
        keep: Vec<TokenRange>,
    },
    /// A version will never hold.
    Abort {
        /// The map.
        map: MapId,
        /// The version.
        version: u64,
        /// An extension: the number of the plan.
        attempt: Option<u64>,
        /// An extension: of what was fetched, ranges that are not to be discarded yet: whoever they were fetched from is
        /// lost. They are for others to fetch, and are discarded with the next commit.
        keep: Vec<TokenRange>,
    },
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Kind {
    map: MapId,
    #[serde(default, deserialize_with = "json::present")]
    commit: Option<u64>,
    #[serde(default, deserialize_with = "json::present")]
    abort: Option<u64>,
    #[serde(default, deserialize_with = "json::present")]
    from: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "json::present")]
    to: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "json::present")]
    attempt: Option<u64>,
    #[serde(default)]
    keep: Vec<TokenRange>,
}

impl ReshardMessage {
    /// Reads a body.
    ///
    /// # Errors
    /// [`RecordError`]; invalid (`kvsp-invalid-shard-map`) where it is more than one of plan, commit and abort, `to` is
    /// not `from` + 1, or a range is in two lists that exclude each other.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        let kind: Kind = json::from_slice(body)?;
        let is_plan = kind.from.is_some() || kind.to.is_some();
        match (kind.commit, kind.abort) {
            _ if kind.keep.len() > MAX_RANGES => {
                Err(RecordError::Invalid(format!("member keep has over {MAX_RANGES} entries")))
            }
            (Some(version), None) if !is_plan => {
                Ok(Self::Commit { map: kind.map, version, attempt: kind.attempt, keep: kind.keep })
            }
            (None, Some(version)) if !is_plan => {
                Ok(Self::Abort { map: kind.map, version, attempt: kind.attempt, keep: kind.keep })
            }
            (None, None) => Ok(Self::Plan(Box::new(json::from_slice::<ReshardPlan>(body)?.check()?))),
            _ => {
                Err(RecordError::Invalid("the body is more than one of a plan, a commit and an abort".into()))
            }
        }
    }

    /// The map it is about.
    #[must_use]
    pub const fn map(&self) -> &MapId {
        match self {
            Self::Plan(plan) => &plan.map,
            Self::Commit { map, .. } | Self::Abort { map, .. } => map,
        }
    }

    /// The version that it prepares, commits or aborts.
    #[must_use]
    pub const fn version(&self) -> u64 {
        match self {
            Self::Plan(plan) => plan.to,
            Self::Commit { version, .. } | Self::Abort { version, .. } => *version,
        }
    }
}

impl Serialize for ReshardMessage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Decision<'a> {
            map: &'a MapId,
            #[serde(skip_serializing_if = "Option::is_none")]
            commit: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            abort: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            attempt: Option<u64>,
            #[serde(skip_serializing_if = "<[TokenRange]>::is_empty")]
            keep: &'a [TokenRange],
        }
        let decision = match self {
            Self::Plan(plan) => return plan.serialize(serializer),
            Self::Commit { map, version, attempt, keep } => {
                Decision { map, commit: Some(*version), abort: None, attempt: *attempt, keep }
            }
            Self::Abort { map, version, attempt, keep } => {
                Decision { map, commit: None, abort: Some(*version), attempt: *attempt, keep }
            }
        };
        decision.serialize(serializer)
    }
}

/// The answer of a member: the plan is loaded, or the decision is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshardAnswer {
    /// The map.
    pub map: MapId,
    /// The version that holds at the member.
    pub version: u64,
    /// The version that it is prepared for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plan() -> Value {
        json!({"map": "m", "from": 4, "to": 5, "deadline_ms": 200, "retain": [[0, 32]],
            "fetch": [{"tokens": [32, 48], "from": "http://127.0.0.1:1/kvsp/"}], "release": [[64, 70]]})
    }

    fn with(member: &str, value: Value) -> Value {
        let mut plan = plan();
        plan[member] = value;
        plan
    }

    fn read(body: &Value) -> Result<ReshardMessage, RecordError> {
        ReshardMessage::from_json(body.to_string().as_bytes())
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        for body in [
            plan(),
            with("attempt", json!(3)),
            json!({"map": "m", "commit": 5}),
            json!({"map": "m", "commit": 5, "attempt": 3, "keep": [[0, 4]]}),
            json!({"map": "m", "abort": 5}),
            json!({"map": "m", "abort": 5, "attempt": 3, "keep": [[0, 4]]}),
        ] {
            let message = read(&body).unwrap();
            assert_eq!(serde_json::to_value(&message).unwrap(), body);
            assert_eq!((message.map().as_str(), message.version()), ("m", 5));
        }
    }

    #[test]
    fn what_contradicts_itself_is_invalid() {
        for bad in [
            json!({"map": "m", "commit": 5, "abort": 5}),
            with("commit", json!(5)),
            with("to", json!(4)),
            with("to", json!(6)),
            json!({"map": "m", "from": 0, "to": 1, "deadline_ms": 1, "retain": [], "fetch": [], "release": []}),
            with("retain", json!([[0, 33]])),
            with("retain", json!([[5, 5]])),
            with("retain", json!([[6, 5]])),
            with("release", json!([[0, 1]])),
            with("release", json!([[64, 70], [69, 71]])),
            with("rebuild", json!([[40, 41]])),
        ] {
            assert!(matches!(read(&bad), Err(RecordError::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn what_is_missing_is_malformed() {
        let without = |member: &str| {
            let mut body = plan();
            body.as_object_mut().unwrap().remove(member);
            body
        };
        for bad in [
            json!({"map": "m"}),
            json!({"commit": 5}),
            json!({"map": "m", "commit": null}),
            json!({"map": "m", "commit": -1}),
            without("from"),
            without("retain"),
            without("fetch"),
            without("release"),
            without("deadline_ms"),
            with("deadline_ms", json!(0)),
            with("retain", json!([[1, 2, 3]])),
        ] {
            assert!(matches!(read(&bad), Err(RecordError::Json(JsonError::Malformed(_)))), "{bad}");
        }
        let uri = read(&with("fetch", json!([{"tokens": [32, 48], "from": "x"}])));
        assert!(matches!(uri, Err(RecordError::Json(JsonError::BadIdentifier(_)))), "{uri:?}");
    }
}
