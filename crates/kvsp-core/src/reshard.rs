//! Contexts split over instances by token range, and their resharding (draft section 6.9, profile section 8).

mod ranges;

pub use ranges::Ranges;
