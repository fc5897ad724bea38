//! Errors in the form of the OpenAI API.

use serde::{Deserialize, Serialize};

/// `{"error": …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorMembers,
}

/// The members of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorMembers {
    /// For people.
    pub message: String,
    /// The class.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<String>,
}

/// Why a request was not answered; one mapping to status and code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A parameter is missing, of the wrong type or out of range.
    #[error("{message}")]
    InvalidRequest {
        /// What is wrong and what would be right.
        message: String,
        /// The parameter at fault.
        param: Option<String>,
    },
    /// The model is not served here.
    #[error("the model {0:?} does not exist; GET v1/models lists those that do")]
    ModelNotFound(String),
    /// The gateway has no answer of that name, or has it no longer.
    #[error("there is no stream of that session here, or no longer")]
    StreamNotFound,
    /// Prompt and output do not fit the context.
    #[error("this model's context is {context} tokens, but the request has {tokens} prompt tokens")]
    ContextLength {
        /// Tokens of the context.
        context: usize,
        /// Tokens of the prompt.
        tokens: usize,
        /// The parameter that holds the prompt.
        param: &'static str,
    },
    /// An instance found the request at fault; passed on as it said it.
    #[error("{}", .0.message)]
    Refused(ErrorMembers),
    /// The body is over the limit.
    #[error("the request body is over {0} octets")]
    TooLarge(u64),
    /// No such path.
    #[error("no such endpoint")]
    NotFound,
    /// The path has no such method.
    #[error("method not allowed")]
    Method,
    /// The caller is refused.
    #[error("{0}")]
    Forbidden(String),
    /// Another media type than JSON.
    #[error("send the body as application/json")]
    MediaType,
    /// No instance can take the request now.
    #[error("{0}")]
    Overloaded(String),
    /// An instance or service behind failed.
    #[error("{0}")]
    Upstream(String),
}

impl ApiError {
    /// A bad parameter.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::InvalidRequest { message: message.into(), param: Some(param.to_owned()) }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::ContextLength { .. } | Self::Refused(_) => 400,
            Self::Forbidden(_) => 403,
            Self::ModelNotFound(_) | Self::StreamNotFound | Self::NotFound => 404,
            Self::Method => 405,
            Self::TooLarge(_) => 413,
            Self::MediaType => 415,
            Self::Upstream(_) => 502,
            Self::Overloaded(_) => 503,
        }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        let (kind, code, param) = match self {
            Self::InvalidRequest { param, .. } => {
                ("invalid_request_error", Some("invalid_request_error"), param.clone())
            }
            Self::Refused(error) => return ErrorBody { error: error.clone() },
            Self::ModelNotFound(_) => {
                ("invalid_request_error", Some("model_not_found"), Some("model".to_owned()))
            }
            Self::StreamNotFound => {
                ("invalid_request_error", Some("stream_not_found"), Some("session".to_owned()))
            }
            Self::ContextLength { param, .. } => {
                ("invalid_request_error", Some("context_length_exceeded"), Some((*param).to_owned()))
            }
            Self::TooLarge(_) => ("invalid_request_error", Some("request_too_large"), None),
            Self::NotFound | Self::Method | Self::MediaType => ("invalid_request_error", None, None),
            Self::Forbidden(_) => ("permission_error", Some("forbidden"), None),
            Self::Overloaded(_) => ("server_error", Some("overloaded"), None),
            Self::Upstream(_) => ("server_error", Some("upstream_failed"), None),
        };
        ErrorBody {
            error: ErrorMembers {
                message: self.to_string(),
                kind: kind.to_owned(),
                param,
                code: code.map(str::to_owned),
            },
        }
    }
}
