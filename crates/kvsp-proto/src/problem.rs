//! Problem types (profile section 3): one closed enum, one mapping to statuses.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The prefix of every registered problem type.
pub const TYPE_PREFIX: &str = "https://iana.org/assignments/http-problem-types#";

macro_rules! problems {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:literal, $title:literal;)+) => {
        /// A registered KVSP problem type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ProblemType {
            $($(#[$doc])* $variant),+
        }

        impl ProblemType {
            /// Every problem type, in the profile's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name after [`TYPE_PREFIX`].
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status),+ }
            }

            /// A short summary, the same for every occurrence.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title),+ }
            }

            /// The problem type of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

problems! {
    /// An identifier in path, query or body is malformed.
    BadIdentifier = "kvsp-bad-identifier", 400, "Malformed identifier";
    /// Not I-JSON, or a required member missing or of the wrong type.
    MalformedJson = "kvsp-malformed-json", 400, "Malformed JSON";
    /// Magic, version, flags, counts or lengths do not add up.
    MalformedContainer = "kvsp-malformed-container", 400, "Malformed container";
    /// `layers=` or `range=` is not `a-b`.
    InvalidRange = "kvsp-invalid-range", 400, "Invalid range";
    /// No or bad credentials.
    Unauthenticated = "kvsp-unauthenticated", 401, "Not authenticated";
    /// The principal lacks the scope.
    ScopeDenied = "kvsp-scope-denied", 403, "Scope denied";
    /// Not the holder or instance named, and not its delegate.
    NotHolder = "kvsp-not-holder", 403, "Not the holder";
    /// A URI that policy forbids.
    SourceForbidden = "kvsp-source-forbidden", 403, "Source forbidden";
    /// No such block.
    BlockNotFound = "kvsp-block-not-found", 404, "Block not found";
    /// Those layers are not held.
    LayersUnavailable = "kvsp-layers-unavailable", 404, "Layers unavailable";
    /// Unknown or expired lease.
    LeaseUnknown = "kvsp-lease-unknown", 404, "Lease unknown";
    /// Unknown or expired directive.
    DirectiveUnknown = "kvsp-directive-unknown", 404, "Directive unknown";
    /// Unknown or ended session.
    SessionUnknown = "kvsp-session-unknown", 404, "Session unknown";
    /// Unknown map.
    MapUnknown = "kvsp-map-unknown", 404, "Map unknown";
    /// Unknown instance.
    InstanceUnknown = "kvsp-instance-unknown", 404, "Instance unknown";
    /// Unknown descriptor.
    DescriptorUnknown = "kvsp-descriptor-unknown", 404, "Descriptor unknown";
    /// A known codec that is not offered.
    CodecUnavailable = "kvsp-codec-unavailable", 406, "Codec unavailable";
    /// An epoch lower than the highest seen.
    StaleEpoch = "kvsp-stale-epoch", 409, "Stale epoch";
    /// An epoch higher than the session's current one.
    UnknownEpoch = "kvsp-unknown-epoch", 409, "Unknown epoch";
    /// A sequence number lower than one already seen.
    StaleRecord = "kvsp-stale-record", 409, "Stale record";
    /// Tokens contradict a recorded checkpoint.
    CheckpointConflict = "kvsp-checkpoint-conflict", 409, "Checkpoint conflict";
    /// The instance is not active.
    InstanceNotActive = "kvsp-instance-not-active", 409, "Instance not active";
    /// The same directive identifier or idempotency key with another body.
    DirectiveConflict = "kvsp-directive-conflict", 409, "Directive conflict";
    /// A DELETE of a block under lease.
    BlockLeased = "kvsp-block-leased", 409, "Block leased";
    /// A reshard that contradicts the map's state.
    ReshardConflict = "kvsp-reshard-conflict", 409, "Reshard conflict";
    /// `If-None-Match: *` and a replica is there.
    BlockExists = "kvsp-block-exists", 412, "Block exists";
    /// A body, key list or container over its limit.
    LimitExceeded = "kvsp-limit-exceeded", 413, "Limit exceeded";
    /// A PUT with an unknown codec.
    UnsupportedCodec = "kvsp-unsupported-codec", 415, "Unsupported codec";
    /// A false descriptor.
    DescriptorInvalid = "kvsp-descriptor-invalid", 422, "Invalid descriptor";
    /// The computed Compatibility ID is another.
    CompatMismatch = "kvsp-compat-mismatch", 422, "Compatibility ID mismatch";
    /// A false record.
    InvalidRecord = "kvsp-invalid-record", 422, "Invalid record";
    /// A container that contradicts a known descriptor.
    ContainerMismatch = "kvsp-container-mismatch", 422, "Container mismatch";
    /// A digest that is not that of the octets.
    DigestMismatch = "kvsp-digest-mismatch", 422, "Digest mismatch";
    /// A false shard map.
    InvalidShardMap = "kvsp-invalid-shard-map", 422, "Invalid shard map";
    /// A false checkpoint.
    InvalidCheckpoint = "kvsp-invalid-checkpoint", 422, "Invalid checkpoint";
    /// Leased octets over the principal's quota.
    LeaseQuota = "kvsp-lease-quota", 429, "Lease quota exceeded";
    /// Load was shed.
    Overloaded = "kvsp-overloaded", 503, "Overloaded";
    /// No active instance can take the request.
    NoCapacity = "kvsp-no-capacity", 503, "No capacity";
    /// No eviction can make room.
    StorageFull = "kvsp-storage-full", 507, "Storage full";
}

/// What a problem is about: a registered type, or a bare status (`about:blank`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// A registered type.
    Kvsp(ProblemType),
    /// `about:blank` with this HTTP status.
    Blank(u16),
}

