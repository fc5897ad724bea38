//! One module a command.

mod demo;
mod serve;
mod wire;

use std::process::ExitCode;

/// What the command line can ask for.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Wire(wire::WireCommand),
    /// Run a service, or all of them in one process.
    Serve(serve::ServeArgs),
    /// See a small fleet reuse a KV cache with a real model.
    Demo(demo::DemoArgs),
}

impl Command {
    /// Run the command; the exit status is that of the profile's section 10.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        match self {
            Self::Wire(command) => command.run(json),
            Self::Serve(args) => args.run(json),
            Self::Demo(args) => args.run(json),
        }
    }
}
