//! The official OpenAI client for Python talks to the gateway.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{MODEL, Process};

/// A Python with the client: the one that `cargo xtask test` prepared, else one prepared the same way now.
fn python() -> Command {
    if let Some(python) = std::env::var_os("KVSP_TEST_PYTHON") {
        return Command::new(python);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let prepared = Command::new(cargo).args(["xtask", "python"]).current_dir(root).output().unwrap();
    let told = String::from_utf8(prepared.stdout).unwrap();
    assert!(
        prepared.status.success(),
        "no Python with the openai package could be prepared; `cargo xtask python` says:\n{}",
        String::from_utf8_lossy(&prepared.stderr)
    );
    let mut lines = told.lines().map(PathBuf::from);
    let mut python = Command::new(lines.next().expect("the path of a Python"));
    if let Some(packages) = lines.next() {
        python.env("PYTHONPATH", packages);
    }
    python
}

#[test]
fn the_official_client_is_served() {
    let dir = TempDir::new().unwrap();
    let all = Process::serve(dir.path(), &["all", "--model", "tiny"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fleet/openai_client.py");
    let output = python()
        .arg(script)
        .args([&all.uri("gateway").join("v1"), MODEL])
        // A proxy of the environment is not for loopback.
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
