//! Developer tasks of the workspace; `cargo xtask help` lists them. The standard library alone, so that the
//! first command on a fresh machine starts quickly.

mod arrows;
mod check;
mod cli;
mod demo;
mod error;
mod model;
mod process;
mod python;
mod soak;
mod test;
mod workspace;

use std::process::ExitCode;

use cli::Task;

fn main() -> ExitCode {
    let outcome = cli::parse(std::env::args_os().skip(1)).and_then(|task| match task {
        Task::Help => {
            print!("{}", cli::HELP);
            Ok(())
        }
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Python => python::run(),
        Task::Soak(options) => soak::run(options),
        Task::Check => check::run(),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            error.exit_code()
        }
    }
}
