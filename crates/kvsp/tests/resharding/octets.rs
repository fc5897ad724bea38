//! What a change of a map moves: what its plan demands and not an octet more, and for what stays in place none.

use crate::cast::OUTPUT;
use crate::group::{Shard, counters, reshard_whole, split};
use crate::kills::Hall;
use crate::stream::Sampling;

/// Octets of K and V of one token of the tiny model: 4 layers, 2 heads of 16 elements of two octets.
const TOKEN: u64 = 4 * 2 * 2 * 16 * 2;

const FETCHED: &str = "kvsp_reshard_octets_total{direction=\"fetched\"}";
const RETAINED: &str = "kvsp_reshard_retained_tokens_total";

#[tokio::test]
async fn three_two_one_three_in_the_middle_of_an_answer() {
    let hall = Hall::open(Sampling::Greedy).await;
    let cast = &hall.cast;
    let mut stream = cast.ask(&hall.question).await;
    let map = stream.session();
    let (first, before) = split(cast, &map).await;
    let mut version = first["version"].as_u64().unwrap();
    let [(_, a), (_, b), (last, c)] = &before[..] else { panic!("{before:?}") };
    let leader = cast.serving(&map).await;
    assert_eq!(*c, leader, "the last shard, which grows, is the leader's");
    let (cut, end) = (hall.prompt / 3 + 1, last.end);
    let second = last.start;
    // Odd boundaries, all below the prompt's end, so that what moves is known to the token.
    let steps: [(Vec<Shard>, [u64; 3]); 3] = [
        (vec![(0..second, *b), (second..end, *c)], [0, before[0].0.end, 0]),
        (vec![(0..end, *c)], [0, 0, second]),
        (vec![(0..cut, *a), (cut..second + 3, *b), (second + 3..end, *c)], [cut, second + 3 - cut, 0]),
    ];
    assert!(second + 3 < hall.prompt);
    for (step, (shards, moved)) in steps.iter().enumerate() {
        stream.until(10 + 20 * step as u64).await;
        let fetched = counters(cast, FETCHED).await;
        let view = reshard_whole(cast, &map, (version, shards)).await.expect("the answer goes on");
        assert_eq!(view["version"], version + 1, "{view}");
        version += 1;
        let now = counters(cast, FETCHED).await;
        for (instance, tokens) in [(a, moved[0]), (b, moved[1]), (c, moved[2])] {
            let octets = now[*instance] - fetched[*instance];
            assert_eq!(
                octets,
                tokens * TOKEN,
                "step {step}, instance {instance}, {tokens} tokens: {shards:?}"
            );
        }
    }
    let retained = counters(cast, RETAINED).await;
    assert!(retained[*b] >= second - before[0].0.end, "{retained:?}");
    assert!(retained[*c] >= hall.prompt - 3 - second, "{retained:?}");
    let heard = stream.whole().await;
    assert_eq!(heard.last().unwrap().tokens(), OUTPUT);
    hall.hold(&heard, "3, 2, 1, 3");
    hall.is_forgotten(&map).await;
}
