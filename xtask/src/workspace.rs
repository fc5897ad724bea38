//! Where things are.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // Cargo tells where it runs this; the place where it was compiled may be another checkout's, where two
    // share a target directory.
    let running = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = running.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf());
    manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// The directory of everything built or fetched.
pub(crate) fn target() -> PathBuf {
    // Cargo is run in the root, so a relative directory is one of the root.
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
