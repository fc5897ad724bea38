//! The commands that need no peer: identifiers, block keys, containers and digests (profile section 10).

mod block;
mod error;
mod files;
mod identity;
mod model;
mod verify;

use std::process::ExitCode;

use serde_json::Value;

use block::{InspectArgs, SliceArgs, TranscodeArgs};
use error::WireError;
use identity::{BlockKeysArgs, CompatIdArgs, ScopeIdArgs};
use model::{DescriptorArgs, DigestCommand};
use verify::VerifyArgs;

/// Commands on files alone.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum WireCommand {
    /// Compute the Compatibility ID of a descriptor.
    CompatId(CompatIdArgs),
    /// Compute the Scope ID of a scope key.
    ScopeId(ScopeIdArgs),
    /// Compute the Block Keys of a token sequence.
    BlockKeys(BlockKeysArgs),
    /// Look into, check and change block containers.
    #[command(subcommand)]
    Block(BlockCommand),
    /// Digest the files of a model.
    #[command(subcommand)]
    Digest(DigestCommand),
    /// Write the Compatibility Descriptor of a model.
    Descriptor(DescriptorArgs),
}

/// Commands on one container.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BlockCommand {
    /// Show a container's header and digests.
    Inspect(InspectArgs),
    /// Recompute every digest and check it, against a record and a descriptor where given.
    Verify(VerifyArgs),
    /// Cut a range of layers out of a container.
    Slice(SliceArgs),
    /// Change the codec of a container.
    Transcode(TranscodeArgs),
}

impl WireCommand {
    /// Runs the command: the result on stdout, as JSON where asked for, an error as one line on
    /// stderr. Exit status: 0 ok, 1 failed, 4 verification failed.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        match self.answer().and_then(|answer| files::print(&answer, json)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kvsp: {error}");
                ExitCode::from(error.exit_status())
            }
        }
    }

    fn answer(self) -> Result<Answer, WireError> {
        match self {
            Self::CompatId(args) => args.answer(),
            Self::ScopeId(args) => args.answer(),
            Self::BlockKeys(args) => args.answer(),
            Self::Block(BlockCommand::Inspect(args)) => args.answer(),
            Self::Block(BlockCommand::Verify(args)) => args.answer(),
            Self::Block(BlockCommand::Slice(args)) => args.answer(),
            Self::Block(BlockCommand::Transcode(args)) => args.answer(),
            Self::Digest(command) => command.answer(),
            Self::Descriptor(args) => args.answer(),
        }
    }
}

/// A result in its two forms.
struct Answer {
    json: Value,
    text: String,
}
