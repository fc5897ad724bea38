//! From a request to tokens.

use kvsp_engine::{ChatMessage, TokenizerError};
use kvsp_openai::{ApiError, ChatRequest, CompletionRequest, Prompt};

use crate::Gateway;

/// Output tokens of a completion that names no limit, as the OpenAI API has it.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A prompt and how many tokens may follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
}

impl Gateway {
    /// The tokens of a completion request.
    pub(crate) fn completion_tokens(&self, request: &CompletionRequest) -> Result<Tokens, ApiError> {
        self.check_model(&request.model)?;
        request.check()?;
        let text = match &request.prompt {
            Prompt::Text(text) => text,
            Prompt::Texts(texts) if texts.len() == 1 => &texts[0],
            Prompt::Tokens(tokens) => {
                return self.fit("prompt", tokens.clone(), request.max_tokens, DEFAULT_MAX_TOKENS);
            }
            Prompt::TokenLists(lists) if lists.len() == 1 => {
                return self.fit("prompt", lists[0].clone(), request.max_tokens, DEFAULT_MAX_TOKENS);
            }
            Prompt::Texts(_) | Prompt::TokenLists(_) => {
                return Err(ApiError::invalid("prompt", "send one prompt a request"));
            }
        };
        let tokens = self.tokenizer.encode(text).map_err(|e| ApiError::invalid("prompt", e.to_string()))?;
        self.fit("prompt", tokens, request.max_tokens, DEFAULT_MAX_TOKENS)
    }

    /// The tokens of a chat request, by the model's template.
    pub(crate) fn chat_tokens(&self, request: &ChatRequest) -> Result<Tokens, ApiError> {
        self.check_model(&request.model)?;
        request.check()?;
        let messages = request
            .messages
            .iter()
            .map(|m| Ok(ChatMessage { role: m.role.clone(), content: m.text()? }))
            .collect::<Result<Vec<_>, ApiError>>()?;
        let tokens = self.tokenizer.chat(&messages).map_err(|error| match error {
            TokenizerError::Template(why) => {
                ApiError::invalid("messages", format!("the chat template: {why}"))
            }
            TokenizerError::Convert(why) => ApiError::invalid("messages", why),
        })?;
        self.fit("messages", tokens, request.output_limit(), usize::MAX)
    }

    fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if name == self.served_name { Ok(()) } else { Err(ApiError::ModelNotFound(name.to_owned())) }
    }

    fn fit(
        &self,
        param: &'static str,
        prompt: Vec<u32>,
        wanted: Option<i64>,
        default: usize,
    ) -> Result<Tokens, ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::invalid(param, "the prompt has no tokens"));
        }
        let Some(left) = self.max_context.checked_sub(prompt.len()).filter(|left| *left > 0) else {
            return Err(ApiError::ContextLength { context: self.max_context, tokens: prompt.len(), param });
        };
        let wanted = wanted.map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Tokens { prompt, max_tokens: wanted.min(left) })
    }
}
