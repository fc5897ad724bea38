//! The table at the end, and whether it shows what it should.

use serde_json::{Value, json};

use super::ask::Answer;
use super::second::SecondAct;
use super::third::ThirdAct;

/// Prompt tokens from which the ratio is held to.
const RATIO_TOKENS: u64 = 2000;
/// How many times sooner the first token must come.
const RATIO: f64 = 10.0;

/// One question and its answer.
pub(super) struct Row {
    who: &'static str,
    question: String,
    answer: Answer,
}

impl Row {
    pub(super) fn new(who: &'static str, question: &str, answer: &Answer) -> Self {
        Self { who, question: question.to_owned(), answer: answer.clone() }
    }
}

/// What should hold, and whether it does.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) told: String,
    pub(super) holds: bool,
}

/// All that the demo measured.
pub(super) struct Report {
    short: bool,
    rows: Vec<Row>,
    checks: Vec<Check>,
    ratio: f64,
    second: Option<SecondAct>,
    third: Option<ThirdAct>,
    pub(super) octets_fetched: u64,
    pub(super) octets_verified: u64,
    pub(super) tokens_computed_by_b: u64,
    pub(super) mismatches: u64,
}

impl Report {
    pub(super) const fn new(short: bool) -> Self {
        Self {
            short,
            rows: Vec::new(),
            checks: Vec::new(),
            ratio: 0.0,
            second: None,
            third: None,
            octets_fetched: 0,
            octets_verified: 0,
            tokens_computed_by_b: 0,
            mismatches: 0,
        }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// What the second act showed.
    pub(super) fn add_second(&mut self, act: SecondAct) {
        self.checks.extend(act.checks());
        self.second = Some(act);
    }

    /// What the third act showed.
    pub(super) fn add_third(&mut self, act: ThirdAct) {
        self.checks.extend(act.checks());
        self.third = Some(act);
    }

    fn check(&mut self, name: &'static str, holds: bool, told: String) {
        self.checks.push(Check { name, told, holds });
    }

    /// Draw the conclusions.
    pub(super) fn conclude(
        &mut self,
        cold: &Answer,
        warm: &Answer,
        pairs: &[(&Answer, &Answer)],
        block: u64,
    ) {
        let equal = pairs.iter().filter(|(a, b)| a.text == b.text && !a.text.is_empty()).count();
        self.check("texts are equal", equal == pairs.len(), format!("{equal} of {} pairs", pairs.len()));
        self.check(
            "A computed all",
            cold.cached_tokens == 0,
            format!("{} tokens reused", cold.cached_tokens),
        );
        // The last token is always computed: its logits are wanted.
        let complete = warm.prompt_tokens.saturating_sub(1) / block * block;
        let matched = warm.cached_tokens;
        self.check(
            "B reused all complete blocks",
            matched == complete && matched > 0,
            format!("{matched} of {} tokens matched", warm.prompt_tokens),
        );
        let left = warm.prompt_tokens.saturating_sub(matched);
        self.check(
            "B computed only the rest",
            self.tokens_computed_by_b == left,
            format!("{} prompt tokens computed", self.tokens_computed_by_b),
        );
        let (fetched, verified) = (self.octets_fetched, self.octets_verified);
        self.check(
            "every octet fetched was verified",
            fetched > 0 && fetched == verified && self.mismatches == 0,
            format!("{fetched} fetched, {verified} verified, {} mismatches", self.mismatches),
        );
        self.ratio = cold.first_token.as_secs_f64() / warm.first_token.as_secs_f64().max(1e-9);
        let told = format!("{:.1} times sooner", self.ratio);
        if self.short || cold.prompt_tokens < RATIO_TOKENS {
            self.check("first token", true, format!("{told} (a short prompt: not held to a ratio)"));
        } else {
            self.check("first token at least 10 times sooner", self.ratio >= RATIO, told);
        }
    }

    /// Whether every check holds.
    pub(super) fn holds(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|c| c.holds)
    }

    /// Print the table, or JSON.
    pub(super) fn print(&self, json: bool) {
        if json {
            println!("{}", self.to_json());
            return;
        }
        println!("{:<9} {:>7} {:>8} {:>12}  question", "instance", "prompt", "reused", "first token");
        for row in &self.rows {
            println!(
                "{:<9} {:>7} {:>8} {:>9.0} ms  {}",
                row.who,
                row.answer.prompt_tokens,
                row.answer.cached_tokens,
                row.answer.first_token.as_secs_f64() * 1e3,
                row.question
            );
        }
        for row in &self.rows {
            println!("\n{}: {}\n  {}", row.who, row.question, row.answer.text.trim().replace('\n', "\n  "));
        }
        println!();
        if let Some(act) = &self.second {
            println!("{}\n", act.to_text());
        }
        if let Some(act) = &self.third {
            println!("{}\n", act.to_text());
        }
        for check in &self.checks {
            println!("{} {}: {}", if check.holds { "ok   " } else { "WRONG" }, check.name, check.told);
        }
    }

    fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "instance": row.who,
                    "question": row.question,
                    "prompt_tokens": row.answer.prompt_tokens,
                    "cached_tokens": row.answer.cached_tokens,
                    "first_token_ms": row.answer.first_token.as_secs_f64() * 1e3,
                    "text": row.answer.text,
                })
            })
            .collect();
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|c| json!({"check": c.name, "holds": c.holds, "detail": c.told}))
            .collect();
        json!({
            "ok": self.holds(),
            "ratio": self.ratio,
            "octets_fetched": self.octets_fetched,
            "octets_verified": self.octets_verified,
            "answers": rows,
            "failover": self.second.as_ref().map(SecondAct::to_json),
            "reshard": self.third.as_ref().map(ThirdAct::to_json),
            "checks": checks,
        })
    }
}
