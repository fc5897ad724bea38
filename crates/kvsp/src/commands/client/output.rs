//! Reading inputs and writing outputs.

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::error::CommandError;

/// The whole of a file, or of stdin for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let octets = if path == Path::new("-") {
        let mut octets = Vec::new();
        io::stdin().lock().read_to_end(&mut octets).map(|_| octets)
    } else {
        fs::read(path)
    };
    octets.map_err(|source| CommandError::Read { path: path.to_owned(), source })
}

/// Writes a file so that it is there whole or not at all.
pub(super) fn write_whole(path: &Path, octets: &[u8]) -> Result<(), CommandError> {
    write(path, octets).map_err(|source| CommandError::Write { path: path.to_owned(), source })
}

fn write(path: &Path, octets: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // As any new file, not private as a temporary one: the umask applies.
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    file.write_all(octets)?;
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}
