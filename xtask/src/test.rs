//! `cargo xtask test`: every test of the workspace, with what they need at hand.

use std::ffi::OsString;

use crate::error::TaskError;
use crate::model;
use crate::process;
use crate::python;

/// Prepares the model and Python, and runs `cargo test --workspace` with `args`.
///
/// # Errors
/// Something cannot be prepared, or a test fails.
pub(crate) fn run(args: &[OsString]) -> Result<(), TaskError> {
    let model = model::ensure()?;
    let python = python::furnished()?;
    let mut cargo = process::cargo();
    cargo.args(["test", "--workspace"]).args(args);
    cargo.env("KVSP_TEST_MODEL", model).env("KVSP_TEST_PYTHON", &python.python);
    python.equip(&mut cargo);
    process::run(&mut cargo)
}
