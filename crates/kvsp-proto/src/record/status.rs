//! The Instance Status Record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RecordError;
use crate::id::CompatId;
use crate::json::{self, JsonError};
use crate::uri::{BaseUri, HolderUri};

/// Most links that a status may list.
pub const MAX_LINKS: usize = 4096;

/// Most compatibilities that a status may list.
const MAX_COMPAT_IDS: usize = 256;

/// The lifecycle of an instance (draft section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Takes requests and directives.
    Active,
    /// Finishes what it has.
    Draining,
    /// Serves its blocks, computes nothing.
    Sleeping,
    /// Its status expired; never reported by an instance.
    Failed,
}

impl InstanceState {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Sleeping => "sleeping",
            Self::Failed => "failed",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Active, Self::Draining, Self::Sleeping, Self::Failed].into_iter().find(|s| s.as_str() == name)
    }
}

/// The path between an instance and a holder, as the instance measured it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// The holder at the other end.
    pub holder: HolderUri,
    /// Megabits per second; at most 0 where unknown.
    pub mbit_per_s: f64,
    /// Round-trip time in µs.
    pub rtt_us: f64,
}

/// What an instance says of itself (draft section 4.4).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstanceStatus {
    /// The instance's base URI.
    pub instance: BaseUri,
    /// Rises with every start of the instance.
    pub epoch: u64,
    /// The state it is in.
    pub state: InstanceState,
    /// Requests running.
    pub running: u64,
    /// Requests waiting.
    pub queued: u64,
    /// Most requests in a batch.
    pub batch_size: u64,
    /// Share of its KV memory in use, 0…1.
    pub kv_utilization: f64,
    /// Prefill rate; at most 0 where unknown.
    pub prefill_tokens_per_s: f64,
    /// Decode rate; at most 0 where unknown.
    pub decode_tokens_per_s: f64,
    /// Paths to holders.
    pub links: Vec<Link>,
    /// The state it asks for.
    pub requested_state: Option<InstanceState>,
    /// Milliseconds after which the instance counts as failed.
    pub ttl_ms: u64,
    /// Orders the statuses of one epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Mean service time of a request in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_service_us: Option<f64>,
    /// The compatibilities that it computes (an extension of this implementation); where the member is
    /// absent, the instance counts as able to take any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compat_ids: Option<Vec<CompatId>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Wire {
    instance: String,
    epoch: u64,
    state: String,
    #[serde(default)]
    running: u64,
    #[serde(default)]
    queued: u64,
    #[serde(default)]
    batch_size: u64,
    #[serde(default)]
    kv_utilization: f64,
    #[serde(default)]
    prefill_tokens_per_s: f64,
    #[serde(default)]
    decode_tokens_per_s: f64,
    #[serde(default)]
    links: Vec<WireLink>,
    #[serde(default)]
    requested_state: Option<String>,
    ttl_ms: u64,
    #[serde(default, deserialize_with = "json::present")]
    seq: Option<u64>,
    #[serde(default, deserialize_with = "json::present")]
    mean_service_us: Option<f64>,
    #[serde(default, deserialize_with = "json::present")]
    compat_ids: Option<Vec<CompatId>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct WireLink {
    holder: String,
    mbit_per_s: f64,
    #[serde(default)]
    rtt_us: f64,
}