/// One occurrence of a problem (RFC 9457).
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The type and with it the status.
    pub kind: ProblemKind,
    /// What happened here and what to do; never a token, key, path or trace.
    pub detail: String,
    /// Extension members.
    pub extensions: Map<String, Value>,
    /// Seconds for a `Retry-After` field.
    pub retry_after_s: Option<u64>,
}

impl Problem {
    /// A problem of a registered type.
    pub fn new(problem: ProblemType, detail: impl Into<String>) -> Self {
        Self {
            kind: ProblemKind::Kvsp(problem),
            detail: detail.into(),
            extensions: Map::new(),
            retry_after_s: None,
        }
    }

    /// An `about:blank` problem of this status.
    pub fn blank(status: u16, detail: impl Into<String>) -> Self {
        Self {
            kind: ProblemKind::Blank(status),
            detail: detail.into(),
            extensions: Map::new(),
            retry_after_s: None,
        }
    }

    /// With an extension member.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(member.to_owned(), value.into());
        self
    }

    /// With a `Retry-After` of this many seconds.
    #[must_use]
    pub const fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self.kind {
            ProblemKind::Kvsp(problem) => problem.status(),
            ProblemKind::Blank(status) => status,
        }
    }

    /// The registered type, unless `about:blank`.
    #[must_use]
    pub const fn problem_type(&self) -> Option<ProblemType> {
        match self.kind {
            ProblemKind::Kvsp(problem) => Some(problem),
            ProblemKind::Blank(_) => None,
        }
    }

    /// The body of `application/problem+json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut body = self.extensions.clone();
        match self.kind {
            ProblemKind::Kvsp(problem) => {
                body.insert("type".into(), format!("{TYPE_PREFIX}{}", problem.name()).into());
                body.insert("title".into(), problem.title().into());
            }
            ProblemKind::Blank(status) => {
                body.insert("type".into(), "about:blank".into());
                // RFC 9457 section 4.2.1: the title of about:blank is the status' own phrase.
                body.insert("title".into(), status_phrase(status).into());
            }
        }
        body.insert("status".into(), self.status().into());
        body.insert("detail".into(), self.detail.clone().into());
        Value::Object(body)
    }

    /// Read a body of `application/problem+json` that came with `status`; anything unreadable or of an
    /// unregistered type becomes an `about:blank` of that status.
    #[must_use]
    pub fn from_json(status: u16, body: &[u8]) -> Self {
        let Ok(Value::Object(mut members)) = serde_json::from_slice::<Value>(body) else {
            return Self::blank(status, "");
        };
        let detail = match members.remove("detail") {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let kind = members
            .remove("type")
            .as_ref()
            .and_then(Value::as_str)
            .and_then(|t| t.strip_prefix(TYPE_PREFIX))
            .and_then(ProblemType::from_name)
            .filter(|problem| problem.status() == status)
            .map_or(ProblemKind::Blank(status), ProblemKind::Kvsp);
        for member in ["title", "status", "instance"] {
            members.remove(member);
        }
        Self { kind, detail, extensions: members, retry_after_s: None }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            ProblemKind::Kvsp(problem) => write!(f, "{} ({})", problem.name(), problem.status())?,
            ProblemKind::Blank(status) => write!(f, "HTTP status {status}")?,
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

impl std::error::Error for Problem {}

impl From<crate::json::JsonError> for Problem {
    fn from(error: crate::json::JsonError) -> Self {
        let problem = match &error {
            crate::json::JsonError::BadIdentifier(_) => ProblemType::BadIdentifier,
            // Which 422 an unregistered name is, what holds it says; by itself it is a member that cannot be read.
            crate::json::JsonError::Malformed(_)
            | crate::json::JsonError::LoneSurrogate
            | crate::json::JsonError::Unregistered(_) => ProblemType::MalformedJson,
        };
        Self::new(problem, error.to_string())
    }
}

impl From<crate::id::BadIdentifier> for Problem {
    fn from(error: crate::id::BadIdentifier) -> Self {
        Self::new(ProblemType::BadIdentifier, error.to_string())
    }
}

/// The phrase of the statuses that are answered without a type of their own.
const fn status_phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Content",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        _ => "Error",
    }
}

/// One item of a batch answer: a status, and a problem or the granted TTL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchItem {
    /// The HTTP status that the item alone would have had.
    pub status: u16,
    /// The granted TTL in ms of an accepted PUT.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_ms: Option<u64>,
    /// The problem of a refused item.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub problem: Option<Value>,
}

impl From<Problem> for BatchItem {
    fn from(problem: Problem) -> Self {
        Self { status: problem.status(), ttl_ms: None, problem: Some(problem.to_json()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_survives_its_json() {
        for &problem in ProblemType::ALL {
            let sent = Problem::new(problem, "why").with("layers", 3);
            let got = Problem::from_json(problem.status(), sent.to_json().to_string().as_bytes());
            assert_eq!(got, sent);
            assert_eq!(ProblemType::from_name(problem.name()), Some(problem));
        }
        assert_eq!(Problem::from_json(502, b"<html>").kind, ProblemKind::Blank(502));
    }

    #[test]
    fn names_and_statuses_are_the_profiles() {
        assert_eq!(ProblemType::ALL.len(), 39);
        assert_eq!(ProblemType::BlockExists.status(), 412);
        assert_eq!(
            Problem::new(ProblemType::StorageFull, "").to_json()["type"],
            "https://iana.org/assignments/http-problem-types#kvsp-storage-full"
        );
        assert_eq!(Problem::blank(428, "x").to_json()["type"], "about:blank");
        assert_eq!(Problem::blank(428, "x").to_json()["title"], "Precondition Required");
    }
}
