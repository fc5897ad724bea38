//! Reading inputs, writing outputs, printing results.

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kvsp_proto::container::{Container, Limits};
use kvsp_proto::descriptor::Descriptor;

use super::Answer;
use super::error::WireError;

/// The whole of a file, or of stdin for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, WireError> {
    let octets = if path == Path::new("-") {
        let mut octets = Vec::new();
        io::stdin().lock().read_to_end(&mut octets).map(|_| octets)
    } else {
        fs::read(path)
    };
    octets.map_err(|source| WireError::Read { path: path.to_owned(), source })
}

/// The descriptor in a file.
pub(super) fn read_descriptor(path: &Path) -> Result<Descriptor, WireError> {
    Descriptor::from_json(&read(path)?)
        .map_err(|source| WireError::Descriptor { path: path.to_owned(), source })
}

/// What the user has on disk is never too large; the octets themselves bound every count.
pub(super) const LIMITS: Limits = Limits { max_octets: u64::MAX, max_layers: u32::MAX };

/// The container in a file.
pub(super) fn read_container(path: &Path) -> Result<Container, WireError> {
    Container::parse(Bytes::from(read(path)?), &LIMITS)
        .map_err(|source| WireError::Container { path: path.to_owned(), source })
}

/// Writes a file so that it is there whole or not at all.
pub(super) fn write_whole(path: &Path, parts: &[&[u8]]) -> Result<(), WireError> {
    write_parts(path, parts).map_err(|source| WireError::Write { path: path.to_owned(), source })
}

fn write_parts(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // As any new file, not private as a temporary one: the umask applies.
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}

/// Prints a result on stdout.
pub(super) fn print(answer: &Answer, json: bool) -> Result<(), WireError> {
    let mut stdout = io::stdout().lock();
    let written =
        if json { writeln!(stdout, "{}", answer.json) } else { writeln!(stdout, "{}", answer.text) };
    match written.and_then(|()| stdout.flush()) {
        // Whoever closed the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(WireError::Stdout),
    }
}
