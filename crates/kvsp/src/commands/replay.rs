//! `kvsp replay`: which hits the eviction policies would have had on a recorded trace, beside the optimum.

mod optimum;
mod report;
mod tier;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use kvsp_core::tier::{LeastRecentlyUsed, TinyLfu};

use super::stdout;
use report::{Outcome, Report};
use tier::Touch;
use trace::{Trace, TraceError};

/// Blocks of the tiers that are tried where none are named.
const DEFAULT_BLOCKS: [u64; 2] = [10_000, 30_000];

/// A way to choose the block that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyName {
    /// The block that was not used for longest.
    Lru,
    /// By recency and frequency: the default of holders and instances.
    TinyLfu,
    /// The optimum, which knows the future.
    Belady,
    /// Each of them.
    All,
}

impl PolicyName {
    fn each(self) -> Vec<Self> {
        match self {
            Self::All => vec![Self::Lru, Self::TinyLfu, Self::Belady],
            one => vec![one],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::TinyLfu => "tiny-lfu",
            Self::Belady => "belady",
            Self::All => "all",
        }
    }
}

/// Replay a trace of prompts against the eviction policies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp replay trace.jsonl
  kvsp replay trace.jsonl --policy tiny-lfu --blocks 10000 --blocks 50000 --json

A trace has one JSON object a line, a request, with `input_length` in tokens and `hash_ids`, the identifiers of
the prompt's blocks, each of which stands for its whole prefix. Only complete blocks have keys: where
`input_length` is no multiple of --block-tokens, the last identifier is left out.

A request looks all its blocks up; its hits are the leading ones that are held. Then all are stored, and the
policy evicts until --blocks are left. lru is told of a request's blocks from head to tail. tiny-lfu is told as a
holder is: of the prefix that is held, then of the new blocks. The code of both is that of the services; no
octets are moved.

belady evicts the block whose next request is farthest away, and of the blocks that this holds of the one
farthest from the head of its prompt. As a block is never requested without those before it, a head never goes
before its tail, leading hits are all hits, and no policy can have more.")]
pub(crate) struct ReplayArgs {
    /// The trace (JSON Lines).
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// What to try.
    #[arg(long, value_enum, default_value = "all")]
    policy: PolicyName,
    /// Blocks that the tier holds; may be repeated. By default 10000 and 30000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    blocks: Vec<u64>,
    /// Tokens of a block.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..))]
    block_tokens: u64,
}

/// A replay fails.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("cannot write to stdout: {0}")]
    Stdout(std::io::Error),
}

impl ReplayArgs {
    /// Replay and print.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        let printed = self.report().map_err(ReplayError::Trace).and_then(|report| {
            let printed =
                if json { stdout::print(&report.to_json()) } else { stdout::print(&report.to_text()) };
            printed.map_err(ReplayError::Stdout)
        });
        match printed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kvsp replay: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn report(self) -> Result<Report, TraceError> {
        let trace = Trace::read(&self.trace, self.block_tokens)?;
        let mut sizes = self.blocks;
        if sizes.is_empty() {
            sizes.extend(DEFAULT_BLOCKS);
        }
        let mut outcomes = Vec::new();
        for blocks in sizes {
            for policy in self.policy.each() {
                outcomes.push(Outcome { policy: policy.name(), blocks, hits: hits(&trace, policy, blocks) });
            }
        }
        Ok(Report {
            requests: trace.requests.len(),
            looked_up: trace.requests.iter().map(|blocks| count(blocks.len())).sum(),
            unbounded: hits(&trace, PolicyName::Lru, u64::MAX),
            outcomes,
        })
    }
}

fn hits(trace: &Trace, policy: PolicyName, blocks: u64) -> u64 {
    match policy {
        PolicyName::Lru => {
            tier::hits(trace, Box::<LeastRecentlyUsed<u64>>::default(), blocks, Touch::Ascending)
        }
        PolicyName::TinyLfu => tier::hits(trace, Box::<TinyLfu<u64>>::default(), blocks, Touch::Prefix),
        PolicyName::Belady | PolicyName::All => optimum::hits(trace, blocks),
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
