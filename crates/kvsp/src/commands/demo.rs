//! `kvsp demo`: a small fleet of real processes answers questions about a document, the second instance
//! with the KV cache of the first; then one is killed in the middle of an answer, and the other goes on with it; then
//! the document is split over three of them, and split anew while they answer.

mod ask;
mod report;
mod second;
mod story;
mod third;

use std::path::PathBuf;
use std::process::ExitCode;

use report::Report;

use super::failover::FailoverError;
use super::fleet::{ChangeError, Fleet, FleetError};
use crate::signals::StopSignals;

/// Start a fleet on loopback, ask it about a document, show what the second instance saved, kill one in the middle
/// of an answer, and answer with the context split over three.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp demo --model SmolLM2-135M-Instruct.gguf --name HuggingFaceTB/SmolLM2-135M-Instruct
  kvsp demo --model tiny

Exit status 0 means that every check in the table holds: the texts are equal, the tokens were matched, every
octet that was fetched was verified, and, from 2,000 prompt tokens on, the first token came at least ten times
sooner; the sampled answer whose instance was killed at a random token is, token by token, the one that nothing
interrupted; and the answer whose context was split over three instances, then two, one and three, is the one of a
single instance, with not an octet moved for what stayed in place.")]
pub(crate) struct DemoArgs {
    /// The model: a Hugging Face folder, a GGUF file, or `tiny`.
    #[arg(long, value_name = "PATH|tiny")]
    model: String,
    /// The model's name; required for a path.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The document to ask about; default: the one that comes with the program.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Use only the beginning of the document: equality is checked, the ratio is not.
    #[arg(long)]
    short: bool,
    /// Output tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 48)]
    max_tokens: u32,
    /// Keep the directory with the logs of the processes.
    #[arg(long)]
    keep_logs: bool,
}

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("the answer: {0}")]
    Failover(#[from] FailoverError),
    #[error("the third act: {0}")]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Client(#[from] kvsp_client::ClientError),
    #[error("the gateway answered {status}: {body}")]
    Gateway { status: u16, body: String },
    #[error("an answer cannot be read: {0}")]
    Answer(String),
    #[error("{0} did not happen in time")]
    Late(&'static str),
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

impl DemoArgs {
    /// Show the demo; the exit status says whether every check held.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        // One thread: the kernel ties the life of the children to the thread that started them.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let shown = match runtime {
            Ok(runtime) => runtime.block_on(self.show()),
            Err(error) => Err(DemoError::io("the runtime")(error)),
        };
        match shown {
            Ok(report) => {
                report.print(json);
                if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                eprintln!("kvsp demo: {error}");
                ExitCode::FAILURE
            }
        }
    }

    async fn show(&self) -> Result<Report, DemoError> {
        let mut signals = StopSignals::new().map_err(DemoError::io("catching signals"))?;
        let mut fleet = Fleet::new("kvsp-demo-", self.keep_logs)?;
        let told = tokio::select! {
            told = story::tell(self, &mut fleet) => told,
            () = signals.asked() => Err(DemoError::Interrupted),
        };
        fleet.stop().await;
        told
    }
}
