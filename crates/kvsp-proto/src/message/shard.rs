//! Sequence-sharded contexts: maps, plans and their outcome (draft section 6.9, profile section 8).

mod plan;
mod range;

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::{CompatId, ScopeId};
use crate::json;
use crate::record::RecordError;
use crate::uri::BaseUri;

pub use plan::{FetchRange, ReshardAnswer, ReshardMessage, ReshardPlan};
pub use range::{BadTokenRange, TokenRange};

/// Most shards of a map.
pub const MAX_SHARDS: usize = 1024;
/// The longest deadline of a plan, in ms; a longer one is cut to it.
pub const MAX_RESHARD_MS: u64 = 600_000;

/// The identifier of a map: 1–128 of `A-Z a-z 0-9 . _ -` (profile section 1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct MapId(String);

/// A text is not a [`MapId`] (`kvsp-bad-identifier`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to 128 of A-Z a-z 0-9 . _ -")]
pub struct BadMapId;

impl MapId {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MapId {
    type Err = BadMapId;

    fn from_str(text: &str) -> Result<Self, BadMapId> {
        let valid = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        if (1..=128).contains(&text.len()) && text.bytes().all(valid) {
            return Ok(Self(text.to_owned()));
        }
        Err(BadMapId)
    }
}

impl From<Uuid> for MapId {
    fn from(session: Uuid) -> Self {
        Self(session.to_string())
    }
}

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for MapId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|e| D::Error::custom(format_args!("{}{e}", json::IDENTIFIER_MARK)))
    }
}

/// One part of a context and who holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Positions, half-open.
    pub tokens: TokenRange,
    /// Its instance.
    pub instance: BaseUri,
}

/// Checks that shards begin at 0 and follow each other without a gap; returns where they end, which is the
/// context's capacity in tokens.
///
/// # Errors
/// [`RecordError::Invalid`] (`kvsp-invalid-shard-map`): no shard, over [`MAX_SHARDS`], a gap or an overlap.
pub fn check_shards(shards: &[Shard]) -> Result<u64, RecordError> {
    if shards.is_empty() || shards.len() > MAX_SHARDS {
        return Err(RecordError::Invalid(format!("member shards has not 1 to {MAX_SHARDS} entries")));
    }
    shards.iter().try_fold(0, |at, shard| {
        if shard.tokens.start() == at {
            return Ok(shard.tokens.end());
        }
        let kind = if shard.tokens.start() > at { "a gap" } else { "an overlap" };
        Err(RecordError::Invalid(format!(
            "member shards has {kind} at token {}",
            at.min(shard.tokens.start())
        )))
    })
}

/// `PUT {pc}maps/{map}`: version 1 of a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCreate {
    /// The map, where the body names it too.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub map: Option<MapId>,
    /// 1, where the body names it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub version: Option<u64>,
    /// The compatibility of the context's K and V.
    pub compat_id: CompatId,
    /// The scope whose principals may see it.
    pub scope_id: ScopeId,
    /// The session whose context it is.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_uuid")]
    pub session: Option<Uuid>,
    /// Who holds what.
    pub shards: Vec<Shard>,
}

impl MapCreate {
    /// Reads a body for the map that the path names.
    ///
    /// # Errors
    /// [`RecordError`]; invalid (`kvsp-invalid-shard-map`) where the shards are no split, the version is not 1, or
    /// the body names another map.
    pub fn from_json(body: &[u8], map: &MapId) -> Result<Self, RecordError> {
        let create: Self = json::from_slice(body)?;
        check_shards(&create.shards)?;
        if create.map.as_ref().is_some_and(|named| named != map) {
            return Err(RecordError::Invalid("member map contradicts the path".into()));
        }
        if create.version.is_some_and(|version| version != 1) {
            return Err(RecordError::Invalid("member version is not 1, with which a map begins".into()));
        }
        Ok(create)
    }
}

