//! The directives an instance knows: idempotent by identifier, bounded in number.

use std::collections::{BTreeMap, VecDeque};

use kvsp_proto::message::PrefetchDirective;
use uuid::Uuid;

/// The same directive identifier came with another body (problem `kvsp-directive-conflict`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("directive {0} was sent before with another body")]
pub struct DirectiveConflict(pub Uuid);

/// What to do with a directive that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission<T> {
    /// It is new: start it and [`DirectiveTable::insert`] it.
    New,
    /// It is known with the same body: answer as before, load nothing twice.
    Known(T),
}

/// Directives by identifier, each with its owner and a handle of the caller's; the oldest is forgotten first.
#[derive(Debug)]
pub struct DirectiveTable<T> {
    capacity: usize,
    entries: BTreeMap<Uuid, (PrefetchDirective, T)>,
    order: VecDeque<Uuid>,
}

impl<T: Clone> DirectiveTable<T> {
    /// A table of at most `capacity` directives.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, entries: BTreeMap::new(), order: VecDeque::new() }
    }

    /// Judge a directive that arrived.
    ///
    /// # Errors
    /// [`DirectiveConflict`].
    pub fn admit(&self, body: &PrefetchDirective) -> Result<Admission<T>, DirectiveConflict> {
        match self.entries.get(&body.directive) {
            None => Ok(Admission::New),
            Some((known, handle)) if known == body => Ok(Admission::Known(handle.clone())),
            Some(_) => Err(DirectiveConflict(body.directive)),
        }
    }

    /// Remember a new directive; returns the handle of one that was forgotten for it.
    pub fn insert(&mut self, body: PrefetchDirective, handle: T) -> Option<T> {
        let id = body.directive;
        if self.entries.insert(id, (body, handle)).is_none() {
            self.order.push_back(id);
        }
        if self.entries.len() <= self.capacity {
            return None;
        }
        let oldest = self.order.pop_front()?;
        self.entries.remove(&oldest).map(|(_, handle)| handle)
    }

    /// The handle of a directive.
    #[must_use]
    pub fn get(&self, directive: &Uuid) -> Option<&T> {
        self.entries.get(directive).map(|(_, handle)| handle)
    }
}
