//! `kvsp map`.

use serde_json::{Value, json};

use crate::cast::{Cast, outcome};

fn shards(view: &Value) -> Vec<(u64, u64, &str)> {
    let read = |shard: &Value| {
        let at = |index: usize| shard["tokens"][index].as_u64().unwrap();
        (at(0), at(1))
    };
    let all = view["shards"].as_array().unwrap();
    all.iter().map(|s| (read(s).0, read(s).1, s["instance"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_is_created_shown_split_anew_and_ended() {
    let cast = Cast::start(2, &[], &[]).await;
    let (a, b) = (cast.uri(0), cast.uri(1));
    let (first, second) = (format!("0-50={a}"), format!("50-100={b}"));
    let none = cast.kvsp(&["map", "show"]);
    assert_eq!((none.status, &none.json), (Some(0), &json!({"maps": []})));

    let compat = cast.view(0).await["compat_ids"][0].as_str().unwrap().to_owned();
    let scope = outcome(&["scope-id", "--scope-key", &cast.key, "--json"]).json;
    let space = ["--compat", &compat, "--scope", scope["scope_id"].as_str().unwrap()];
    let create = [&["map", "create", "book", "--shards", &first, "--shards", &second][..], &space].concat();
    let created = cast.kvsp(&create);
    assert_eq!((created.status, &created.json["version"]), (Some(0), &json!(1)), "{created:?}");
    assert_eq!(shards(&created.json), [(0, 50, a.as_str()), (50, 100, b.as_str())]);
    assert_eq!(cast.kvsp(&create).status, Some(0), "the same again");
    let other = format!("0-100={a}");
    let other = [&["map", "create", "book", "--shards", &other][..], &space].concat();
    assert_eq!(cast.kvsp(&other).status, Some(1), "another split under the same name");

    // 100 tokens in two shards of other lengths; what stays where it is is not moved.
    let (first, second) = (format!("0-70={a}"), format!("70-100={b}"));
    let reshard = ["map", "reshard", "book", "--shards", &first, &second, "--wait"];
    let done = cast.kvsp(&reshard);
    assert_eq!((done.status, &done.json["version"]), (Some(0), &json!(2)), "{done:?}");
    assert_eq!(shards(&done.json), [(0, 70, a.as_str()), (70, 100, b.as_str())]);
    let shown = cast.kvsp(&["map", "show", "book"]);
    assert_eq!((shown.status, &shown.json["version"]), (Some(0), &json!(2)));
    let stale = [&reshard[..], &["--from", "1"]].concat();
    let stale = cast.kvsp(&stale);
    assert!(stale.status == Some(1) && stale.stderr.contains("kvsp-reshard-conflict"), "{stale:?}");
    let controller = cast.controller.base();
    let text = outcome(&["map", "show", "book", "--controller", controller.as_str()]).text;
    assert_eq!(text, format!("book  version 2\n  0-70  {a}\n  70-100  {b}\n"));

    assert_eq!(cast.kvsp(&["map", "end", "book"]).status, Some(0));
    assert_eq!(cast.kvsp(&["map", "show", "book"]).status, Some(5), "a miss");
    assert_eq!(cast.kvsp(&reshard).status, Some(5), "a miss");
}

/// Members refuse a context of a model that they do not run: the change is given up, and the command says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_given_up_fails() {
    let cast = Cast::start(2, &[], &[]).await;
    let (first, second) = (format!("0-50={}", cast.uri(0)), format!("0-50={}", cast.uri(1)));
    let (compat, scope) = ("11".repeat(32), "22".repeat(16));
    let create = ["map", "create", "alien", "--shards", &first, "--compat", &compat, "--scope", &scope];
    assert_eq!(cast.kvsp(&create).status, Some(0));
    let given_up = cast.kvsp(&["map", "reshard", "alien", "--shards", &second, "--wait"]);
    assert_eq!(given_up.status, Some(1), "{given_up:?}");
    assert!(given_up.stderr.contains("version 1 of map alien holds"), "{given_up:?}");
    assert_eq!(cast.kvsp(&["map", "show", "alien"]).json["version"], 1);
}

#[test]
fn what_is_no_split_is_not_sent() {
    let at = ["--controller", "http://127.0.0.1:9/kvsp/"];
    let cases: &[(&[&str], i32)] = &[
        (&["map"], 2),
        (&["map", "reshard", "book"], 2),
        (&["map", "reshard", "no/name", "--shards", "0-1=http://h/"], 2),
        (&["map", "reshard", "book", "--shards", "1-2=http://h/"], 2),
        (&["map", "reshard", "book", "--shards", "0-2=http://h/", "3-4=http://h/"], 2),
        (&["map", "reshard", "book", "--shards", "2-0=http://h/"], 2),
        (&["map", "reshard", "book", "--shards", "0-2=h"], 2),
        (&["map", "reshard", "book", "--shards", "0-2=http://h/"], 3),
        (&["map", "show", "book"], 3),
        (&["map", "show"], 3),
    ];
    for (args, status) in cases {
        let told = outcome(&[args, &at[..]].concat());
        assert_eq!(told.status, Some(*status), "{args:?}: {told:?}");
        assert!(told.text.is_empty(), "{args:?}: {told:?}");
    }
    for command in ["show", "create", "reshard", "end"] {
        let help = outcome(&["map", command, "--help"]);
        assert!(help.status == Some(0) && help.text.contains(&format!("kvsp map {command} ")), "{help:?}");
    }
}
