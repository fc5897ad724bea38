//! `kvsp sessions` on a controller that has some.

use serde_json::Value;

use crate::cast::Cast;
use crate::stream::Sampling;
use crate::support::run;

/// The exit status and, where stdout is JSON, what it says.
fn sessions(args: &[&str]) -> (Option<i32>, Value, String) {
    let output = run(&[&["sessions"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), serde_json::from_str(&text).unwrap_or_default(), text)
}

#[tokio::test]
async fn sessions_are_listed_and_shown() {
    let cast = Cast::start().await;
    let controller = cast.controller.base();
    let at = ["--controller", controller.as_str()];
    let (status, none, _) = sessions(&[&at[..], &["--json"]].concat());
    assert_eq!((status, none["sessions"].as_array().map(Vec::len)), (Some(0), Some(0)));

    let mut stream = cast.ask(Sampling::Sampled).await;
    stream.until(20).await;
    let session = stream.session();
    let (status, list, _) = sessions(&[&["list"], &at[..], &["--json"]].concat());
    assert_eq!(status, Some(0));
    let first = &list["sessions"][0];
    assert_eq!((first["session"].as_str(), first["epoch"].as_u64()), (Some(session.as_str()), Some(1)));
    let (status, shown, _) = sessions(&[&["show", &session], &at[..], &["--json"]].concat());
    assert_eq!(status, Some(0));
    assert_eq!(shown["session"], first["session"]);
    assert!(shown["output_offset"].as_u64() >= Some(20), "{shown}");
    let (_, _, text) = sessions(&[&["show", &session], &at[..]].concat());
    assert!(text.starts_with(&session) && text.lines().count() == 1, "{text}");
    assert!(text.contains(shown["instance"].as_str().unwrap()), "{text}");

    let unknown = "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";
    assert_eq!(sessions(&[&["show", unknown], &at[..]].concat()).0, Some(5), "a miss");
}
