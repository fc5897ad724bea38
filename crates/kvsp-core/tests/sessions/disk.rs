//! Stable storage: what a commit wrote survives, nothing else does.

use std::collections::BTreeMap;

use kvsp_core::session::{Change, Head, Progress, SEGMENT_TOKENS, Stored};
use kvsp_proto::message::SessionState;
use uuid::Uuid;

#[derive(Debug, Default, Clone)]
pub struct Disk {
    pub heads: BTreeMap<Uuid, Head>,
    progress: BTreeMap<Uuid, Progress>,
    segments: BTreeMap<(Uuid, u32), Vec<u32>>,
}

impl Disk {
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Head(head) => {
                    self.heads.insert(head.session, Head::clone(head));
                }
                Change::Progress { session, progress } => {
                    self.progress.insert(*session, progress.clone());
                }
                Change::Tokens { session, segment, tokens } => {
                    assert!(!tokens.is_empty() && tokens.len() <= SEGMENT_TOKENS);
                    self.segments.insert((*session, *segment), tokens.clone());
                }
                Change::Erase { session, segments, tombstone } => {
                    self.progress.remove(session);
                    (0..*segments).for_each(|segment| {
                        self.segments.remove(&(*session, segment));
                    });
                    let left = self.segments.keys().any(|(of, _)| of == session);
                    assert!(!left, "tokens of an ended session are left behind");
                    match tombstone {
                        Some(head) => self.heads.insert(*session, Head::clone(head)),
                        None => self.heads.remove(session),
                    };
                }
            }
        }
    }

    pub fn scan(&self) -> Vec<Stored> {
        let stored = |head: &Head| {
            let session = head.session;
            let rows = self.segments.range((session, 0)..=(session, u32::MAX));
            Stored {
                segments: rows.clone().count() as u32,
                head: head.clone(),
                progress: self.progress.get(&session).cloned(),
                tokens: rows.flat_map(|(_, tokens)| tokens.iter().copied()).collect(),
            }
        };
        self.heads.values().map(stored).collect()
    }

    /// The output recorded of a session that has not ended.
    pub fn recorded(&self, session: Uuid) -> Option<(u64, Vec<u32>)> {
        let head = self.heads.get(&session)?;
        if head.state == SessionState::Done {
            return None;
        }
        let mut tokens: Vec<u32> = self
            .segments
            .range((session, 0)..=(session, u32::MAX))
            .flat_map(|(_, tokens)| tokens.iter().copied())
            .collect();
        let progress = self.progress.get(&session).filter(|_| head.checkpoint.is_some());
        tokens.truncate(progress.map_or(0, |progress| progress.output_offset as usize));
        Some((head.epoch, tokens))
    }

    pub fn is_done(&self, session: Uuid) -> bool {
        self.heads.get(&session).is_none_or(|head| head.state == SessionState::Done)
    }
}
