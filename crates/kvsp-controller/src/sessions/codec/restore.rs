//! From rows to sessions.

use std::collections::BTreeMap;

use kvsp_core::session::{Head, Progress, Stored};
use kvsp_store::state::{StateError, StateStore};
use uuid::Uuid;

use super::{Table, VERSION};
use crate::tables;

/// The state of sessions cannot be read. Nothing is guessed and nothing dropped: an operator decides.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StateError),
    /// A row of a form that this version does not know.
    #[error("it has rows of form {found}, and this version of kvsp reads form {VERSION}")]
    Version {
        /// The form found.
        found: u8,
    },
    /// A row of a table that this version does not know.
    #[error("it has a table {0} that this version of kvsp does not know")]
    Table(u8),
    /// A row is missing, in the wrong place or not of its form.
    #[error("session {session}: {what}")]
    Corrupt {
        /// Of which session; nil where that cannot be told.
        session: Uuid,
        /// What is wrong.
        what: &'static str,
    },
}

/// A session as it was last recorded, and how many rows its head takes.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) stored: Stored,
    pub(crate) head_rows: u32,
}

/// The forms of one session's rows.
#[derive(Debug, Default)]
struct Rows {
    head: Chunks,
    progress: Chunks,
    tokens: Chunks,
}

/// Consecutive rows of a table, put together.
#[derive(Debug, Default)]
struct Chunks {
    count: u32,
    octets: Vec<u8>,
}

/// Every session of a store, ordered by identifier.
///
/// # Errors
/// [`RestoreError`].
pub(crate) fn restore(store: &dyn StateStore) -> Result<Vec<Restored>, RestoreError> {
    let mut sessions: BTreeMap<Uuid, Rows> = BTreeMap::new();
    let mut wrong = None;
    let scanned = store.scan(&[], &mut |key, value| {
        collect(&mut sessions, key, value).map_err(|error| {
            wrong = Some(error);
            StateError::Corrupt("a row of the sessions")
        })
    });
    if let Some(error) = wrong {
        return Err(error);
    }
    scanned?;
    sessions.into_iter().map(|(session, rows)| assemble(session, &rows)).collect()
}

fn collect(sessions: &mut BTreeMap<Uuid, Rows>, key: &[u8], value: &[u8]) -> Result<(), RestoreError> {
    let (&octet, rest) = key.split_first().ok_or(RestoreError::Table(0))?;
    if matches!(octet, tables::INSTANCES | tables::MAPS) {
        return Ok(());
    }
    let table = Table::ALL.into_iter().find(|table| *table as u8 == octet);
    let table = table.ok_or(RestoreError::Table(octet))?;
    let Some((session, row)) = rest.split_first_chunk::<16>() else {
        return Err(RestoreError::Corrupt { session: Uuid::nil(), what: "a key is too short" });
    };
    let session = Uuid::from_bytes(*session);
    let corrupt = |what| RestoreError::Corrupt { session, what };
    let form = match value.split_first() {
        Some((&VERSION, form)) => form,
        Some((&found, _)) => return Err(RestoreError::Version { found }),
        None => return Err(corrupt("a row is empty")),
    };
    let rows = sessions.entry(session).or_default();
    let chunks = match table {
        Table::Head => &mut rows.head,
        Table::Progress => &mut rows.progress,
        Table::Tokens => &mut rows.tokens,
    };
    // Rows come in the order of their keys.
    if row != chunks.count.to_be_bytes() {
        return Err(corrupt("a row is missing, or its key is not of its form"));
    }
    chunks.count = chunks.count.saturating_add(1);
    chunks.octets.extend_from_slice(form);
    Ok(())
}

fn assemble(session: Uuid, rows: &Rows) -> Result<Restored, RestoreError> {
    let corrupt = |what| RestoreError::Corrupt { session, what };
    let head: Head = serde_json::from_slice(&rows.head.octets)
        .map_err(|_| corrupt("its head is missing or not of its form"))?;
    if head.session != session {
        return Err(corrupt("its head is another session's"));
    }
    let progress: Option<Progress> = match rows.progress.count {
        0 => None,
        _ => Some(
            serde_json::from_slice(&rows.progress.octets)
                .map_err(|_| corrupt("its progress is not of its form"))?,
        ),
    };
    let (tokens, rest) = rows.tokens.octets.as_chunks::<4>();
    let tokens: Vec<u32> = tokens.iter().map(|token| u32::from_be_bytes(*token)).collect();
    if !rest.is_empty() {
        return Err(corrupt("its tokens are not whole"));
    }
    let stored = Stored { head, progress, tokens, segments: rows.tokens.count };
    Ok(Restored { stored, head_rows: rows.head.count })
}
