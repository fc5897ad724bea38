//! Contexts that are split over instances by token range (draft section 6.9, profile section 8): what this
//! instance holds of them as a member, and those that it leads.

mod member;
mod routes;
mod transfer;

use kvsp_net::metrics::Metrics;
use kvsp_proto::uri::BaseUri;

pub(crate) use member::keep;
pub(crate) use routes::routes;

/// The split contexts of an instance.
pub(crate) struct Group {
    pub(crate) members: member::Members,
}

impl Group {
    pub(crate) fn new(base: BaseUri, metrics: &Metrics) -> Self {
        Self { members: member::Members::new(base, metrics) }
    }

    /// Whether nothing is held, prepared or led.
    pub(crate) fn is_idle(&self) -> bool {
        self.members.is_idle()
    }
}
