//! `kvsp serve`: one service a process, or all in one.

mod args;
mod model;
mod ready;
mod roles;
mod state;
mod tiers;

use std::process::ExitCode;

pub(crate) use args::ServeArgs;

use crate::config::ConfigError;

/// Why a service did not start or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The command line lacks something.
    #[error("{0}")]
    Usage(String),
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A listener.
    #[error(transparent)]
    Bind(#[from] kvsp_net::service::BindError),
    /// A service.
    #[error(transparent)]
    Serve(#[from] kvsp_net::service::ServeError),
    /// The model.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// The runtime.
    #[error("the runtime cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

impl ServeArgs {
    /// Serve until SIGTERM or SIGINT.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        kvsp_net::telemetry::init(json, tracing::Level::INFO);
        match self.serve(json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kvsp: {error}");
                ExitCode::from(if matches!(error, StartError::Usage(_)) { 2 } else { 1 })
            }
        }
    }

    fn serve(self, json: bool) -> Result<(), StartError> {
        crate::signals::die_with_parent(self.exit_with_parent)?;
        let config = self.merged()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let served = runtime.block_on(roles::run(self.role, config, json));
        // Blocking work that hangs, on a disk say, must not hang the end of the process.
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        served
    }
}
