//! What must hold after every step. It sees what crosses the machines' borders and the disk, never their inside.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_proto::message::{SessionState, SessionView};
use uuid::Uuid;

use crate::disk::Disk;
use crate::net::Body;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A token was delivered that contradicts one delivered before at the same index.
    Altered { session: Uuid, index: u64 },
    /// An index was delivered out of order.
    OutOfOrder { session: Uuid, index: u64 },
    /// Delivered output that an acknowledged checkpoint contradicts.
    NotOneChain { session: Uuid, index: usize },
    /// A token of a sampler that is not deterministic was released without an acknowledgement.
    ReleasedEarly { session: Uuid, index: u64 },
    /// What was acknowledged is not on stable storage.
    AckLost { session: Uuid, acknowledged: usize },
    /// Two acknowledgements contradict each other.
    AcksContradict { session: Uuid },
    /// Recorded tokens were shortened or changed.
    RecordChanged { session: Uuid },
    /// The epoch fell.
    EpochFell { session: Uuid },
    /// Two instances serve one epoch.
    SharedEpoch { session: Uuid, epoch: u64 },
    /// A message of a former epoch was accepted.
    OldEpochAccepted { session: Uuid, epoch: u64, known: u64 },
    /// A session failed over, and nothing had happened to its instance.
    Storm { session: Uuid },
    /// A session failed though it could have gone on.
    Failed { session: Uuid },
    /// All is healed, and output is missing.
    Gap { jobs: Vec<(usize, u64, u64)> },
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub violation: Option<Violation>,
    acknowledged: BTreeMap<Uuid, Vec<u32>>,
    visible: BTreeMap<Uuid, Vec<u32>>,
    views: BTreeMap<Uuid, SessionView>,
    serving: BTreeMap<(Uuid, u64), usize>,
    epochs: BTreeMap<Uuid, u64>,
    delivered: BTreeMap<Uuid, Vec<u32>>,
    lost: BTreeSet<Uuid>,
    ended: BTreeSet<Uuid>,
    /// What a run came to, so that a run that does nothing is noticed.
    pub failovers: u64,
    pub acks: u64,
}

impl Oracle {
    fn report(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// An instance begins to serve an epoch.
    pub fn serves(&mut self, session: Uuid, epoch: u64, instance: usize) {
        if *self.serving.entry((session, epoch)).or_insert(instance) != instance {
            self.report(Violation::SharedEpoch { session, epoch });
        }
    }

    /// The controller hands out an acknowledgement of `body`, at `offset`.
    pub fn acknowledged(&mut self, session: Uuid, body: &Body, offset: u64) {
        self.acks += 1;
        let known = self.epochs.get(&session).copied().unwrap_or(0);
        let epoch = body.epoch();
        if epoch < known {
            self.report(Violation::OldEpochAccepted { session, epoch, known });
        }
        let acknowledged = self.acknowledged.entry(session).or_default();
        let (from, sent) = match body {
            Body::Whole(body) => (0, &body.generated),
            Body::Append(body) => (body.from_offset as usize, &body.append),
        };
        let mut contradict = from > acknowledged.len() && (offset as usize) < from;
        for (index, token) in (from..offset as usize).zip(sent) {
            match acknowledged.get(index) {
                Some(known) => contradict |= known != token,
                // Between there is what was recorded and whose acknowledgement got lost.
                None if index > acknowledged.len() => break,
                None => acknowledged.push(*token),
            }
        }
        if contradict {
            self.report(Violation::AcksContradict { session });
        }
    }

    /// An instance releases a token.
    pub fn released(&mut self, session: Uuid, deterministic: bool, index: u64, token: u32) {
        let recorded = self.visible.get(&session).map_or(&[][..], Vec::as_slice);
        let acknowledged = self.acknowledged.get(&session).map_or(&[][..], Vec::as_slice);
        let covered = |tokens: &[u32]| tokens.get(index as usize) == Some(&token);
        if !deterministic && !covered(acknowledged) && !covered(recorded) && !self.ended.contains(&session) {
            self.report(Violation::ReleasedEarly { session, index });
        }
    }

    /// The front end, which knows of the second epoch, delivers a token of the first to a client that has
    /// `client` already.
    pub fn delivered(&mut self, session: Uuid, epochs: (u64, u64), index: u64, token: u32, client: &[u32]) {
        let (epoch, known) = epochs;
        if epoch < known {
            self.report(Violation::OldEpochAccepted { session, epoch, known });
        }
        match client.get(index as usize) {
            Some(before) if *before != token => self.report(Violation::Altered { session, index }),
            None if index as usize != client.len() => self.report(Violation::OutOfOrder { session, index }),
            _ => {}
        }
        let delivered = self.delivered.entry(session).or_default();
        if index as usize == delivered.len() {
            delivered.push(token);
        }
    }

    /// The front end found that two samples were about to be mixed.
    pub fn mismatch(&mut self, session: Uuid, index: u64) {
        self.report(Violation::Altered { session, index });
    }

    /// The instance of a session is lost: it may fail over once.
    pub fn may_fail_over(&mut self, session: Uuid) {
        self.lost.insert(session);
    }

    /// The sessions at an instance, as the controller last showed them.
    pub fn sessions_at(&self, instance: &str) -> Vec<Uuid> {
        let at = self.views.iter().filter(|(_, view)| view.instance.as_str() == instance);
        at.map(|(session, _)| *session).collect()
    }

    /// What is on stable storage, after every step.
    pub fn check_disk(&mut self, disk: &Disk) {
        let mut broken = None;
        for (session, acknowledged) in &self.acknowledged {
            if disk.is_done(*session) && disk.heads.contains_key(session) {
                self.ended.insert(*session);
            }
            if self.ended.contains(session) {
                continue;
            }
            let recorded = disk.recorded(*session).map(|(_, tokens)| tokens).unwrap_or_default();
            if !recorded.starts_with(acknowledged) {
                broken = Some(Violation::AckLost { session: *session, acknowledged: acknowledged.len() });
            }
            let delivered = self.delivered.get(session).map_or(&[][..], Vec::as_slice);
            if let Some(index) = delivered.iter().zip(&recorded).position(|(a, b)| a != b) {
                broken = Some(Violation::NotOneChain { session: *session, index });
            }
        }
        if let Some(violation) = broken {
            self.report(violation);
        }
    }

    /// What the controller shows, after every step that it is up.
    pub fn check_view(&mut self, view: SessionView, recorded: Vec<u32>) {
        let session = view.session;
        let highest = self.epochs.entry(session).or_insert(view.epoch);
        let known = *highest;
        *highest = known.max(view.epoch);
        if view.epoch < known {
            self.report(Violation::EpochFell { session });
        }
        match view.state {
            SessionState::Done => {
                self.ended.insert(session);
            }
            SessionState::Failed => self.report(Violation::Failed { session }),
            SessionState::Running | SessionState::Resuming => {
                let before = self.visible.entry(session).or_default();
                if recorded.starts_with(before) {
                    *before = recorded;
                } else {
                    self.report(Violation::RecordChanged { session });
                }
            }
        }
        let begun = view.state == SessionState::Resuming
            && self.views.get(&session).is_some_and(|before| before.state == SessionState::Running);
        if begun {
            self.failovers += 1;
            if !self.lost.remove(&session) {
                self.report(Violation::Storm { session });
            }
        }
        self.views.insert(session, view);
    }
}
