//! What of instances outlives the controller's process (draft section 6.3: epochs are remembered, and so are orders).

use std::collections::BTreeMap;
use std::time::Duration;

use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;
use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::{Instances, InstancesConfig, StateError};
use crate::time::Time;

/// How late a report may be on a busy machine.
const LATE: Duration = Duration::from_millis(250);

/// What is remembered of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// The instance.
    pub instance: BaseUri,
    /// The highest epoch seen.
    pub epoch: u64,
    /// The TTL of a status of that epoch in ms: after a restart of the controller it has so long to report.
    pub ttl_ms: u64,
    /// The state it is to be in.
    pub state: InstanceState,
    /// Whether that is an order; else it is the state that the instance took up by itself.
    #[serde(default)]
    pub ordered: bool,
    /// Whether its sessions are to go on elsewhere.
    #[serde(default)]
    pub migrate: bool,
}

impl InstanceRow {
    /// Whether both remember the same; how long a status lasts is not worth a write.
    fn agrees(&self, other: &Self) -> bool {
        Self { ttl_ms: 0, ..self.clone() } == Self { ttl_ms: 0, ..other.clone() }
    }
}

/// A change of what is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceChange {
    /// Remember this of an instance in place of what was.
    Put(InstanceRow),
    /// Forget an instance.
    Forget(BaseUri),
}

/// An instance that has not reported since the controller's start.
#[derive(Debug, Clone)]
pub(super) struct Unheard {
    pub(super) row: InstanceRow,
    /// By when it has reported where it is alive.
    pub(super) report_by: Time,
    /// By when it is to report, or has failed.
    pub(super) deadline: Time,
}

impl Instances {
    /// What was remembered, at the start of the controller. Each instance has the TTL of its last status to report;
    /// until then it is not shown.
    #[must_use]
    pub fn restore(config: InstancesConfig, rows: Vec<InstanceRow>, now: Time) -> Self {
        let mut all = Self::new(config, now);
        for row in rows {
            let ttl_ms = row.ttl_ms.min(config.max_ttl_ms);
            let (report_by, deadline) = (now.after_millis(ttl_ms / 3) + LATE, now.after_millis(ttl_ms));
            all.recorded.insert(row.instance.clone(), row.clone());
            all.unheard.insert(row.instance.clone(), Unheard { row, report_by, deadline });
        }
        all
    }

    /// Until when a report of an instance that was active before the controller's start is to be expected: one comes
    /// every third of a TTL. `None` where none is, any more.
    #[must_use]
    pub fn expected_until(&mut self, now: Time) -> Option<Time> {
        self.look(now);
        let active = self.unheard.values().filter(|unheard| unheard.row.state == InstanceState::Active);
        active.map(|unheard| unheard.report_by).filter(|until| *until > now).max()
    }

    /// Whether what is known of an instance is on stable storage. An answer that tells of it waits for that.
    #[must_use]
    pub fn is_recorded(&self, instance: &BaseUri) -> bool {
        match (self.row(instance), self.recorded.get(instance)) {
            (Some(row), Some(recorded)) => row.agrees(recorded),
            (None, None) => true,
            _ => false,
        }
    }

    /// What is to be written so that everything known is on stable storage.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<InstanceChange> {
        let rows: BTreeMap<&BaseUri, InstanceRow> = self
            .entries
            .iter()
            .map(|(uri, entry)| (uri, entry.row()))
            .chain(self.unheard.iter().map(|(uri, unheard)| (uri, unheard.row.clone())))
            .collect();
        let gone = self.recorded.keys().filter(|uri| !rows.contains_key(uri)).cloned();
        let mut changes: Vec<InstanceChange> = gone.map(InstanceChange::Forget).collect();
        let changed = rows.into_iter().filter_map(|(uri, row)| {
            let known = self.recorded.get(uri).is_some_and(|recorded| recorded.agrees(&row));
            (!known).then_some(InstanceChange::Put(row))
        });
        changes.extend(changed);
        changes
    }

    /// Changes are on stable storage. Those of one call after another, in the order in which they were written.
    pub fn recorded(&mut self, changes: Vec<InstanceChange>) {
        for change in changes {
            match change {
                InstanceChange::Put(row) => {
                    self.recorded.insert(row.instance.clone(), row);
                }
                InstanceChange::Forget(instance) => {
                    self.recorded.remove(&instance);
                }
            }
        }
    }

    /// An order that could not be written is taken back: what was remembered before stands.
    pub fn take_back(&mut self, instance: &BaseUri) {
        let row = self.recorded.get(instance);
        if let Some(entry) = self.entries.get_mut(instance) {
            entry.take_back(row);
        } else if let (Some(unheard), Some(row)) = (self.unheard.get_mut(instance), row) {
            unheard.row.clone_from(row);
        }
    }

    /// Orders a state of an instance that has not reported since the start.
    pub(super) fn order_unheard(
        &mut self,
        instance: &BaseUri,
        state: InstanceState,
        migrate: bool,
        now: Time,
    ) -> Result<InstanceState, StateError> {
        let unheard = self.unheard.get_mut(instance).ok_or(StateError::Unknown)?;
        if unheard.deadline <= now {
            return Err(StateError::Failed);
        }
        (unheard.row.state, unheard.row.ordered, unheard.row.migrate) = (state, true, migrate);
        Ok(state)
    }

    /// The one that makes room for a new instance: the longest failed, one that was never heard of again among them.
    pub(super) fn longest_failed(&self, now: Time) -> Option<BaseUri> {
        let failed = self.entries.iter().filter(|(_, entry)| entry.state() == InstanceState::Failed);
        let silent = self.unheard.iter().filter(|(_, unheard)| unheard.deadline <= now);
        failed
            .map(|(uri, entry)| (entry.deadline(), uri))
            .chain(silent.map(|(uri, unheard)| (unheard.deadline, uri)))
            .min()
            .map(|(_, uri)| uri.clone())
    }

    fn row(&self, instance: &BaseUri) -> Option<InstanceRow> {
        let heard = self.entries.get(instance).map(Entry::row);
        heard.or_else(|| self.unheard.get(instance).map(|unheard| unheard.row.clone()))
    }
}
