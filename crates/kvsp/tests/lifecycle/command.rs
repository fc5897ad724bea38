//! The operator's commands.

use kvsp_proto::uri::BaseUri;
use serde_json::Value;

use crate::cast::{Cast, Settings};
use crate::support::kvsp;

/// A fleet that splits nothing.
pub(crate) fn settings(instances: usize) -> Settings {
    Settings { instances, controller: String::new(), instance: String::new() }
}

/// Runs `kvsp ARGS --controller … --json` to its end, beside what else the test does; its exit status and what it
/// printed.
pub(crate) async fn run(cast: &Cast, args: &[&str]) -> (i32, Value) {
    let controller = cast.controller.base();
    let mut command = kvsp();
    command.args(args).args(["--controller", controller.as_str(), "--json"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let told = if told.is_empty() { Value::Null } else { serde_json::from_str(&told).unwrap() };
    let status = output.status.code().unwrap();
    if status != 0 {
        eprintln!("{args:?}: {status}: {}", String::from_utf8_lossy(&output.stderr));
    }
    (status, told)
}

/// The same about one instance, which must succeed; the state that it is in afterwards.
pub(crate) async fn order(cast: &Cast, args: &[&str], instance: &BaseUri) -> String {
    let (status, told) = run(cast, &[args, &[instance.as_str()]].concat()).await;
    assert_eq!(status, 0, "{args:?}: {told}");
    assert_eq!(told["instance"], instance.as_str(), "{told}");
    told["state"].as_str().unwrap().to_owned()
}
