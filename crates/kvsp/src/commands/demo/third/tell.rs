//! What the third act showed, in words and as JSON, and whether it shows what it should.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Step, ThirdAct};
use crate::commands::demo::report::Check;
use crate::commands::fleet::Moved;

impl ThirdAct {
    /// What must hold.
    pub(in crate::commands::demo) fn checks(&self) -> Vec<Check> {
        let (heard, whole) = (&self.heard, &self.whole);
        let text = heard.text();
        let equal = text == whole.text() && heard.tokens() == whole.tokens() && !text.is_empty();
        let planned = self.changes.iter().filter(|step| step.change.is_as_planned(&self.descriptor)).count();
        let kept = self.changes.iter().filter(|step| self.keeps(step)).count();
        let fetched: u64 = self.changes.iter().map(|step| step.change.fetched()).sum();
        let seen = self.changes.iter().filter(|step| self.pause(step) > Duration::ZERO).count();
        let count = self.changes.len();
        let checks = [
            (
                "the answer of the group is equal",
                equal && heard.is_in_order(),
                format!("{} of {} tokens, greedy", heard.tokens(), whole.tokens()),
            ),
            (
                "octets moved are those of the plans",
                planned == count && fetched > 0,
                format!("{planned} of {count} changes, {fetched} octets"),
            ),
            (
                "nothing moved for what stays in place",
                planned == count && kept == count,
                format!("{kept} of {count} changes kept what they should"),
            ),
            (
                "decoding went on through every change",
                seen == count && count == 3,
                format!("{seen} of {count} changes between two tokens"),
            ),
        ];
        checks.into_iter().map(|(name, holds, told)| Check { name, holds, told }).collect()
    }

    /// Whether the members say that what stays with them was kept: all of it that is below the prompt's end, without
    /// its last token, which is computed with the answer.
    fn keeps(&self, step: &Step) -> bool {
        let length = self.prompt.saturating_sub(1);
        step.change.moved.iter().all(|moved| moved.retained >= moved.kept(length))
    }

    /// The longest time without a token that the client saw around a change.
    fn pause(&self, step: &Step) -> Duration {
        self.heard.longest_gap_in(step.change.asked..=step.change.settled)
    }

    /// In words.
    pub(in crate::commands::demo) fn to_text(&self) -> String {
        let parts: Vec<String> = self.first.shards.iter().map(|s| s.tokens.tokens().to_string()).collect();
        let mut text = format!(
            "third act: {}\n  the context of {} tokens and its room for more were split over {} instances ({} positions), \
             which computed the prompt together;\n  one leads: it merges their partial attention and samples. The split \
             changed three times while it answered:\n  {:<7} {:>8} {:>12} {:>14} {:>8} {:>11} {:>11} {:>11}",
            self.question,
            self.prompt,
            self.first.shards.len(),
            parts.join(" + "),
            "change",
            "at token",
            "moved",
            "octets",
            "stayed",
            "decided",
            "all told",
            "pause",
        );
        for step in &self.changes {
            let change = &step.change;
            let moved: u64 = change.moved.iter().map(Moved::tokens).sum();
            let stayed: u64 = change.moved.iter().map(|moved| moved.kept(self.prompt)).sum();
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n  {} -> {}  {:>8} {:>12} {:>14} {:>8} {:>8} ms {:>8} ms {:>8} ms",
                change.sizes.0,
                change.sizes.1,
                step.at_token,
                format!("{moved} tokens"),
                change.fetched(),
                stayed,
                millis(change.to_decision()),
                millis(change.to_end()),
                millis(self.pause(step)),
            );
        }
        let _ = write!(
            text,
            "\n  without a change a token came every {} ms (median), {} ms with a single instance\n  {}",
            millis(self.heard.usual_gap()),
            millis(self.whole.usual_gap()),
            self.heard.text().trim().replace('\n', "\n  "),
        );
        text
    }

    pub(in crate::commands::demo) fn to_json(&self) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let member = |moved: &Moved| {
            json!({
                "instance": moved.instance,
                "tokens_fetched": moved.tokens(),
                "octets_demanded": moved.demanded(&self.descriptor),
                "octets_fetched": moved.fetched,
                "octets_stored": moved.stored,
                "tokens_retained": moved.retained,
            })
        };
        let step = |step: &Step| {
            let change = &step.change;
            json!({
                "from": change.sizes.0,
                "to": change.sizes.1,
                "version": change.view.version,
                "at_token": step.at_token,
                "octets_fetched": change.fetched(),
                "members": change.moved.iter().map(member).collect::<Vec<_>>(),
                "decided_ms": ms(change.to_decision()),
                "settled_ms": ms(change.to_end()),
                "pause_ms": ms(self.pause(step)),
            })
        };
        json!({
            "question": self.question,
            "prompt_tokens": self.prompt,
            "shards": self.first.shards,
            "changes": self.changes.iter().map(step).collect::<Vec<_>>(),
            "token_ms": ms(self.heard.usual_gap()),
            "token_ms_alone": ms(self.whole.usual_gap()),
            "text": self.heard.text(),
            "text_alone": self.whole.text(),
        })
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