impl InstanceStatus {
    /// Read a status from I-JSON.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        Self::from_value(json::parse(body)?)
    }

    /// Read a status from a JSON value that came through [`json::parse`].
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn from_value(value: Value) -> Result<Self, RecordError> {
        let status = Self::read(value)?;
        if status.state == InstanceState::Failed {
            return Err(RecordError::invalid("member state: failed cannot be reported"));
        }
        // An instance asks for nothing but sleep: only the controller drains and wakes.
        if status.requested_state.is_some_and(|state| state != InstanceState::Sleeping) {
            return Err(RecordError::invalid("member requested_state is not sleeping or null"));
        }
        Ok(status)
    }

    fn read(value: Value) -> Result<Self, RecordError> {
        let wire: Wire = json::from_value(value)?;
        if wire.ttl_ms == 0 {
            return Err(JsonError::Malformed("member ttl_ms is not at least 1".into()).into());
        }
        let instance =
            wire.instance.parse().map_err(|e| RecordError::invalid(format!("member instance: {e}")))?;
        let state = InstanceState::from_name(&wire.state)
            .ok_or_else(|| RecordError::invalid("member state is not active, draining or sleeping"))?;
        let requested_state = wire
            .requested_state
            .map(|name| {
                InstanceState::from_name(&name)
                    .filter(|state| *state != InstanceState::Failed)
                    .ok_or_else(|| RecordError::invalid("member requested_state is not a state to ask for"))
            })
            .transpose()?;
        if !(0.0..=1.0).contains(&wire.kv_utilization) {
            return Err(RecordError::invalid("member kv_utilization is outside 0…1"));
        }
        if wire.links.len() > MAX_LINKS {
            return Err(RecordError::invalid(format!("member links has over {MAX_LINKS} entries")));
        }
        if wire.compat_ids.as_ref().is_some_and(|ids| ids.len() > MAX_COMPAT_IDS) {
            return Err(RecordError::invalid(format!("member compat_ids has over {MAX_COMPAT_IDS} entries")));
        }
        let links = wire.links.into_iter().map(WireLink::check).collect::<Result<_, _>>()?;
        Ok(Self {
            instance,
            epoch: wire.epoch,
            state,
            running: wire.running,
            queued: wire.queued,
            batch_size: wire.batch_size,
            kv_utilization: wire.kv_utilization,
            prefill_tokens_per_s: wire.prefill_tokens_per_s,
            decode_tokens_per_s: wire.decode_tokens_per_s,
            links,
            requested_state,
            ttl_ms: wire.ttl_ms,
            seq: wire.seq,
            mean_service_us: wire.mean_service_us,
            compat_ids: wire.compat_ids,
        })
    }

    /// Whether the instance computes caches of this compatibility.
    #[must_use]
    pub fn computes(&self, compat: CompatId) -> bool {
        self.compat_ids.as_ref().is_none_or(|ids| ids.contains(&compat))
    }

    /// The link to a holder.
    #[must_use]
    pub fn link(&self, holder: &HolderUri) -> Option<&Link> {
        self.links.iter().find(|link| link.holder == *holder)
    }
}

impl WireLink {
    fn check(self) -> Result<Link, RecordError> {
        let holder = self.holder.parse().map_err(|e| RecordError::invalid(format!("member links: {e}")))?;
        if self.rtt_us < 0.0 {
            return Err(RecordError::invalid("member links: rtt_us is negative"));
        }
        Ok(Link { holder, mbit_per_s: self.mbit_per_s, rtt_us: self.rtt_us })
    }
}

impl<'de> Deserialize<'de> for InstanceStatus {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        // A controller's view of an instance may say `failed`, which a report may not.
        Self::read(value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_drafts_example_is_read_and_false_ones_are_refused() {
        let sample = json!({
            "instance": "https://ii7.example/kvsp/", "epoch": 12, "state": "active",
            "running": 18, "queued": 3, "batch_size": 32, "kv_utilization": 0.71,
            "prefill_tokens_per_s": 42000, "decode_tokens_per_s": 3100,
            "links": [{"holder": "https://h1.example/kvsp/", "mbit_per_s": 200000, "rtt_us": 12}],
            "requested_state": null, "ttl_ms": 3000
        });
        let status = InstanceStatus::from_value(sample.clone()).unwrap();
        assert_eq!(status.link(&"https://h1.example/kvsp/".parse().unwrap()).unwrap().rtt_us, 12.0);
        for (member, value) in [
            ("state", json!("failed")),
            ("state", json!("busy")),
            ("kv_utilization", json!(1.5)),
            ("requested_state", json!("failed")),
            ("requested_state", json!("active")),
            ("requested_state", json!("draining")),
            ("requested_state", json!("awake")),
            ("instance", json!("https://ii7.example")),
        ] {
            let mut record = sample.clone();
            record[member] = value;
            assert!(matches!(InstanceStatus::from_value(record), Err(RecordError::Invalid(_))), "{member}");
        }
    }
}
