//! A change that is given up, and somebody dies when the members are told so.

use nix::sys::signal::Signal;

use crate::group::{Shard, reshard, reshard_whole, settled, shards, split};
use crate::kills::Hall;
use crate::relay::{Blow, Kind, Moment, Victim};
use crate::stream::Sampling;
use crate::support::signal;

/// A newcomer is stopped, and cannot acknowledge; the controller gives the change up and dies.
#[tokio::test]
async fn the_controller_dies_giving_up() {
    const SHORT_MS: u64 = 500;
    let mut hall = Hall::open(Sampling::Greedy).await;
    // The newcomer, which one of the messages is to, acknowledges none.
    for message in 1..=3 {
        let mut stream = hall.cast.ask(&hall.question).await;
        let map = stream.session();
        let (first, before) = split(&hall.cast, &map).await;
        let version = first["version"].as_u64().unwrap();
        let leader = hall.cast.serving(&map).await;
        let [(_, a), (_, b), (last, c)] = &before[..] else { panic!("{before:?}") };
        assert_eq!(*c, leader);
        let (cut, end) = (last.start, last.end);
        stream.until(6).await;
        // Without the first one, who then is to come again.
        let two: [Shard; 2] = [(0..cut, *b), (cut..end, *c)];
        let view = reshard_whole(&hall.cast, &map, (version, &two)).await.expect("the answer goes on");
        let version = view["version"].as_u64().unwrap();
        let newcomer = hall.cast.instances[*a].process.id();
        signal(newcomer, Signal::SIGSTOP);
        let (moment, victim) = (Moment::Before, Victim::Controller);
        let blow = Blow { kind: Kind::Abort, message, moment, victim };
        hall.cast.plan.arm(Some(blow), hall.cast.instances[leader].process.id());
        let next: [Shard; 3] = [(0..cut / 2, *a), (cut / 2..cut, *b), (cut..end, *c)];
        let answer = reshard(&hall.cast, &map, (version, &next), SHORT_MS).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        let struck = hall.struck(&map).await;
        signal(newcomer, Signal::SIGCONT);
        assert!(struck.is_some(), "the answer was over before the change was given up: message {message}");
        hall.cast.revive_controller();
        let view = settled(&hall.cast, &map).await.expect("the answer goes on");
        assert_eq!((&view["version"], shards(&hall.cast, &view)), (&version.into(), two.to_vec()), "{view}");
        let checked = hall.check(&map, stream, &format!("killed before abort {message}")).await;
        assert!(checked.covered, "message {message}");
        hall.cast.all_active().await;
    }
}
