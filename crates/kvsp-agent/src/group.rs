//! Contexts that are split over instances by token range (draft section 6.9, profile section 8): what this
//! instance holds of them as a member, and those that it leads.

mod cover;
mod generation;
mod leader;
mod member;
mod prefill;
mod remote;
mod routes;
mod transfer;
mod trouble;

use kvsp_net::metrics::Metrics;
use kvsp_proto::uri::BaseUri;

pub(crate) use generation::{LeadOrder, submit};
pub(crate) use leader::{LeadError, Leads, admit, map_header};
pub(crate) use member::keep;
pub(crate) use routes::routes;

/// The split contexts of an instance.
pub(crate) struct Group {
    pub(crate) members: member::Members,
    pub(crate) leads: Leads,
}

impl Group {
    pub(crate) fn new(base: BaseUri, metrics: &Metrics) -> Self {
        Self { members: member::Members::new(base, metrics), leads: Leads::new(metrics) }
    }

    /// Whether nothing is held, prepared or led.
    pub(crate) fn is_idle(&self) -> bool {
        self.members.is_idle() && self.leads.count() == 0
    }
}
