//! Requests.

use serde::{Deserialize, Serialize};

use crate::ApiError;

/// Most stop strings of a request, as the OpenAI API has it.
pub const MAX_STOPS: usize = 4;
/// Longest stop string in octets.
pub const MAX_STOP_OCTETS: usize = 1024;

/// A prompt: text or tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "prompt is a text or a list of token identifiers")]
pub enum Prompt {
    /// Text to tokenise.
    Text(String),
    /// Token identifiers.
    Tokens(Vec<u32>),
    /// A batch of texts; only one is taken.
    Texts(Vec<String>),
    /// A batch of token lists; only one is taken.
    TokenLists(Vec<Vec<u32>>),
}

/// One stop string or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "stop is a text or a list of texts")]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// What a stream carries beside text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Whether the last chunk tells the usage.
    #[serde(default)]
    pub include_usage: bool,
}

/// What completions and chats have in common.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Mass of the nucleus; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Highest logits kept; 0 or absent keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Least probability relative to the highest; default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Seed of the sampler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Strings that end the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Whether to stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// What the stream carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Choices; only 1 is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<i64>,
    /// Must be 0: not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Must be 0: not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// Must be empty: not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Sampling {
    /// Whether the answer is a stream.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with the usage.
    #[must_use]
    pub fn wants_usage(&self) -> bool {
        self.stream_options.unwrap_or_default().include_usage
    }

    /// The stop strings.
    #[must_use]
    pub fn stops(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        }
    }

    /// Refuse what is out of range or not offered.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] naming the parameter.
    pub fn check(&self) -> Result<(), ApiError> {
        let within = |name: &str, value: Option<f64>, low: f64, high: f64| match value {
            Some(v) if !(low..=high).contains(&v) => {
                Err(ApiError::invalid(name, format!("{name} must be between {low} and {high}, not {v}")))
            }
            _ => Ok(()),
        };
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        if self.top_p == Some(0.0) {
            return Err(ApiError::invalid(
                "top_p",
                "top_p must be above 0; use temperature 0 for greedy output",
            ));
        }
        if self.top_k.is_some_and(|k| !(-1..=i64::from(u32::MAX)).contains(&k)) {
            return Err(ApiError::invalid("top_k", "top_k must be -1, 0 or a positive integer"));
        }
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::invalid("n", "only n = 1 is offered"));
        }
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if value.is_some_and(|v| v != 0.0) {
                return Err(ApiError::invalid(
                    name,
                    format!("{name} is not offered; leave it out or send 0"),
                ));
            }
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(ApiError::invalid("logit_bias", "logit_bias is not offered; leave it out"));
        }
        let stops = self.stops();
        if stops.len() > MAX_STOPS {
            return Err(ApiError::invalid("stop", format!("at most {MAX_STOPS} stop strings")));
        }
        if stops.iter().any(|s| s.is_empty() || s.len() > MAX_STOP_OCTETS) {
            return Err(ApiError::invalid(
                "stop",
                format!("a stop string has 1 to {MAX_STOP_OCTETS} octets"),
            ));
        }
        if self.stream_options.is_some() && !self.streams() {
            return Err(ApiError::invalid("stream_options", "stream_options needs stream: true"));
        }
        Ok(())
    }
}

/// `POST v1/completions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The model's name.
    pub model: String,
    /// The prompt.
    pub prompt: Prompt,
    /// Most output tokens; default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<i64>,
    /// Whether to repeat the prompt; not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Log probabilities; not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<i64>,
    /// Not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of: Option<i64>,
    /// Not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub sampling: Sampling,
}

impl CompletionRequest {
    /// Refuse what is out of range or not offered.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] naming the parameter.
    pub fn check(&self) -> Result<(), ApiError> {
        self.sampling.check()?;
        check_max_tokens("max_tokens", self.max_tokens)?;
        if self.echo == Some(true) {
            return Err(ApiError::invalid("echo", "echo is not offered"));
        }
        if self.logprobs.is_some() {
            return Err(ApiError::invalid("logprobs", "logprobs is not offered"));
        }
        if self.best_of.is_some_and(|n| n != 1) {
            return Err(ApiError::invalid("best_of", "only best_of = 1 is offered"));
        }
        if self.suffix.as_ref().is_some_and(|s| !s.is_empty()) {
            return Err(ApiError::invalid("suffix", "suffix is not offered"));
        }
        Ok(())
    }
}

