//! What decoding notices of it when thousands of tokens move between the members that attend over them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use indicatif::ProgressBar;
use kvsp_openai::{Completion, sse};
use kvsp_proto::path::{COMPLETIONS, MAP_HEADER};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::hall::{Context, Hall};
use super::model::{TOKEN_OCTETS, VOCABULARY};
use crate::commands::bench::error::BenchError;
use crate::commands::bench::measure::figure;
use crate::commands::bench::report::Bench;

/// Tokens of the prompt, which is computed for every answer.
const TOKENS: u64 = 2048;
/// Output tokens of an answer.
const OUTPUT: usize = 48;
/// Tokens after which the context is split anew.
const AFTER: usize = 16;
const WHAT: &str = "an instance";

/// Adds the figures.
pub(super) fn measure(
    quick: bool,
    runtime: &Runtime,
    hall: &Hall,
    bar: &ProgressBar,
    bench: &mut Bench,
) -> Result<(), BenchError> {
    let rounds = if quick { 1 } else { 5 };
    let (mut gaps, mut usual, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let context = Context::of(TOKENS)?;
    runtime.block_on(hall.create(&context))?;
    for round in 0..=rounds {
        bar.set_message(format!("reshard within an answer, round {round} of {rounds}"));
        let (heard, (asked, settled)) = runtime.block_on(answer(hall, &context))?;
        runtime.block_on(hall.reshard(&context, 3))?;
        if round > 0 {
            let span = asked..=settled;
            let gap = pairs(&heard).filter(|(one, next)| span.start() <= next && one <= span.end());
            let longest = gap.map(|(one, next)| next.duration_since(one)).max().unwrap_or_default();
            let mut before: Vec<Duration> = pairs(&heard)
                .filter(|(_, next)| *next < asked)
                .map(|(one, next)| next.duration_since(one))
                .collect();
            before.sort_unstable();
            gaps.push(longest.as_secs_f64() * 1e3);
            usual.push(before.get(before.len() / 2).copied().unwrap_or_default().as_secs_f64() * 1e3);
            times.push(settled.duration_since(asked).as_secs_f64() * 1e3);
        }
    }
    bench.figures.extend([
        figure("3 -> 2 within an answer, all told: time".to_owned(), "ms", times),
        figure("the longest time without a token meanwhile".to_owned(), "ms", gaps),
        figure("a token before it".to_owned(), "ms", usual),
    ]);
    bench.notes.push(format!(
        "within an answer: {OUTPUT} tokens after a prompt of {TOKENS}, {rounds} answers; after {AFTER} tokens {} octets \
         begin to move; all processes share the cores",
        TOKENS / 3 * TOKEN_OCTETS as u64
    ));
    Ok(())
}

fn pairs(heard: &[Instant]) -> impl Iterator<Item = (Instant, Instant)> {
    heard.iter().copied().zip(heard.iter().copied().skip(1))
}

/// When each token came, and when the change was asked for and settled.
async fn answer(hall: &Hall, context: &Context) -> Result<(Vec<Instant>, (Instant, Instant)), BenchError> {
    let prompt: Vec<usize> = (0..TOKENS as usize).map(|n| n % VOCABULARY).collect();
    let body = json!({
        "model": "kvsp/bench", "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "stream": true,
    });
    let request = Request::post("/")
        .header(CONTENT_TYPE, "application/json")
        .header(MAP_HEADER, context.map.as_str())
        .body(Bytes::from(body.to_string()))
        .map_err(|_| BenchError::Answer(WHAT))?;
    let (head, mut stream) = hall.client.forward(hall.leader(), COMPLETIONS, request).await?.into_parts();
    if !head.status.is_success() {
        let text = stream.chunk().await?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        return Err(BenchError::Status { what: WHAT, status: head.status.as_u16(), text });
    }
    let (tell, mut told) = watch::channel(0);
    let hearing = async {
        let (mut reader, mut heard) = (sse::EventReader::default(), Vec::new());
        while let Some(octets) = stream.chunk().await? {
            for payload in reader.push(&octets).map_err(|_| BenchError::Answer(WHAT))? {
                if payload == sse::DONE {
                    continue;
                }
                let event: Completion =
                    serde_json::from_str(&payload).map_err(|_| BenchError::Answer(WHAT))?;
                if event.choices.iter().any(|choice| !choice.text.is_empty()) {
                    heard.push(Instant::now());
                    tell.send_replace(heard.len());
                }
            }
        }
        drop(tell);
        Ok::<_, BenchError>(heard)
    };
    let changing = async {
        let had = told.wait_for(|had| *had >= AFTER).await.map(|_| ());
        had.map_err(|_| BenchError::Late("a change within the answer"))?;
        hall.reshard(context, 2).await
    };
    let (heard, change) = tokio::try_join!(hearing, changing)?;
    if heard.len() < OUTPUT / 2 {
        return Err(BenchError::Ended("the answer"));
    }
    Ok((heard, (change.asked, change.settled)))
}
