//! The key that a store is sealed with: 32 random octets in a file that nobody else may read.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::rand;
use zeroize::Zeroizing;

/// Octets of a master key.
pub const MASTER_KEY_OCTETS: usize = 32;

/// A key file cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyError {
    /// There is none, and the rows that are there can be read with no other.
    #[error(
        "there is no such key file: it is made only beside the state and when that is new, so name the file that the \
         state was sealed with, or put it back"
    )]
    Missing,
    /// Others than its owner may read or write it.
    #[error(
        "others may use the key file (its mode is {mode:o}): make it 600, and think of the key as known to them"
    )]
    Exposed {
        /// Its permission bits.
        mode: u32,
    },
    /// It is no plain file of 32 octets.
    #[error("the key file must be a plain file of {MASTER_KEY_OCTETS} random octets, and has {0}")]
    Length(u64),
    /// A file of that name is there.
    #[error("a key file is there already")]
    Exists,
    /// The system has no random octets.
    #[error("the system has no random octets")]
    NoRandomness,
    /// The device failed, or the file may not be opened.
    #[error("the key file: {0}")]
    Io(#[source] Arc<io::Error>),
}

impl From<io::Error> for KeyError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Fills with random octets.
pub(super) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut octets = [0; N];
    rand::fill(&mut octets).map_err(|_| KeyError::NoRandomness)?;
    Ok(octets)
}

/// A key from which those of a store's rows are derived. Its memory is wiped when it is dropped.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; MASTER_KEY_OCTETS]>);

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl MasterKey {
    /// A new random key.
    ///
    /// # Errors
    /// [`KeyError::NoRandomness`].
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(Zeroizing::new(random()?)))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyError`]: one that is missing, that others may read, or that is not 32 octets long.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        // A pipe of that name would keep an open without this flag for ever.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut file = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => KeyError::Missing,
            _ => error.into(),
        })?;
        let about = file.metadata()?;
        let mode = about.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { mode });
        }
        if !about.is_file() || about.len() != MASTER_KEY_OCTETS as u64 {
            return Err(KeyError::Length(about.len()));
        }
        let mut key = Self(Zeroizing::new([0; MASTER_KEY_OCTETS]));
        file.read_exact(key.0.as_mut())?;
        Ok(key)
    }

    /// Makes a key file of mode 600 with a new random key: whole and durable, or not there.
    ///
    /// # Errors
    /// [`KeyError::Exists`] where a file has that name, which stays as it is; I/O.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let key = Self::generate()?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let aside = dir.join(format!(".key-{:016x}", u64::from_ne_bytes(random()?)));
        let made = key.write(&aside).and_then(|()| fs::hard_link(&aside, path));
        // Its octets are a secret under this name too.
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => KeyError::Exists,
            _ => error.into(),
        })?;
        File::open(dir)?.sync_all()?;
        Ok(key)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(self.0.as_ref())?;
        file.sync_all()
    }

    pub(super) fn octets(&self) -> &[u8; MASTER_KEY_OCTETS] {
        &self.0
    }
}
