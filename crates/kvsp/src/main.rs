//! The `kvsp` command: services, tools and the demo of the KV Cache Storage Protocol.

mod commands;
mod config;
mod octets;
mod progress;
mod signals;

use std::process::ExitCode;

use clap::Parser;

/// KV caches that outlive requests, instances and vendors.
#[derive(Debug, Parser)]
#[command(
    name = "kvsp",
    version,
    propagate_version = true,
    after_help = "Example:\n  kvsp serve all --model tiny\n\nExit status: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 verification failed, 5 miss."
)]
struct Cli {
    /// Print results as JSON.
    #[arg(long, global = true, env = "KVSP_JSON", value_parser = clap::builder::FalseyValueParser::new())]
    json: bool,
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.command.run(cli.json)
}
