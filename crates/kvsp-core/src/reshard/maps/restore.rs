//! A controller's start: from what is on stable storage.

use std::collections::BTreeSet;

use super::entry::{Entry, Running, Stage};
use super::row::{Decision, Row, Spare};
use super::{Maps, MapsConfig};
use crate::time::Time;

impl Maps {
    /// The maps that were found. A change that was decided is told again to all its members; one that was not is aborted,
    /// because who had acknowledged it is not known. Each instance that has something has the TTL of its last status
    /// to report.
    #[must_use]
    pub fn restore(config: MapsConfig, rows: Vec<Row>, now: Time) -> Self {
        let mut machine = Self::new(config);
        machine.look(now);
        for row in rows {
            let map = row.map.clone();
            let keepers = row.spare.iter().map(|row| (row.instance.clone(), row.epoch, row.ttl_ms));
            let owners = row.members.iter().map(|row| (row.instance.clone(), row.epoch, row.ttl_ms));
            let known: Vec<_> = owners.chain(keepers).filter(|(_, epoch, _)| *epoch > 0).collect();
            machine.insert(Entry {
                running: row.plan.as_ref().map(|_| running(&row, now)),
                ..Entry::new(row, true)
            });
            for (instance, epoch, ttl_ms) in known {
                machine.expect(&instance, epoch, ttl_ms, now);
            }
            let (decided, ended) = machine.maps.get(&map).map_or((false, false), |entry| {
                let decided = entry.row.plan.as_ref().is_some_and(|plan| plan.decision.is_some());
                (decided, entry.row.ended)
            });
            if ended {
                machine.ended(&map, now);
            } else if decided {
                machine.decided(&map, now);
            }
        }
        // One row may tell of a later start of an instance than another.
        for (map, instances) in
            machine.maps.iter().map(|(map, entry)| (map.clone(), entry.instances())).collect::<Vec<_>>()
        {
            instances.iter().for_each(|instance| machine.lose_if_gone(&map, instance));
            machine.catch_up(&map, now);
        }
        machine
    }
}

/// A change as it is known after a start.
fn running(row: &Row, now: Time) -> Running {
    let decision = row.plan.as_ref().and_then(|plan| plan.decision);
    let keepers = row.spare.iter().map(|spare| (spare.instance.clone(), spare.epoch));
    let owners = row.members.iter().map(|member| (member.instance.clone(), member.epoch));
    Running {
        stage: Stage::Preparing,
        deadline: now,
        deciding: Some(decision.unwrap_or(Decision::Abort)),
        length: None,
        epochs: keepers.chain(owners).collect(),
        lost: BTreeSet::new(),
        spare: row.spare.iter().map(Spare::shard).collect(),
        gone: BTreeSet::new(),
        acked: BTreeSet::new(),
        outs: std::collections::BTreeMap::new(),
    }
}
