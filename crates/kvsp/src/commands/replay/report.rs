//! What a replay found, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// One policy with one size.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) policy: &'static str,
    pub(super) blocks: u64,
    pub(super) hits: u64,
}

/// All of a replay.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) requests: usize,
    /// Complete blocks of all requests.
    pub(super) looked_up: u64,
    /// Hits where nothing is ever evicted.
    pub(super) unbounded: u64,
    pub(super) outcomes: Vec<Outcome>,
}

impl Report {
    /// `hit_rate` is the share of the blocks looked up, absent where there are none.
    pub(super) fn to_json(&self) -> Value {
        let mut unbounded = json!({"hits": self.unbounded});
        self.add_rate(&mut unbounded, self.unbounded);
        let results: Vec<Value> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let mut value = json!({
                    "policy": outcome.policy,
                    "blocks": outcome.blocks,
                    "hits": outcome.hits,
                });
                self.add_rate(&mut value, outcome.hits);
                value
            })
            .collect();
        json!({
            "requests": self.requests,
            "looked_up": self.looked_up,
            "unbounded": unbounded,
            "results": results,
        })
    }

    /// A table; the last column compares with `lru` of the same size, where that was tried.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!(
            "{} requests, {} complete blocks looked up\n\n{:<10} {:>10} {:>10} {:>8} {:>9}",
            self.requests, self.looked_up, "policy", "blocks", "hits", "rate", "to lru"
        );
        self.row(&mut text, "any", "unbounded", self.unbounded, None);
        for outcome in &self.outcomes {
            let lru =
                self.outcomes.iter().find(|other| other.policy == "lru" && other.blocks == outcome.blocks);
            let change = lru
                .filter(|lru| lru.policy != outcome.policy)
                .and_then(|lru| Some(100.0 * ratio(outcome.hits, lru.hits)? - 100.0));
            self.row(&mut text, outcome.policy, &outcome.blocks.to_string(), outcome.hits, change);
        }
        text
    }

    fn row(&self, text: &mut String, policy: &str, blocks: &str, hits: u64, change: Option<f64>) {
        let rate = ratio(hits, self.looked_up).map(|rate| format!("{:.2} %", 100.0 * rate));
        let change = change.map(|change| format!("{change:+.2} %"));
        let row = format!(
            "{policy:<10} {blocks:>10} {hits:>10} {:>8} {:>9}",
            rate.unwrap_or_default(),
            change.unwrap_or_default()
        );
        // Writing to a string does not fail.
        let _ = write!(text, "\n{}", row.trim_end());
    }

    fn add_rate(&self, value: &mut Value, hits: u64) {
        if let Some(rate) = ratio(hits, self.looked_up) {
            value["hit_rate"] = json!(rate);
        }
    }
}

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
