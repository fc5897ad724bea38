//! What is remembered of instances, as rows of the state store.
//!
//! A key is the table's octet and the SHA-256 of the instance's base URI, which itself may be longer than a key and is
//! nobody's business who has the disk. A value is one octet, the version of its form, and [`InstanceRow`] as JSON.

use bytes::{BufMut as _, Bytes, BytesMut};
use kvsp_core::instances::{InstanceChange, InstanceRow};
use kvsp_proto::digest::sha256;
use kvsp_proto::uri::BaseUri;
use kvsp_store::state::{RowChange, StateError, StateStore};

use crate::tables::INSTANCES;

/// The version of the form of this module.
const VERSION: u8 = 1;

/// What is remembered of instances cannot be read. Nothing is guessed and nothing dropped: an operator decides.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StateError),
    /// A row of a form that this version does not know.
    #[error("it has instances of form {found}, and this version of kvsp reads form {VERSION}")]
    Version {
        /// The form found.
        found: u8,
    },
    /// A row that is not of its form, or not under its key.
    #[error("what it remembers of an instance is not of its form")]
    Corrupt,
}

/// Everything that is remembered.
///
/// # Errors
/// [`RestoreError`].
pub(crate) fn restore(store: &dyn StateStore) -> Result<Vec<InstanceRow>, RestoreError> {
    let mut rows = Vec::new();
    let mut wrong = None;
    let scanned = store.scan(&[INSTANCES], &mut |key, value| match read(key, value) {
        Ok(row) => {
            rows.push(row);
            Ok(())
        }
        Err(error) => {
            wrong = Some(error);
            Err(StateError::Corrupt("a row of the instances"))
        }
    });
    if let Some(error) = wrong {
        return Err(error);
    }
    scanned?;
    Ok(rows)
}

fn read(key: &[u8], value: &[u8]) -> Result<InstanceRow, RestoreError> {
    let form = match value.split_first() {
        Some((&VERSION, form)) => form,
        Some((&found, _)) => return Err(RestoreError::Version { found }),
        None => return Err(RestoreError::Corrupt),
    };
    let row: InstanceRow = serde_json::from_slice(form).map_err(|_| RestoreError::Corrupt)?;
    if self::key(&row.instance) != key {
        return Err(RestoreError::Corrupt);
    }
    Ok(row)
}

/// The rows of some changes.
///
/// # Errors
/// What JSON does not take; no instance has such.
pub(super) fn rows(changes: &[InstanceChange]) -> Result<Vec<RowChange>, serde_json::Error> {
    let row = |change: &InstanceChange| match change {
        InstanceChange::Put(row) => {
            let mut value = BytesMut::with_capacity(256).writer();
            value.get_mut().put_u8(VERSION);
            serde_json::to_writer(&mut value, row)?;
            Ok(RowChange::set(key(&row.instance), value.into_inner().freeze()))
        }
        InstanceChange::Forget(instance) => Ok(RowChange::remove(key(instance))),
    };
    changes.iter().map(row).collect()
}

fn key(instance: &BaseUri) -> Bytes {
    let mut key = [INSTANCES; 33];
    key[1..].copy_from_slice(&sha256(instance.as_str().as_bytes()).0);
    Bytes::copy_from_slice(&key)
}

#[cfg(test)]
mod tests {
    use kvsp_proto::record::InstanceState;
    use kvsp_store::state::MemoryState;

    use super::*;

    fn row(name: &str) -> InstanceRow {
        InstanceRow {
            instance: format!("https://{name}.example/").parse().unwrap(),
            epoch: 9,
            ttl_ms: 3_000,
            state: InstanceState::Sleeping,
            ordered: true,
            migrate: false,
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let store = MemoryState::new();
        let long = "x".repeat(2_000);
        let put = |name: &str| InstanceChange::Put(row(name));
        store.commit(&rows(&[put("a"), put("b"), put(&long)]).unwrap()).unwrap();
        store.commit(&rows(&[InstanceChange::Forget(row("a").instance)]).unwrap()).unwrap();
        let mut restored = restore(&store).unwrap();
        restored.sort_by(|a, b| a.instance.cmp(&b.instance));
        assert_eq!(restored, [row("b"), row(&long)]);
    }

    #[test]
    fn a_row_of_another_form_is_refused() {
        let value = |version: u8, form: &[u8]| [&[version], form].concat();
        let good = serde_json::to_vec(&row("a")).unwrap();
        let read = |key: Bytes, value: Vec<u8>| {
            let store = MemoryState::new();
            store.commit(&[RowChange::set(key, value)]).unwrap();
            restore(&store)
        };
        let own = || key(&row("a").instance);
        assert_eq!(read(own(), value(1, &good)).unwrap(), [row("a")]);
        assert!(matches!(read(own(), value(2, &good)), Err(RestoreError::Version { found: 2 })));
        assert!(matches!(read(own(), value(1, b"{}")), Err(RestoreError::Corrupt)));
        assert!(matches!(read(own(), Vec::new()), Err(RestoreError::Corrupt)));
        let other = key(&row("b").instance);
        assert!(matches!(read(other, value(1, &good)), Err(RestoreError::Corrupt)));
    }
}
