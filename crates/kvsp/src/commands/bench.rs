//! `kvsp bench`: how fast the parts are on this machine, beside the limits of the machine itself and servers of
//! others, measured in the same run.

mod block_keys;
mod blocks;
mod checkpoints;
mod child;
mod contest;
mod error;
mod failover;
mod get;
mod goal;
mod hash;
mod index;
mod index_http;
mod limits;
mod machine;
mod measure;
mod model;
mod network;
mod pin;
mod programs;
mod put;
mod report;
mod reshard;
mod row;
mod sessions;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use super::stdout;
use error::BenchError;
use limits::LimitName;
use network::Network;
use report::{Bench, Report};

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BenchName {
    /// Digests of a container, in one pass and in two.
    Hash,
    /// Block keys of a prompt, beside a bare loop over the same HMAC.
    BlockKeys,
    /// Lookups in a large index, and the memory of a replica.
    Lookup,
    /// Retrieval over loopback, beside a raw copy, hashing, and other servers.
    Get,
    /// Storing over loopback, beside a raw copy and hashing.
    Put,
    /// Lookups and publishing over HTTP, beside the bare writing of the answer and Redis.
    IndexHttp,
    /// Durable checkpoints of 64 sessions, beside synced writes and a handler that answers at once.
    Checkpoints,
    /// Output tokens a second with checkpoints and without.
    Sessions,
    /// From the loss of an instance to the next token at the client.
    Failover,
    /// A change of a split context beside the bare copy of what moves, and the pause that decoding sees.
    Reshard,
}

/// Measure the speed of the parts on this machine, beside limits measured in the same run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp bench
  kvsp bench get --quick --json
  kvsp bench checkpoints --state-dir /var/lib/kvsp
  kvsp bench sessions failover --model model.gguf --name org/model

Every figure is a median with the lowest and highest of all rounds; what is compared is measured in turns, and
a ratio is that of one round. GB is 10^9 octets. Where a goal is beside a figure, it is information: it changes
no exit status. nginx and redis-server are measured too where they are installed.")]
pub(crate) struct BenchArgs {
    /// What to measure; without a name everything.
    #[arg(value_enum, value_name = "NAME")]
    names: Vec<BenchName>,
    /// Fewer and smaller rounds: a look, not a measurement.
    #[arg(long)]
    quick: bool,
    /// Directory on the device on which `checkpoints` keeps its state; by default that of temporary files.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    model: model::BenchModel,
    /// Serve a limit to another `kvsp bench` that started this one.
    #[arg(long, hide = true, value_enum)]
    limit: Option<LimitName>,
}

impl BenchArgs {
    /// Measure and print.
    pub(crate) fn run(mut self, json: bool) -> ExitCode {
        if self.names.is_empty() {
            // In this order: what the others leave behind in the allocator would hide memory from `lookup`.
            self.names = vec![
                BenchName::Hash,
                BenchName::BlockKeys,
                BenchName::Lookup,
                BenchName::Get,
                BenchName::Put,
                BenchName::IndexHttp,
                BenchName::Checkpoints,
                BenchName::Sessions,
                BenchName::Failover,
                BenchName::Reshard,
            ];
        }
        match self.measure_and_print(json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kvsp bench: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn measure_and_print(&self, json: bool) -> Result<(), BenchError> {
        if let Some(limit) = self.limit {
            crate::signals::die_with_parent(true).map_err(BenchError::io("the parent process"))?;
            return limit.serve();
        }
        let report = self.measure()?;
        let printed = if json { stdout::print(&report.to_json()) } else { stdout::print(&report.to_text()) };
        printed.map_err(BenchError::io("stdout"))
    }

    fn measure(&self) -> Result<Report, BenchError> {
        let mut report = Report::new(machine::Machine::this());
        let network = Network::enter()?;
        for name in &self.names {
            let mut bench: Bench = match name {
                BenchName::Hash => hash::measure(self.quick)?,
                BenchName::BlockKeys => block_keys::measure(self.quick)?,
                BenchName::Lookup => index::measure(self.quick)?,
                BenchName::Get => get::measure(self.quick)?,
                BenchName::Put => put::measure(self.quick)?,
                BenchName::IndexHttp => index_http::measure(self.quick)?,
                BenchName::Checkpoints => checkpoints::measure(self.quick, self.state_dir.as_deref())?,
                BenchName::Sessions => sessions::measure(self.quick, &self.model)?,
                BenchName::Failover => failover::measure(self.quick, &self.model)?,
                BenchName::Reshard => reshard::measure(self.quick)?,
            };
            if name.uses_network() {
                bench.notes.push(network.note());
            }
            report.add(bench);
        }
        Ok(report)
    }
}

impl BenchName {
    const fn uses_network(self) -> bool {
        !matches!(self, Self::Hash | Self::BlockKeys | Self::Lookup)
    }
}
