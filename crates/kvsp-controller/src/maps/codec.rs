//! Shard maps as rows of the state store, one row a map.
//!
//! A key is the table's octet and the SHA-256 of the map's identifier, which is nobody's business who has the disk. A
//! value is one octet, the version of its form, and a [`Row`] as JSON.

use bytes::Bytes;
use kvsp_core::reshard::Row;
use kvsp_proto::digest::sha256;
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
    /// A row that is not of its form, or not under its key.
    #[error("what it remembers of a shard map is not of its form")]
    Corrupt,
}

/// Every map of a store.
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

fn read(octets: &[u8], value: &[u8]) -> Result<Row, RestoreError> {
    let form = match value.split_first() {
        Some((&VERSION, form)) => form,
        Some((&found, _)) => return Err(RestoreError::Version { found }),
        None => return Err(RestoreError::Corrupt),
    };
    let row: Row = serde_json::from_slice(form).map_err(|_| RestoreError::Corrupt)?;
    if key(&row.map) == octets { Ok(row) } else { Err(RestoreError::Corrupt) }
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
    [&[tables::MAPS][..], &sha256(map.as_str().as_bytes()).0].concat().into()
}

#[cfg(test)]
mod tests {
    use kvsp_core::reshard::{Decision, MemberRow, PlanRow, Spare};
    use kvsp_proto::id::{CompatId, ScopeId};
    use kvsp_proto::message::{MAX_SHARDS, Shard, TokenRange};
    use kvsp_store::state::{MAX_VALUE_OCTETS, MemoryState};

    use super::*;
    use crate::routes::MAX_URI_OCTETS;

    fn shards(count: u64, uri: impl Fn(u64) -> String) -> Vec<Shard> {
        // As long as numbers of tokens can be.
        let at = |n: u64| (1 << 31) + n;
        let start = |n: u64| if n == 0 { 0 } else { at(n) };
        let shard = |n| Shard {
            tokens: TokenRange::new(start(n), at(n + 1)).unwrap(),
            instance: uri(n).parse().unwrap(),
        };
        (0..count).map(shard).collect()
    }

    fn row(map: &str, shards: Vec<Shard>) -> Row {
        let members: Vec<_> = shards.iter().map(|shard| shard.instance.clone()).collect();
        Row {
            map: map.parse().unwrap(),
            compat_id: CompatId([1; 32]),
            scope_id: ScopeId([2; 16]),
            session: Some(uuid::Uuid::from_u128(7)),
            version: u64::MAX,
            attempt: Some(u64::MAX),
            members: members
                .iter()
                .map(|instance| MemberRow { instance: instance.clone(), epoch: 1 << 52, ttl_ms: 1 << 40 })
                .collect(),
            spare: shards
                .iter()
                .map(|shard| Spare {
                    tokens: shard.tokens,
                    instance: shard.instance.clone(),
                    epoch: 1 << 52,
                    ttl_ms: 1 << 40,
                })
                .collect(),
            attempts: u64::MAX,
            plan: Some(PlanRow {
                attempt: u64::MAX,
                to: u64::MAX,
                former: shards.clone(),
                shards: shards.clone(),
                members,
                deadline_ms: 600_000,
                decision: Some(Decision::Commit),
            }),
            shards,
            ended: false,
        }
    }

    #[test]
    fn what_is_set_is_found_until_it_is_removed() {
        let store = MemoryState::default();
        let short = |n| format!("http://i{n}/kvsp/");
        let rows = [row("a", shards(2, short)), row("b", shards(1, short))];
        let changes: Vec<RowChange> = rows.iter().map(|row| set(row).unwrap()).collect();
        store.commit(&changes).unwrap();
        let mut found = restore(&store).unwrap();
        found.sort_by(|a, b| a.map.cmp(&b.map));
        assert_eq!(found, rows);
        store.commit(&[remove(&rows[0].map)]).unwrap();
        assert_eq!(restore(&store).unwrap(), rows[1..]);
    }

    #[test]
    fn what_is_not_of_its_form_is_not_guessed() {
        let good = set(&row("a", shards(1, |_| "http://i/kvsp/".into()))).unwrap();
        let value = good.value.clone().unwrap();
        let cases = [
            ("form 2", [&[2], &value[1..]].concat()),
            ("not of its form", Vec::new()),
            ("not of its form", vec![VERSION]),
            ("not of its form", value[..value.len() - 1].to_vec()),
        ];
        for (why, value) in cases {
            let store = MemoryState::default();
            store.commit(&[RowChange::set(good.key.clone(), value)]).unwrap();
            let error = restore(&store).unwrap_err().to_string();
            assert!(error.contains(why), "{error} for {why}");
        }
        let store = MemoryState::default();
        store.commit(&[RowChange::set(key(&"b".parse().unwrap()), value)]).unwrap();
        assert!(matches!(restore(&store), Err(RestoreError::Corrupt)), "another map's");
    }

    #[test]
    fn the_largest_map_is_one_row() {
        let each = MAX_URI_OCTETS / MAX_SHARDS;
        let uri = |n: u64| {
            let start = format!("http://i{n}/");
            format!("{start}{}/", "x".repeat(each - start.len() - 1))
        };
        let largest = set(&row(&"m".repeat(128), shards(MAX_SHARDS as u64, uri))).unwrap();
        let octets = largest.value.unwrap().len();
        assert!(octets <= MAX_VALUE_OCTETS, "{octets}");
    }
}
