//! Why a task failed.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

/// A task failed; what the programs it ran had to say is on the terminal already.
#[derive(Debug)]
pub(crate) enum TaskError {
    /// The command line.
    Usage(String),
    /// A program could not be started.
    Start { program: String, source: io::Error },
    /// A program ended badly.
    Failed { program: String, status: ExitStatus },
    /// Something is needed that is not there; the text says what to do.
    Missing(String),
    /// A file or directory.
    File { path: PathBuf, source: io::Error },
    /// Checks that did not pass.
    Findings(Vec<&'static str>),
}

impl TaskError {
    /// 2 for a wrong command line, the status of a program that failed, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed { status, .. } => {
                ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
            }
            _ => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) => write!(f, "{what}; `cargo xtask help` lists the tasks"),
            Self::Start { program, source } => write!(f, "{program} cannot be started: {source}"),
            Self::Failed { program, status } => write!(f, "{program} failed: {status}"),
            Self::Missing(what) => f.write_str(what),
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Findings(checks) => write!(f, "did not pass: {}", checks.join(", ")),
        }
    }
}
