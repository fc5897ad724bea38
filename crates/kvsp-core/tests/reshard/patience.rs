//! A member that takes every plan and no commit: each version that it refuses is followed by another, but not at once.

use kvsp_core::reshard::{Answer, Effect, LengthOutcome, Maps, MapsConfig, NewMap, Outcome};
use kvsp_core::time::Time;
use kvsp_proto::message::{MapId, ReshardMessage, Shard, TokenRange};

use crate::world::uri;

const START: Time = Time::from_millis(1_000);

#[test]
fn who_takes_no_commit_does_not_get_version_after_version() {
    let map: MapId = "m".parse().unwrap();
    let all_at = |instance| vec![Shard { tokens: TokenRange::new(0, 8).unwrap(), instance: uri(instance) }];
    let mut maps = Maps::new(MapsConfig::default());
    for instance in [0, 1] {
        maps.instance_reported(&uri(instance), 1, 60_000, START);
    }
    let (compat_id, scope_id) = ("22".repeat(32).parse().unwrap(), "33".repeat(16).parse().unwrap());
    let new =
        NewMap { map: map.clone(), compat_id, scope_id, session: None, shards: all_at(0), leader: None };
    let Outcome::Persist { ticket, .. } = maps.create(new, START).unwrap() else { panic!() };
    maps.persisted(ticket, START);
    let asked = maps.reshard(&map, 1, all_at(1), 500, START).unwrap();
    let Outcome::Persist { ticket, .. } = asked else { panic!() };
    maps.persisted(ticket, START);

    let (mut now, mut effects) = (START, 0);
    while now < START.after_millis(20_000) {
        while let Some(effect) = maps.poll_effect() {
            effects += 1;
            assert!(effects < 1_000, "without a pause");
            match effect {
                Effect::Persist { ticket, .. } => maps.persisted(ticket, now),
                Effect::AskLength { sent, .. } => maps.length(&sent, LengthOutcome::NotLed, now),
                Effect::Send { sent, message } => {
                    let takes = !matches!(*message, ReshardMessage::Commit { .. }) || sent.instance != uri(1);
                    maps.answered(&sent, if takes { Answer::Ok } else { Answer::Refused(409) }, now);
                }
                Effect::Regroup { map, .. } => {
                    if let Outcome::Persist { ticket, .. } = maps.desired(&map, all_at(1), now).unwrap() {
                        maps.persisted(ticket, now);
                    }
                }
                Effect::Forget(_) | Effect::Changed(_) => {}
            }
        }
        now = now.after_millis(50);
        for instance in [0, 1] {
            maps.instance_reported(&uri(instance), 1, 60_000, now);
        }
        maps.tick(now);
    }
    let version = maps.view(&map).unwrap().version;
    // After 0.2 s, 0.4 s and so on up to 5 s.
    assert!((4..=12).contains(&version), "{version} in 20 s");
}
