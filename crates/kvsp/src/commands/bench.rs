//! `kvsp bench`: how fast the parts are on this machine, beside the limits of the machine itself, measured in
//! the same run.

mod block_keys;
mod get;
mod holder;
mod index;
mod machine;
mod measure;
mod raw_copy;
mod report;
mod row;

use std::process::ExitCode;

use kvsp_client::ClientError;
use kvsp_net::service::{BindError, ServeError};

use super::stdout;
use report::{Bench, Report};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BenchName {
    /// Block keys of a prompt, beside a bare loop over the same HMAC.
    BlockKeys,
    /// Lookups in a large index, and the memory of a replica.
    Lookup,
    /// Verified retrieval over loopback, beside a raw copy and bare hashing.
    Get,
}

/// Measure the speed of the parts on this machine, beside limits measured in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp bench
  kvsp bench get --quick --json

Every figure is a median with the lowest and highest of all rounds; what is compared is measured in turns, and
a ratio is that of one round. GB is 10^9 octets.")]
pub(crate) struct BenchArgs {
    /// What to measure; without a name everything.
    #[arg(value_enum, value_name = "NAME")]
    names: Vec<BenchName>,
    /// Fewer and smaller rounds: a look, not a measurement.
    #[arg(long)]
    quick: bool,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("getrusage: {0}")]
    Usage(nix::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the holder: {0}")]
    Bind(#[from] BindError),
    #[error("the holder: {0}")]
    Serve(#[from] ServeError),
    #[error("the generated block is not a container: {0}")]
    Container(#[from] kvsp_proto::container::Malformed),
    #[error("{0} ended before it should")]
    Ended(&'static str),
    #[error("{0}: the two ways do not agree")]
    Differ(&'static str),
}

impl BenchError {
    fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

impl BenchArgs {
    /// Measure and print.
    pub(crate) fn run(mut self, json: bool) -> ExitCode {
        if self.names.is_empty() {
            // In this order: what `get` leaves behind in the allocator would hide memory from `lookup`.
            self.names = vec![BenchName::BlockKeys, BenchName::Lookup, BenchName::Get];
        }
        let printed = self.measure().and_then(|report| {
            let printed =
                if json { stdout::print(&report.to_json()) } else { stdout::print(&report.to_text()) };
            printed.map_err(BenchError::io("stdout"))
        });
        match printed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kvsp bench: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn measure(&self) -> Result<Report, BenchError> {
        let mut report = Report::new(machine::Machine::this());
        for name in &self.names {
            let bench: Bench = match name {
                BenchName::BlockKeys => block_keys::measure(self.quick)?,
                BenchName::Get => get::measure(self.quick)?,
                BenchName::Lookup => index::measure(self.quick)?,
            };
            report.add(bench);
        }
        Ok(report)
    }
}