/// Refuse a `max_tokens` that is not positive.
fn check_max_tokens(name: &str, value: Option<i64>) -> Result<(), ApiError> {
    match value {
        Some(n) if n < 1 => Err(ApiError::invalid(name, format!("{name} must be at least 1"))),
        _ => Ok(()),
    }
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentPart {
    /// Only `text` is taken.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    #[serde(default)]
    pub text: String,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "content is a text or a list of parts")]
pub enum MessageContent {
    /// Text.
    Text(String),
    /// Parts, joined.
    Parts(Vec<ContentPart>),
}

/// One message of a chat request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatRequestMessage {
    /// `system`, `user`, `assistant`, …
    pub role: String,
    /// The content.
    #[serde(default)]
    pub content: Option<MessageContent>,
}

impl ChatRequestMessage {
    /// The text of the message.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] for a part that is not text.
    pub fn text(&self) -> Result<String, ApiError> {
        match &self.content {
            None => Ok(String::new()),
            Some(MessageContent::Text(text)) => Ok(text.clone()),
            Some(MessageContent::Parts(parts)) => parts
                .iter()
                .map(|part| match part.kind.as_str() {
                    "text" => Ok(part.text.as_str()),
                    kind => {
                        Err(ApiError::invalid("messages", format!("content of type {kind:?} is not offered")))
                    }
                })
                .collect(),
        }
    }
}

/// `POST v1/chat/completions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The model's name.
    pub model: String,
    /// The messages so far.
    pub messages: Vec<ChatRequestMessage>,
    /// Most output tokens; default: what the context leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<i64>,
    /// The newer name of `max_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<i64>,
    /// Log probabilities; not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Only `{"type": "text"}` is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<serde_json::Value>,
    /// Tools; not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<serde_json::Value>>,
    /// The rest.
    #[serde(flatten)]
    pub sampling: Sampling,
}

impl ChatRequest {
    /// Refuse what is out of range or not offered.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] naming the parameter.
    pub fn check(&self) -> Result<(), ApiError> {
        self.sampling.check()?;
        check_max_tokens("max_tokens", self.max_tokens)?;
        check_max_tokens("max_completion_tokens", self.max_completion_tokens)?;
        if self.messages.is_empty() {
            return Err(ApiError::invalid("messages", "messages is empty"));
        }
        if self.logprobs == Some(true) {
            return Err(ApiError::invalid("logprobs", "logprobs is not offered"));
        }
        if self.response_format.as_ref().is_some_and(|format| format["type"] != "text") {
            return Err(ApiError::invalid("response_format", "only response_format text is offered"));
        }
        if self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(ApiError::invalid("tools", "tools are not offered"));
        }
        Ok(())
    }

    /// The limit on output tokens, whichever name it came under.
    #[must_use]
    pub fn output_limit(&self) -> Option<i64> {
        self.max_completion_tokens.or(self.max_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(extra: &str) -> Result<(), ApiError> {
        let text = format!(r#"{{"model": "m", "prompt": "p"{extra}}}"#);
        serde_json::from_str::<CompletionRequest>(&text).unwrap().check()
    }

    #[test]
    fn parameters_out_of_range_name_themselves() {
        assert_eq!(completion(""), Ok(()));
        assert_eq!(completion(r#", "temperature": 0.0, "top_p": 0.5, "seed": -3, "unknown": 1"#), Ok(()));
        for (extra, name) in [
            (r#", "temperature": 3"#, "temperature"),
            (r#", "top_p": 0"#, "top_p"),
            (r#", "n": 2"#, "n"),
            (r#", "logit_bias": {"35": 1}"#, "logit_bias"),
            (r#", "max_tokens": 0"#, "max_tokens"),
            (r#", "stop": ["a","b","c","d","e"]"#, "stop"),
            (r#", "stop": """#, "stop"),
            (r#", "logprobs": 1"#, "logprobs"),
            (r#", "stream_options": {"include_usage": true}"#, "stream_options"),
        ] {
            let Err(ApiError::InvalidRequest { param, .. }) = completion(extra) else { panic!("{extra}") };
            assert_eq!(param.as_deref(), Some(name), "{extra}");
        }
    }

    #[test]
    fn prompts_come_in_four_forms() {
        for (text, want) in [
            (r#""hi""#, Prompt::Text("hi".into())),
            ("[1, 2]", Prompt::Tokens(vec![1, 2])),
            (r#"["hi"]"#, Prompt::Texts(vec!["hi".into()])),
            ("[[1]]", Prompt::TokenLists(vec![vec![1]])),
        ] {
            assert_eq!(serde_json::from_str::<Prompt>(text).unwrap(), want);
        }
    }
}
