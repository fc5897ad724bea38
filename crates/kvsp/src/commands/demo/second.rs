//! The second act: the instance that serves a sampled answer is killed in the middle of it.

use kvsp_net::random::{Random as _, SystemRandom};
use kvsp_proto::uri::BaseUri;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::DemoError;
use super::report::Check;
use crate::commands::failover::{Heard, Question, Stage, Strike, Struck, listen};
use crate::commands::fleet::Fleet;
use crate::progress;

/// The sampler of both answers.
const TEMPERATURE: f64 = 0.8;
const SEED: u64 = 20_260;

/// What the second act showed.
pub(super) struct SecondAct {
    question: String,
    whole: Heard,
    struck: Struck,
}

/// Ask twice the same; kill the instance that serves the second answer once the client has a random token.
pub(super) async fn play(
    stage: &Stage,
    fleet: &mut Fleet,
    model: &str,
    (document, question): (&str, &str),
    max_tokens: u32,
) -> Result<SecondAct, DemoError> {
    let asked = Question {
        model: model.to_owned(),
        text: format!("{document}\n\nQuestion: {question}"),
        max_tokens,
        temperature: TEMPERATURE,
        seed: SEED,
    };
    let spinner =
        progress::spinner(format!("an answer with seed {SEED} that nothing interrupts: {question}"));
    let whole = listen(&stage.client, &stage.gateway, &asked).await;
    spinner.finish_and_clear();
    let whole = whole?;
    // In the first half: however fast the model is, the rest is not yet under way to the client.
    let after_tokens = 1 + SystemRandom.u64() % (whole.tokens() / 2).max(1);
    let spinner = progress::spinner(format!("the same, its instance killed at token {after_tokens}"));
    let struck = Strike { after_tokens, signal: Signal::SIGKILL }.run(stage, fleet, &asked).await;
    spinner.finish_and_clear();
    let struck = struck?;
    fleet.bury(&struck.instance).await?;
    Ok(SecondAct { question: question.to_owned(), whole, struck })
}

impl SecondAct {
    /// The instance that was killed.
    pub(super) const fn struck(&self) -> &BaseUri {
        &self.struck.instance
    }

    /// What must hold.
    pub(super) fn checks(&self) -> Vec<Check> {
        let (struck, whole) = (&self.struck, &self.whole);
        let equal = struck.heard.is_equal(whole) && !whole.text().is_empty();
        let ordered = struck.heard.is_in_order();
        let checks = [
            (
                "the killed answer is equal",
                equal,
                format!("{} of {} tokens, seed {SEED}", struck.heard.tokens(), whole.tokens()),
            ),
            (
                "each token once and in order",
                ordered,
                format!("{} events on one stream", struck.heard.events.len()),
            ),
            ("another instance went on", struck.epoch() > 1, format!("epoch {}", struck.epoch())),
        ];
        checks.into_iter().map(|(name, holds, told)| Check { name, holds, told }).collect()
    }

    /// In words.
    pub(super) fn to_text(&self) -> String {
        let struck = &self.struck;
        format!(
            "second act: temperature {TEMPERATURE}, seed {SEED}, {}\n  \
             killed with SIGKILL when the client had {} of {} tokens; {} were recorded and recovered, epoch {}\n  \
             the client saw a gap of {} ms; {} ms from the kill to the next token: {} ms until another instance \
             was chosen, {} ms until it had the session, {} ms to load, recompute and deliver\n  {}",
            self.question,
            struck.tokens,
            self.whole.tokens(),
            struck.recovered(),
            struck.epoch(),
            millis(struck.gap()),
            millis(struck.to_next_token()),
            millis(struck.detection()),
            millis(struck.resume()),
            millis(struck.recompute()),
            struck.heard.text().trim().replace('\n', "\n  "),
        )
    }

    pub(super) fn to_json(&self) -> Value {
        let struck = &self.struck;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        json!({
            "question": self.question,
            "temperature": TEMPERATURE,
            "seed": SEED,
            "tokens": self.whole.tokens(),
            "killed_at_token": struck.tokens,
            "tokens_recovered": struck.recovered(),
            "epoch": struck.epoch(),
            "gap_ms": ms(struck.gap()),
            "next_token_ms": ms(struck.to_next_token()),
            "detection_ms": ms(struck.detection()),
            "resume_ms": ms(struck.resume()),
            "recompute_ms": ms(struck.recompute()),
            "text": struck.heard.text(),
            "text_uninterrupted": self.whole.text(),
        })
    }
}

fn millis(time: std::time::Duration) -> String {
    format!("{:.0}", time.as_secs_f64() * 1e3)
}
