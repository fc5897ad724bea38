//! Tiers: which blocks a holder keeps where, within byte caps that are never overrun, and what goes when
//! room is needed (draft section 6.1, profile section 5 "Holder").

mod floors;
mod holdings;
mod level;
mod pins;
mod policy;
mod shelf;
mod tiny_lfu;

pub use floors::{FloorsExceed, ScopeFloors};
pub use holdings::{
    AdmitError, Block, Cut, Holdings, HoldingsConfig, LeaseOf, Removed, Room, TierSettings, Watermarks,
};
pub use level::{Level, PerLevel};
pub use pins::PinId;
pub use policy::{EvictionPolicy, LeastRecentlyUsed};
pub use shelf::Shelf;
pub use tiny_lfu::TinyLfu;