/// `POST {pc}maps/{map}/reshard`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshardRequest {
    /// The version that is split anew.
    pub from: u64,
    /// The shards of the next version.
    pub shards: Vec<Shard>,
    /// ms within which all members must have loaded what they lack.
    pub deadline_ms: u64,
}

impl ReshardRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`RecordError`]; invalid (`kvsp-invalid-shard-map`) where the shards are no split.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        let mut request: Self = json::from_slice(body)?;
        request.deadline_ms = plan::deadline(request.deadline_ms)?;
        check_shards(&request.shards)?;
        Ok(request)
    }
}

/// Where a change of a map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Members load.
    Preparing,
    /// Decided: the next version holds; members are being told.
    Committing,
    /// Decided: the version before holds; members are being told.
    Aborting,
}

impl Phase {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Committing => "committing",
            Self::Aborting => "aborting",
        }
    }
}

/// A change of a map under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingReshard {
    /// The version it leads to.
    pub to: u64,
    /// The shards of that version.
    pub shards: Vec<Shard>,
    /// Where it is.
    pub phase: Phase,
    /// Members that have acknowledged what this phase asks of them, ordered by URI.
    pub acks: Vec<BaseUri>,
    /// An extension: the number of the plan, see [`ReshardPlan::attempt`].
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub attempt: Option<u64>,
}

/// `GET {pc}maps/{map}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapView {
    /// The map.
    pub map: MapId,
    /// The version that holds.
    pub version: u64,
    /// Its shards.
    pub shards: Vec<Shard>,
    /// The compatibility of the context's K and V.
    pub compat_id: CompatId,
    /// Its scope.
    pub scope_id: ScopeId,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_uuid")]
    pub session: Option<Uuid>,
    /// An extension: the number of the plan that led to this version, absent for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub attempt: Option<u64>,
    /// A change under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingReshard>,
}

/// `GET {pc}maps` (an extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapList {
    /// Maps ordered by identifier.
    pub maps: Vec<MapView>,
}

/// A map and its version, in the answer to a placement (an extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapVersion {
    /// The map.
    pub map: MapId,
    /// Its version.
    pub version: u64,
}

/// `PUT {ii}maps/{map}` (an extension): the leader of a context begins to use it at a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenContext {
    /// The version that holds.
    pub version: u64,
    /// The epoch of the leader's session, 0 without one; leaders of lower epochs are refused from now on.
    pub epoch: u64,
    /// Tokens of the context now; K and V of later positions are forgotten.
    pub length: u64,
    /// Tokens that were certain when a leader of this epoch began. K and V of later positions that came under another
    /// leader are forgotten, for the tokens may be others. Absent: as many as `length`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub certain: Option<u64>,
    /// All shards.
    pub shards: Vec<Shard>,
    /// The compatibility of K and V.
    pub compat_id: CompatId,
    /// The scope.
    pub scope_id: ScopeId,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_uuid")]
    pub session: Option<Uuid>,
}

impl OpenContext {
    /// Reads a body.
    ///
    /// # Errors
    /// [`RecordError`]; invalid (`kvsp-invalid-shard-map`) where the shards are no split or `length` is beyond them.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        let open: Self = json::from_slice(body)?;
        if open.length > check_shards(&open.shards)? {
            return Err(RecordError::Invalid("member length is beyond the last shard".into()));
        }
        Ok(open)
    }
}

/// `GET {ii}maps/{map}` (an extension): what a member holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldView {
    /// The map.
    pub map: MapId,
    /// The version that holds here.
    pub version: u64,
    /// The highest epoch of a leader seen.
    pub epoch: u64,
    /// Positions whose K and V are here in all layers, ascending.
    pub held: Vec<TokenRange>,
    /// The version that it has acknowledged a plan for and awaits the decision on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<u64>,
}

/// `POST {ii}maps/{map}/{version}/prefill` (an extension): compute K and V of these positions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillRequest {
    /// The epoch of the leader's session.
    pub epoch: u64,
    /// The position of the first token.
    pub position: u64,
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
}

