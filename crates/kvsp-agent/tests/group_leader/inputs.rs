//! What a leader is told that is wrong, and that the next good request works.

use kvsp_proto::message::MapId;

use crate::oracle::greedy;
use crate::support::{Answer, prompt, send};
use crate::team::Team;

async fn complete(team: &Team, map: &str, length: usize) -> Answer {
    team.try_ask(0, map, &prompt(1, length), 4).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_that_is_none_is_told_so() {
    let team = Team::of(2).await;
    let map: MapId = "good".parse().unwrap();
    team.map(&map, None, &[(30, 0), (60, 1)]);
    assert_eq!(complete(&team, "no map", 20).await.problem(), (400, "kvsp-bad-identifier".into()));
    assert_eq!(complete(&team, "unknown", 20).await.problem(), (404, "kvsp-map-unknown".into()));
    assert_eq!(complete(&team, "good", 60).await.problem(), (422, "kvsp-invalid-shard-map".into()));
    let (text, tokens, _) = team.ask(0, &map, &prompt(1, 50), 4).await;
    assert_eq!(tokens, 4);
    greedy(&prompt(1, 50), 4).assert_same_text(&text, "after refusals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_computation_that_cannot_be_is_refused() {
    let team = Team::of(2).await;
    let job = team.session(1, &[(30, 0), (400, 1)]);
    let prompt = prompt(2, 50);
    let mut told = job.start(&team.instances[0], &prompt, 200).await;
    told.until(10).await;
    let map = job.map();
    let base = &team.instances[1].base;
    let prefill = async |version: u64, body: &str| {
        send(base, "POST", &format!("maps/{map}/{version}/prefill"), body).await.problem()
    };
    let order = |epoch: u64, position: u64, tokens: &str| {
        format!(r#"{{"epoch":{epoch},"position":{position},"tokens":{tokens}}}"#)
    };
    let name = |status: u16, name: &str| (status, name.to_owned());
    assert_eq!(prefill(1, "{}").await, name(400, "kvsp-malformed-json"));
    assert_eq!(prefill(1, &order(1, 40, "[]")).await, name(422, "kvsp-invalid-shard-map"));
    assert_eq!(prefill(1, &order(1, 40, "[99999]")).await, name(422, "kvsp-invalid-shard-map"));
    assert_eq!(prefill(1, &order(1, 29, "[1,2]")).await, name(422, "kvsp-invalid-shard-map"));
    assert_eq!(prefill(1, &order(1, u64::MAX >> 11, "[1,2]")).await, name(422, "kvsp-invalid-shard-map"));
    assert_eq!(prefill(2, &order(1, 40, "[1,2]")).await, name(409, "kvsp-reshard-conflict"));
    assert_eq!(prefill(1, &order(0, 40, "[1,2]")).await, name(409, "kvsp-stale-epoch"));
    told.end().await.unwrap();
    greedy(&prompt, 200).assert_same(&told.tokens, "among refusals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_is_asked_of_the_leader_at_its_version() {
    let team = Team::of(2).await;
    let job = team.session(1, &[(30, 0), (2000, 1)]);
    let mut told = job.start(&team.instances[0], &prompt(2, 50), 1500).await;
    told.until(10).await;
    let shards = team.shards(&[(2000, 1)]);
    // The controller has such a change open, or the leader would find out that it has not.
    team.announce(&job.map(), &shards);
    let shards = serde_json::to_string(&shards).unwrap();
    let length = async |member: usize, map: &str, version: u64, to: u64, shards: &str| {
        let body = format!(r#"{{"to":{to},"shards":{shards}}}"#);
        send(&team.base(member), "POST", &format!("maps/{map}/{version}/length"), &body).await
    };
    let map = job.map().to_string();
    let name = |status: u16, name: &str| (status, name.to_owned());
    assert_eq!(length(0, "other", 1, 2, &shards).await.problem(), name(404, "kvsp-map-unknown"));
    assert_eq!(length(1, &map, 1, 2, &shards).await.problem(), name(404, "kvsp-map-unknown"));
    assert_eq!(length(0, &map, 1, 3, &shards).await.problem(), name(422, "kvsp-invalid-shard-map"));
    assert_eq!(length(0, &map, 1, 2, "[]").await.problem(), name(422, "kvsp-invalid-shard-map"));
    assert_eq!(length(0, &map, 0, 1, &shards).await.problem(), name(409, "kvsp-reshard-conflict"));
    let first = length(0, &map, 1, 2, &shards).await.json()["length"].as_u64().unwrap();
    told.until(80).await;
    let again = length(0, &map, 1, 2, &shards).await.json()["length"].as_u64().unwrap();
    // 49 tokens before the last of the prompt are stored before the first one of the answer.
    assert!(first >= 49 && first == again, "{first} {again}");
}
