//! Bodies of requests and answers, beside the records of draft section 4.4. Unknown members are ignored.

mod index;
mod lease;
mod placement;
mod prefetch;
mod root;
mod session;
mod shard;

pub use index::{
    BatchAnswer, BatchRequest, Detail, LookupAnswer, LookupBlock, LookupRequest, ReplicaList, ReplicaName,
    TargetEstimate, TtlAnswer,
};
pub use lease::{LeaseAnswer, LeaseRequest, RenewRequest};
pub use placement::{
    Candidate, InstanceList, InstanceView, PlacedSession, PlacementAnswer, PlacementRequest, StateBody,
    StateOrder,
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
pub use shard::{
    BadMapId, BadTokenRange, FetchRange, HeldView, LengthAnswer, LengthRequest, MAX_RESHARD_MS, MAX_SHARDS,
    MapCreate, MapId, MapList, MapVersion, MapView, OpenContext, PendingReshard, Phase, PrefillAnswer,
    PrefillRequest, ReshardAnswer, ReshardMessage, ReshardPlan, ReshardRequest, Shard, TokenRange,
    check_shards,
};
