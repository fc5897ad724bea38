//! The output of one request as text: tokens from the engine, detokenised, cut at stop strings.

use std::collections::VecDeque;

use kvsp_engine::{Detokenizer, StopMatcher, TokenizerError};
use kvsp_openai::{FinishReason, Usage};
use tokio::sync::mpsc;

use crate::engine::Output;

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text; never empty.
    Text(String),
    /// The end, once.
    End(FinishReason, Usage),
}

/// Why the output broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GenerationError {
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The engine stopped before the end.
    #[error("the engine stopped")]
    Stopped,
    /// A token has no text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// A request under way. Dropping it cancels the request in the engine.
pub(crate) struct Generation {
    outputs: mpsc::Receiver<Output>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    prompt_tokens: u64,
    reused: u64,
    generated: u64,
    ready: VecDeque<Piece>,
    ended: bool,
}

impl Generation {
    pub(crate) fn new(
        outputs: mpsc::Receiver<Output>,
        detokenizer: Detokenizer,
        stops: Vec<String>,
        prompt_tokens: usize,
    ) -> Self {
        Self {
            outputs,
            detokenizer,
            stops: StopMatcher::new(stops),
            prompt_tokens: prompt_tokens as u64,
            reused: 0,
            generated: 0,
            ready: VecDeque::new(),
            ended: false,
        }
    }

    /// The next piece; `None` after the end or an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, GenerationError>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if self.ended {
                return None;
            }
            let taken = match self.outputs.recv().await {
                Some(output) => self.take(output),
                None => Err(GenerationError::Stopped),
            };
            if let Err(error) = taken {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }

    fn take(&mut self, output: Output) -> Result<(), GenerationError> {
        match output {
            Output::Started { reused } => self.reused = reused as u64,
            Output::Token(token) => {
                self.generated += 1;
                let text = self.detokenizer.push(token)?;
                if self.emit(&text) {
                    self.end(FinishReason::Stop);
                }
            }
            Output::Finished(reason) => {
                let rest = self.detokenizer.finish()?;
                let stopped = self.emit(&rest);
                if !stopped {
                    let held = self.stops.flush();
                    self.push_text(held);
                }
                self.end(if stopped { FinishReason::Stop } else { reason });
            }
            // A request whose prompt is known never lacks it.
            Output::NeedsPrompt => return Err(GenerationError::Stopped),
            Output::Failed(why) => return Err(GenerationError::Engine(why)),
        }
        Ok(())
    }

    /// Pass text on up to a stop string; true where one was met.
    fn emit(&mut self, text: &str) -> bool {
        let (text, stopped) = self.stops.push(text);
        self.push_text(text);
        stopped
    }

    fn push_text(&mut self, text: String) {
        if !text.is_empty() {
            self.ready.push_back(Piece::Text(text));
        }
    }

    /// End the output; closing the channel cancels what the engine would still compute.
    fn end(&mut self, reason: FinishReason) {
        self.ready.push_back(Piece::End(reason, Usage::new(self.prompt_tokens, self.generated, self.reused)));
        self.ended = true;
        self.outputs.close();
    }
}
