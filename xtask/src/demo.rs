//! `cargo xtask demo`: the main job on a real model.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::TaskError;
use crate::model;
use crate::process;
use crate::workspace;

/// Builds `kvsp`, fetches the model, and becomes `kvsp demo`.
///
/// # Errors
/// Whatever comes before `kvsp` runs; its own status is then that of this process.
pub(crate) fn run(args: &[OsString]) -> Result<(), TaskError> {
    process::run_aside(process::cargo().args(["build", "--release", "--package", "kvsp"]))?;
    let mut demo = Command::new(workspace::target().join("release").join("kvsp"));
    demo.arg("demo");
    if needs_model(args) {
        demo.arg("--model").arg(model::ensure()?);
        if !has_flag(args, "--name") {
            demo.args(["--name", model::NAME]);
        }
    }
    demo.args(args);
    // In the place of this process: a signal, Ctrl-C among them, reaches it, and its status is the status.
    let source = demo.exec();
    Err(process::start_error(&demo, source))
}

/// Not where the caller brings a model, or only asks for help.
fn needs_model(args: &[OsString]) -> bool {
    !["--model", "--help", "-h"].iter().any(|flag| has_flag(args, flag))
}

/// Whether `--flag` or `--flag=value` is there.
fn has_flag(args: &[OsString], flag: &str) -> bool {
    args.iter().any(|arg| {
        let rest = arg.as_encoded_bytes().strip_prefix(OsStr::new(flag).as_encoded_bytes());
        matches!(rest, Some([] | [b'=', ..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_callers_own_is_not_fetched() {
        let needs = |args: &[&str]| needs_model(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(needs(&[]));
        assert!(needs(&["--short", "--models", "--model-x"]));
        assert!(!needs(&["--short", "--model", "tiny"]));
        assert!(!needs(&["--model=tiny"]));
        assert!(!needs(&["--help"]));
    }
}
