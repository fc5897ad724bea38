//! Contexts split over instances by token range, and their resharding (draft section 6.9, profile section 8).
//!
//! [`Maps`] is the controller's side: versions, plans, and one decision about each. [`Member`] is the instance's: what
//! it keeps, loads and frees. [`GroupPolicy`] chooses the group. [`plan_for`] and [`cover`] say what follows from a
//! split; [`Ranges`] are the sets of positions that all of it is about.

mod maps;
mod member;
mod policy;
mod ranges;
mod split;

pub use maps::{
    Answer, Change, Decision, Effect, LengthOutcome, MapError, Maps, MapsConfig, MemberRow, NewMap, Outcome,
    PlanRow, Row, Sent, Spare, Ticket,
};
pub use member::{Ask, Asked, Load, Member, MemberConfig, MemberError, Opened, Planned};
pub use policy::{GroupCandidate, GroupPolicy};
pub use ranges::Ranges;
pub use split::{Copies, Cover, PlanParts, cover, instances_of, plan_for, ranges_of};
