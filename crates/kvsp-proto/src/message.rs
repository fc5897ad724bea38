//! Bodies of requests and answers, beside the records of draft section 4.4. Unknown members are ignored.

mod index;
mod lease;
mod placement;
mod prefetch;
mod root;
mod session;

pub use index::{
    BatchAnswer, BatchRequest, Detail, LookupAnswer, LookupBlock, LookupRequest, ReplicaList, ReplicaName,
    TargetEstimate, TtlAnswer,
};
pub use lease::{LeaseAnswer, LeaseRequest, RenewRequest};
pub use placement::{
    Candidate, InstanceList, InstanceView, PlacedSession, PlacementAnswer, PlacementRequest, StateBody,
};
pub use prefetch::{
    DirectiveBlock, DirectiveState, DirectiveStatus, FailedBlock, FailureReason, LayerOrder,
    PrefetchDirective,
};
pub use root::{Limits, ServiceRoot};
pub use session::{
    CheckpointAppend, FailoverRequest, Needs, PromptRequest, ResumeAnswer, ResumeRequest, SessionAck,
    SessionList, SessionState, SessionView, TokenEvent,
};
