//! One module a command, and what several of them share.

mod bench;
mod client;
mod demo;
mod doctor;
mod failover;
mod fleet;
mod replay;
mod serve;
mod stdout;
mod wire;

use std::process::ExitCode;

/// What the command line can ask for.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Wire(wire::WireCommand),
    #[command(flatten)]
    Client(client::ClientCommand),
    /// Run a service, or all of them in one process.
    Serve(Box<serve::ServeArgs>),
    /// Measure the speed of the parts on this machine.
    Bench(bench::BenchArgs),
    /// Replay a trace of prompts against the eviction policies.
    Replay(replay::ReplayArgs),
    /// Check this machine and the services that are named.
    Doctor(doctor::DoctorArgs),
    /// See a small fleet reuse a KV cache with a real model.
    Demo(demo::DemoArgs),
}

impl Command {
    /// Run the command; the exit status is that of the profile's section 10.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        match self {
            Self::Wire(command) => command.run(json),
            Self::Client(command) => command.run(json),
            Self::Serve(args) => args.run(json),
            Self::Bench(args) => args.run(json),
            Self::Replay(args) => args.run(json),
            Self::Doctor(args) => args.run(json),
            Self::Demo(args) => args.run(json),
        }
    }
}
