//! What can go wrong while a group computes, and what that means for the generation.

use kvsp_client::ClientError;
use kvsp_engine::MergeError;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use super::member;
use crate::engine::ContextError;

/// Why a group did not compute what it was to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// A member did not answer, or has another version, or lacks something.
    #[error("{member}: {source}")]
    Member {
        /// Which.
        member: BaseUri,
        /// What became of the call.
        source: ClientError,
    },
    /// The controller did not tell how the map stands.
    #[error("the controller: {0}")]
    Controller(ClientError),
    /// The map has ended, or is of another model.
    #[error("the context cannot be gone on with: {0}")]
    Ended(String),
    /// This instance, as a member, refused.
    #[error("this instance: {0}")]
    Here(Problem),
    /// The engine did.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The parts do not make a whole.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The map ends before the context does, or something of this instance is gone.
    #[error("nobody covers position {0}")]
    Uncovered(u64),
    /// The engine has other layers than expected.
    #[error("the engine and the pass do not agree on the layers")]
    Layers,
    /// Counts beyond what the wire can say.
    #[error("a count is too large")]
    TooLarge,
    /// The map is about to change, so that nothing is computed at the version that holds still.
    #[error("the map is about to change")]
    Changing,
    /// A leader of a higher epoch has the context.
    #[error("another instance leads the context at a higher epoch")]
    Fenced,
    /// K and V of tokens that are not known here have to be computed.
    #[error("the tokens of the prompt are needed")]
    NeedsPrompt,
}

/// What follows from trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Look how the map stands and do it again.
    Again,
    /// End.
    Over,
    /// End, and ask for the prompt.
    NeedsPrompt,
}

impl Trouble {
    /// What a failed call to a member means.
    pub(super) fn of_member(member: &BaseUri, source: ClientError) -> Self {
        match source.problem_type() {
            Some(ProblemType::StaleEpoch) => Self::Fenced,
            _ => Self::Member { member: member.clone(), source },
        }
    }

    /// What a refusal of this instance itself means.
    pub(super) fn of_here(problem: Problem) -> Self {
        match problem.problem_type() {
            Some(ProblemType::StaleEpoch) => Self::Fenced,
            _ => Self::Here(problem),
        }
    }

    /// What is to be done.
    pub(super) const fn verdict(&self) -> Verdict {
        match self {
            Self::NeedsPrompt => Verdict::NeedsPrompt,
            Self::Ended(_)
            | Self::Fenced
            | Self::TooLarge
            | Self::Layers
            | Self::Context(ContextError::Stopped) => Verdict::Over,
            Self::Member { .. }
            | Self::Controller(_)
            | Self::Here(_)
            | Self::Context(_)
            | Self::Merge(_)
            | Self::Changing
            | Self::Uncovered(_) => Verdict::Again,
        }
    }
}

impl From<Trouble> for Problem {
    /// The answer of a member that computes for a leader.
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Here(problem) => problem,
            Trouble::Fenced => Self::new(ProblemType::StaleEpoch, "another leader has a higher epoch"),
            Trouble::Context(error) => member::problem(error),
            Trouble::Member { source: ClientError::Problem(problem), .. } if problem.status() == 409 => {
                problem
            }
            other => Self::new(ProblemType::LayersUnavailable, other.to_string()),
        }
    }
}
