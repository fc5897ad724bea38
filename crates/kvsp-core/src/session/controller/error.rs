//! Why a request on a session is refused, and the problem type of each reason.

use kvsp_proto::problem::{Problem, ProblemType};

/// A request on a session is refused. The order of the variants is the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// No such session, or it is done (`kvsp-session-unknown`).
    #[error("no such session, or it has ended")]
    Unknown,
    /// An epoch lower than the session's (`kvsp-stale-epoch`).
    #[error("the session is at epoch {known}; another instance has it")]
    StaleEpoch {
        /// The session's epoch.
        known: u64,
    },
    /// An epoch higher than the session's (`kvsp-unknown-epoch`).
    #[error("the session is at epoch {known} and has not been at a higher one")]
    UnknownEpoch {
        /// The session's epoch.
        known: u64,
    },
    /// A false checkpoint (`kvsp-invalid-checkpoint`).
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It contradicts what is recorded (`kvsp-checkpoint-conflict`).
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// More output than a session may have (`kvsp-limit-exceeded`).
    #[error("a session holds at most {max} output tokens")]
    TooLong {
        /// The limit.
        max: u64,
    },
    /// No room for it (`kvsp-overloaded`).
    #[error("the controller holds as many sessions as it may")]
    Full,
}

/// Why a checkpoint is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It names another session than the path.
    #[error("member session is not the session of the path")]
    Session,
    /// Another compatibility than the placement's.
    #[error("member compat_id is not that of the session's placement")]
    Compat,
    /// Another scope than the placement's.
    #[error("member scope_id is not that of the session's placement")]
    Scope,
    /// `generated` is not `output_offset` long.
    #[error("member generated is not output_offset tokens long")]
    Offset,
    /// A tail that is a block.
    #[error("member prompt_tail holds a complete block of {block_tokens} tokens")]
    PromptTail {
        /// Tokens of a block.
        block_tokens: u32,
    },
}

/// What a checkpoint contradicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// There is none to append to.
    #[error("no checkpoint is recorded that could be extended")]
    NotRecorded,
    /// Another prompt.
    #[error("the prompt is not the one recorded")]
    Prompt,
    /// Another token.
    #[error("the output token of index {index} is not the one recorded")]
    Tokens {
        /// The first index that differs.
        index: u64,
    },
    /// Tokens between are missing.
    #[error("member from_offset is beyond the {recorded} tokens recorded")]
    Gap {
        /// Tokens recorded.
        recorded: u64,
    },
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        let detail = error.to_string();
        match error {
            SessionError::Unknown => Self::new(ProblemType::SessionUnknown, detail),
            SessionError::StaleEpoch { known } => {
                Self::new(ProblemType::StaleEpoch, detail).with("epoch", known)
            }
            SessionError::UnknownEpoch { known } => {
                Self::new(ProblemType::UnknownEpoch, detail).with("epoch", known)
            }
            SessionError::Invalid(_) => Self::new(ProblemType::InvalidCheckpoint, detail),
            SessionError::Conflict(_) => Self::new(ProblemType::CheckpointConflict, detail),
            SessionError::TooLong { .. } => Self::new(ProblemType::LimitExceeded, detail),
            SessionError::Full => Self::new(ProblemType::Overloaded, detail).retry_after(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_problem_type() {
        let cases = [
            (SessionError::Unknown, "kvsp-session-unknown", 404),
            (SessionError::StaleEpoch { known: 3 }, "kvsp-stale-epoch", 409),
            (SessionError::UnknownEpoch { known: 3 }, "kvsp-unknown-epoch", 409),
            (Invalid::Session.into(), "kvsp-invalid-checkpoint", 422),
            (Conflict::NotRecorded.into(), "kvsp-checkpoint-conflict", 409),
            (SessionError::TooLong { max: 1 }, "kvsp-limit-exceeded", 413),
            (SessionError::Full, "kvsp-overloaded", 503),
        ];
        for (error, name, status) in cases {
            let problem = Problem::from(error);
            assert_eq!(problem.problem_type().map(ProblemType::name), Some(name));
            assert_eq!(problem.status(), status);
        }
    }
}
