//! `cargo xtask check`: what must hold of every commit beside the tests.

use std::path::PathBuf;
use std::process::Command;

use crate::arrows;
use crate::error::TaskError;
use crate::process;
use crate::workspace;

/// The version that is installed where there is none; `deny.toml` is written for it.
const CARGO_DENY: &str = "0.20.2";

/// Runs every check, whatever the others find.
///
/// # Errors
/// Checks that did not pass.
pub(crate) fn run() -> Result<(), TaskError> {
    let mut fmt = process::cargo();
    fmt.args(["fmt", "--all", "--check"]);
    let mut clippy = process::cargo();
    clippy.args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    let mut doc = process::cargo();
    doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    let checks: [(&str, Result<(), TaskError>); 4] = [
        ("formatting", process::run(&mut fmt)),
        ("lints", process::run(&mut clippy)),
        ("documentation", process::run(&mut doc)),
        ("dependencies", dependencies()),
    ];
    let mut findings = Vec::new();
    if !arrows::check()? {
        findings.push("arrows");
    }
    for (name, outcome) in checks {
        match outcome {
            Ok(()) => {}
            Err(TaskError::Failed { .. }) => findings.push(name),
            Err(other) => return Err(other),
        }
    }
    if findings.is_empty() { Ok(()) } else { Err(TaskError::Findings(findings)) }
}

/// Licences, sources and versions. Advisories are left out: their database is fetched from a place that a
/// build behind a mirror of the registry does not reach.
fn dependencies() -> Result<(), TaskError> {
    let mut deny = Command::new(cargo_deny()?);
    deny.current_dir(workspace::root());
    process::run(deny.args(["--log-level", "error", "check", "bans", "licenses", "sources"]))
}

/// cargo-deny of the system, or one of our own.
fn cargo_deny() -> Result<PathBuf, TaskError> {
    let tools = workspace::target().join("tools");
    for program in [PathBuf::from("cargo-deny"), tools.join("bin/cargo-deny")] {
        let version = process::ask(Command::new(&program).arg("--version"));
        if matches!(version, Ok(Some(version)) if version == format!("cargo-deny {CARGO_DENY}")) {
            return Ok(program);
        }
    }
    let mut install = process::cargo();
    install.args(["install", "--locked", "--version", CARGO_DENY, "--root"]).arg(&tools).arg("cargo-deny");
    process::run_aside(&mut install)?;
    Ok(tools.join("bin/cargo-deny"))
}
