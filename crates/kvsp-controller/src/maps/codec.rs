//! Shard maps as rows of the state store, one row a map.
//!
//! A key is the table's octet and the map's identifier. A value is one octet, the version of its form, and a
//! [`Row`] as JSON.

use bytes::Bytes;
use kvsp_core::reshard::Row;
use kvsp_proto::message::MapId;
use kvsp_store::state::{RowChange, StateError, StateStore};

use crate::tables;

/// The version of the form.
const VERSION: u8 = 1;

/// The shard maps cannot be read. Nothing is guessed and nothing dropped: an operator decides.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StateError),
    /// A row of a form that this version does not know.
    #[error("it has a shard map of form {found}, and this version of kvsp reads form {VERSION}")]
    Version {
        /// The form found.
        found: u8,
    },
    /// A row is not of its form.
    #[error("shard map {map}: {what}")]
    Corrupt {
        /// Of which map, as far as that can be told.
        map: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// Every map of a store, ordered by identifier.
///
/// # Errors
/// [`RestoreError`].
pub(crate) fn restore(store: &dyn StateStore) -> Result<Vec<Row>, RestoreError> {
    let mut rows = Vec::new();
    let mut wrong = None;
    let scanned = store.scan(&[tables::MAPS], &mut |key, value| match read(key, value) {
        Ok(row) => {
            rows.push(row);
            Ok(())
        }
        Err(error) => {
            wrong = Some(error);
            Err(StateError::Corrupt("a row of the shard maps"))
        }
    });
    match wrong {
        Some(error) => Err(error),
        None => Ok(scanned.map(|()| rows)?),
    }
}

fn read(key: &[u8], value: &[u8]) -> Result<Row, RestoreError> {
    let name = String::from_utf8_lossy(key.get(1..).unwrap_or_default()).into_owned();
    let corrupt = |what| RestoreError::Corrupt { map: name.clone(), what };
    let form = match value.split_first() {
        Some((&VERSION, form)) => form,
        Some((&found, _)) => return Err(RestoreError::Version { found }),
        None => return Err(corrupt("its row is empty")),
    };
    let row: Row = serde_json::from_slice(form).map_err(|_| corrupt("its row is not of its form"))?;
    if row.map.as_str() == name { Ok(row) } else { Err(corrupt("its row is another map's")) }
}

/// The row of a map.
///
/// # Errors
/// What JSON does not take; no map has such.
pub(crate) fn set(row: &Row) -> Result<RowChange, serde_json::Error> {
    let mut value = vec![VERSION];
    serde_json::to_writer(&mut value, row)?;
    Ok(RowChange::set(key(&row.map), value))
}

/// The end of a map.
pub(crate) fn remove(map: &MapId) -> RowChange {
    RowChange::remove(key(map))
}

fn key(map: &MapId) -> Bytes {
    [&[tables::MAPS], map.as_str().as_bytes()].concat().into()
}
