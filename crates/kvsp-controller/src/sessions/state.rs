//! The folder of the sessions: opened, read, and left.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvsp_core::reshard::Row;
use kvsp_store::state::{
    GroupBounds, GroupCommit, GroupThread, RedbConfig, StateError, StateStore, open_sealed,
};
use tempfile::TempDir;

use super::codec::{RestoreError, Restored, restore};
use crate::config::ControllerConfig;
use crate::lifecycle::{self, RestoredInstances};
use crate::maps;

/// The sessions cannot be read; the controller does not start without them.
#[derive(Debug, thiserror::Error)]
#[error("the sessions in {folder}: {source}")]
pub struct StateOpenError {
    /// The folder.
    pub folder: PathBuf,
    source: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("another controller has them open; one folder is for one controller")]
    InUse,
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Instances(#[from] lifecycle::RestoreError),
    #[error(transparent)]
    Maps(#[from] maps::RestoreError),
    #[error("there is no temporary folder: {0}")]
    Temporary(#[source] io::Error),
    #[error("the store's thread cannot start: {0}")]
    Thread(#[source] io::Error),
}

impl From<StateError> for Why {
    fn from(error: StateError) -> Self {
        match error {
            StateError::InUse => Self::InUse,
            other => Self::Restore(other.into()),
        }
    }
}

/// The state of a controller, as it was left.
pub(crate) struct State {
    pub(crate) commits: GroupCommit,
    pub(crate) sessions: Vec<Restored>,
    pub(crate) instances: RestoredInstances,
    pub(crate) maps: Vec<Row>,
    pub(crate) keeper: Keeper,
}

/// What is left to do at the end.
#[derive(Debug)]
pub(crate) struct Keeper {
    thread: GroupThread,
    temporary: Option<TempDir>,
}

impl State {
    /// Opens the folder of the configuration, or makes a temporary one. Blocks.
    ///
    /// # Errors
    /// [`StateOpenError`].
    pub(crate) fn open(config: &ControllerConfig) -> Result<Self, StateOpenError> {
        let (folder, temporary) = match &config.state {
            Some(folder) => (folder.clone(), None),
            None => {
                let private = Permissions::from_mode(0o700);
                let made = tempfile::Builder::new().prefix("kvsp-controller-").permissions(private).tempdir();
                let made = made.map_err(|error| StateOpenError {
                    folder: std::env::temp_dir(),
                    source: Why::Temporary(error),
                })?;
                tracing::warn!("sessions are kept in a temporary folder and end with this process");
                (made.path().to_path_buf(), Some(made))
            }
        };
        Self::open_in(&folder, config.state_key.as_deref(), temporary)
            .map_err(|source| StateOpenError { folder, source })
    }

    fn open_in(folder: &Path, key: Option<&Path>, temporary: Option<TempDir>) -> Result<Self, Why> {
        let store: Arc<dyn StateStore> = Arc::new(open_sealed(folder, key, RedbConfig::default())?);
        let sessions = restore(store.as_ref())?;
        let instances = lifecycle::restore(store.as_ref())?;
        let maps = maps::restore(store.as_ref())?;
        let (sessions_found, instances_found, maps_found) = (sessions.len(), instances.len(), maps.len());
        tracing::info!(
            sessions = sessions_found,
            instances = instances_found,
            maps = maps_found,
            term = store.term(),
            "restored"
        );
        let (commits, thread) = GroupCommit::start(store, GroupBounds::default()).map_err(Why::Thread)?;
        Ok(Self { commits, sessions, instances, maps, keeper: Keeper { thread, temporary } })
    }
}

impl Keeper {
    /// Ends the store's thread, once nobody has a handle any more, and removes a temporary folder. Blocks.
    pub(crate) fn close(self) {
        self.thread.join();
        if let Some(temporary) = self.temporary
            && let Err(error) = temporary.close()
        {
            tracing::warn!(%error, "the temporary folder of the sessions is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_goes_at_the_end_and_another_one_stays() {
        let State { commits, keeper, .. } = State::open(&ControllerConfig::default()).unwrap();
        let folder = keeper.temporary.as_ref().unwrap().path().to_path_buf();
        assert!(folder.join("key").exists());
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(commits);
        keeper.close();
        assert!(!folder.exists());

        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("a/b");
        let config = ControllerConfig { state: Some(folder.clone()), ..ControllerConfig::default() };
        let State { commits, keeper, .. } = State::open(&config).unwrap();
        let error = State::open(&config).err().unwrap().to_string();
        assert!(error.contains("another controller"), "{error}");
        drop(commits);
        keeper.close();
        assert!(folder.join("key").exists());
    }
}
