//! The commands that talk to services: `put`, `get`, `lookup`, `status`, `sessions`, `events`, `drain`, `sleep`,
//! `wake` and `map` (profile section 10).

mod error;
mod events;
mod get;
mod lifecycle;
mod lookup;
mod maps;
mod output;
mod peers;
mod put;
mod sessions;
mod status;
mod wait;

use std::process::ExitCode;

use serde_json::Value;

use error::CommandError;
pub(crate) use peers::PeerArgs;

use super::stdout;

/// Commands on services that run.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClientCommand {
    /// Store a block at a holder.
    Put(put::PutArgs),
    /// Retrieve a block and verify it.
    Get(get::GetArgs),
    /// Ask an Index Service how much of a prompt is cached, and where.
    Lookup(lookup::LookupArgs),
    /// Show what a service is, or the state of instances.
    Status(status::StatusArgs),
    /// Show the sessions of a Placement Controller.
    Sessions(sessions::SessionsArgs),
    /// Follow the changes of an Index Service.
    Events(events::EventsArgs),
    /// Have an instance finish what it has, or hand it over, and sleep.
    Drain(lifecycle::DrainArgs),
    /// Have an instance sleep once it has no work.
    Sleep(lifecycle::SleepArgs),
    /// Have an instance that sleeps or drains take requests again.
    Wake(lifecycle::WakeArgs),
    /// Show, create, split anew or end the shard maps of long contexts.
    Map(maps::MapArgs),
}

/// A result in its two forms.
struct Answer {
    json: Value,
    text: String,
    /// What was looked for is not there.
    miss: bool,
}

impl Answer {
    const fn found(json: Value, text: String) -> Self {
        Self { json, text, miss: false }
    }

    fn print(&self, json: bool) -> Result<(), CommandError> {
        if json { stdout::print(&self.json) } else { stdout::print(&self.text) }.map_err(CommandError::Stdout)
    }
}

impl ClientCommand {
    /// Runs the command: the result on stdout, as JSON where asked for, an error as one line on stderr. Exit
    /// status: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 verification failed, 5 miss.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        match self.printed(json) {
            Ok(false) => ExitCode::SUCCESS,
            Ok(true) => ExitCode::from(error::MISS),
            Err(error) => {
                eprintln!("kvsp: {}", with_causes(&error));
                ExitCode::from(error.exit_status())
            }
        }
    }

    /// Whether what was looked for is not there.
    fn printed(self, json: bool) -> Result<bool, CommandError> {
        // One request after the other: more threads would wait with this one.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::Runtime)?;
        runtime.block_on(async {
            let answer = match self {
                Self::Put(args) => args.answer().await,
                Self::Get(args) => args.answer().await,
                Self::Lookup(args) => args.answer().await,
                Self::Status(args) => args.answer().await,
                Self::Sessions(args) => args.answer().await,
                Self::Drain(args) => args.answer().await,
                Self::Sleep(args) => args.answer().await,
                Self::Wake(args) => args.answer().await,
                Self::Map(args) => args.answer().await,
                Self::Events(args) => return args.follow(json).await.map(|()| false),
            }?;
            answer.print(json).map(|()| answer.miss)
        })
    }
}

/// An error and, in the same line, the causes that it does not tell itself.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}
