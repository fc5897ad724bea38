//! From changes to rows.

use bytes::{BufMut as _, Bytes, BytesMut};
use kvsp_core::session::{Change, Head, Progress};
use kvsp_store::state::RowChange;
use uuid::Uuid;

use super::{CHUNK_OCTETS, Table, VERSION};

/// How many rows the heads of some sessions take; what a shorter head leaves over is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HeadRows(Vec<(Uuid, u32)>);

impl HeadRows {
    /// Of the sessions whose heads the changes write, as `known` tells it; a checkpoint writes none.
    pub(crate) fn of(changes: &[Change], known: impl Fn(Uuid) -> u32) -> Self {
        let sessions = changes.iter().filter_map(|change| match change {
            Change::Head(head) => Some(head.session),
            Change::Erase { session, .. } => Some(*session),
            Change::Progress { .. } | Change::Tokens { .. } => None,
        });
        Self(sessions.map(|session| (session, known(session))).collect())
    }

    /// Sessions and how many rows their heads take.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Uuid, u32)> {
        self.0.iter().copied()
    }

    fn change(
        &mut self,
        session: Uuid,
        to: impl FnOnce(u32) -> Result<u32, serde_json::Error>,
    ) -> Result<(), serde_json::Error> {
        if let Some((_, count)) = self.0.iter_mut().find(|(of, _)| *of == session) {
            *count = to(*count)?;
        }
        Ok(())
    }
}

/// The rows of the changes, of whose heads so many are there before; afterwards `heads` is how many are there then.
///
/// # Errors
/// What JSON does not take; no session has such.
pub(crate) fn rows(changes: &[Change], heads: &mut HeadRows) -> Result<Vec<RowChange>, serde_json::Error> {
    let mut rows = Vec::with_capacity(changes.len());
    for change in changes {
        match change {
            Change::Head(head) => heads.change(head.session, |before| put_head(head, before, &mut rows))?,
            Change::Progress { session, progress } => rows.push(progress_row(*session, progress)?),
            Change::Tokens { session, segment, tokens } => {
                rows.push(RowChange::set(Table::Tokens.key(*session, *segment), tokens_value(tokens)));
            }
            Change::Erase { session, segments, tombstone } => {
                rows.push(RowChange::remove(Table::Progress.key(*session, 0)));
                remove(Table::Tokens, *session, 0..*segments, &mut rows);
                heads.change(*session, |before| match tombstone {
                    Some(tombstone) => put_head(tombstone, before, &mut rows),
                    None => {
                        remove(Table::Head, *session, 0..before, &mut rows);
                        Ok(0)
                    }
                })?;
            }
        }
    }
    Ok(rows)
}

fn put_head(head: &Head, before: u32, rows: &mut Vec<RowChange>) -> Result<u32, serde_json::Error> {
    let text = serde_json::to_vec(head)?;
    let mut count = 0;
    for chunk in text.chunks(CHUNK_OCTETS) {
        let mut value = BytesMut::with_capacity(1 + chunk.len());
        value.put_u8(VERSION);
        value.put_slice(chunk);
        rows.push(RowChange::set(Table::Head.key(head.session, count), value.freeze()));
        count += 1;
    }
    remove(Table::Head, head.session, count..before, rows);
    Ok(count)
}

fn progress_row(session: Uuid, progress: &Progress) -> Result<RowChange, serde_json::Error> {
    let mut value = BytesMut::with_capacity(256).writer();
    value.get_mut().put_u8(VERSION);
    serde_json::to_writer(&mut value, progress)?;
    Ok(RowChange::set(Table::Progress.key(session, 0), value.into_inner().freeze()))
}

fn tokens_value(tokens: &[u32]) -> Bytes {
    let mut value = BytesMut::with_capacity(1 + 4 * tokens.len());
    value.put_u8(VERSION);
    tokens.iter().for_each(|token| value.put_u32(*token));
    value.freeze()
}

fn remove(table: Table, session: Uuid, numbers: std::ops::Range<u32>, rows: &mut Vec<RowChange>) {
    rows.extend(numbers.map(|row| RowChange::remove(table.key(session, row))));
}