/// The answer to a [`PrefillRequest`], once K and V are there in all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillAnswer {
    /// The positions.
    pub computed: TokenRange,
}

/// `POST {ii}maps/{map}/{version}/length` (an extension): the controller asks the leader how long the context is,
/// now that a change of the map begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthRequest {
    /// The version that the change leads to.
    pub to: u64,
    /// Its shards.
    pub shards: Vec<Shard>,
}

/// The answer to a [`LengthRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthAnswer {
    /// Tokens whose K and V the owners hold; K and V of later positions stay with the leader until the decision.
    pub length: u64,
}

/// Deserialises a UUID that is there; `null` stands for none.
fn some_uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    let text = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    let parse = |text: std::borrow::Cow<'de, str>| {
        text.parse().map_err(|e| D::Error::custom(format_args!("{}{e}", json::IDENTIFIER_MARK)))
    };
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::JsonError;

    fn create(shards: &serde_json::Value) -> Result<MapCreate, RecordError> {
        let body = json!({"compat_id": "00".repeat(32), "scope_id": "00".repeat(16), "shards": shards});
        MapCreate::from_json(body.to_string().as_bytes(), &"m".parse().unwrap())
    }

    fn shard(a: u64, b: u64) -> serde_json::Value {
        json!({"tokens": [a, b], "instance": "http://127.0.0.1:1/kvsp/"})
    }

    #[test]
    fn shards_are_a_split_from_zero() {
        assert_eq!(check_shards(&create(&json!([shard(0, 5), shard(5, 9)])).unwrap().shards), Ok(9));
        for bad in [
            json!([]),
            json!([shard(1, 5)]),
            json!([shard(0, 5), shard(6, 9)]),
            json!([shard(0, 5), shard(4, 9)]),
            json!([shard(0, 0)]),
            json!([shard(5, 0)]),
        ] {
            assert!(matches!(create(&bad), Err(RecordError::Invalid(_))), "{bad}");
        }
        let malformed = create(&json!([{"tokens": [0], "instance": "http://127.0.0.1:1/kvsp/"}]));
        assert!(matches!(malformed, Err(RecordError::Json(JsonError::Malformed(_)))), "{malformed:?}");
        let bad = create(&json!([{"tokens": [0, 1], "instance": "nowhere"}]));
        assert!(matches!(bad, Err(RecordError::Json(JsonError::BadIdentifier(_)))), "{bad:?}");
    }

    #[test]
    fn a_body_does_not_contradict_its_path() {
        let body = |map: &str, version: u64| {
            json!({"map": map, "version": version, "compat_id": "00".repeat(32), "scope_id": "00".repeat(16),
                "session": null, "shards": [shard(0, 4)]})
            .to_string()
        };
        let map = "m".parse().unwrap();
        assert!(MapCreate::from_json(body("m", 1).as_bytes(), &map).is_ok());
        for bad in [body("n", 1), body("m", 2)] {
            assert!(matches!(MapCreate::from_json(bad.as_bytes(), &map), Err(RecordError::Invalid(_))));
        }
    }

    #[test]
    fn a_map_identifier_has_128_characters_of_a_small_set() {
        assert!("a.B_9-".parse::<MapId>().is_ok() && "x".repeat(128).parse::<MapId>().is_ok());
        for bad in ["", "a b", "ä", "a/b", &"x".repeat(129)] {
            assert_eq!(bad.parse::<MapId>(), Err(BadMapId), "{bad}");
        }
    }

    #[test]
    fn a_deadline_is_positive_and_cut_to_the_longest() {
        let body = |ms: u64| json!({"from": 1, "shards": [shard(0, 4)], "deadline_ms": ms}).to_string();
        assert_eq!(
            ReshardRequest::from_json(body(u64::from(u32::MAX)).as_bytes()).unwrap().deadline_ms,
            MAX_RESHARD_MS
        );
        let zero = ReshardRequest::from_json(body(0).as_bytes());
        assert!(matches!(zero, Err(RecordError::Json(JsonError::Malformed(_)))));
    }
}
