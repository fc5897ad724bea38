//! `cargo xtask soak`: the tests that compare with a model or try random inputs, many more times.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cli::SoakOptions;
use crate::error::TaskError;
use crate::process;
use crate::workspace;

/// Packages whose tests count their cases by the environment.
const PACKAGES: [&str; 5] = ["kvsp-core", "kvsp-proto", "kvsp-blocks", "kvsp-store", "kvsp-engine"];
/// Operations of one run against a model.
const OPERATIONS: &str = "100000";
/// Cases of one property.
const CASES: &str = "20000";
/// How often a running test program is looked at.
const POLL: Duration = Duration::from_millis(50);

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    package: &'static str,
    name: String,
    program: PathBuf,
}

/// How a test program ended.
enum Outcome {
    Ended(ExitStatus),
    /// The budget did; nothing had failed.
    CutShort,
}

/// Builds the test programs and runs one after another. A budget is shared out evenly among those that are
/// still to run, so that a long one does not keep the others from running at all.
///
/// # Errors
/// A test fails.
pub(crate) fn run(options: SoakOptions) -> Result<(), TaskError> {
    let suites = PACKAGES.iter().map(|package| build(package)).collect::<Result<Vec<_>, _>>()?.concat();
    let deadline = options.budget.map(|budget| Instant::now() + budget);
    let mut report = Vec::new();
    for (done, suite) in suites.iter().enumerate() {
        let share =
            deadline.map(|end| share(end.saturating_duration_since(Instant::now()), suites.len() - done));
        let begin = Instant::now();
        let mut command = suite.command();
        let outcome = match run_within(&mut command, share)? {
            Outcome::Ended(status) => {
                process::demand(&command, status)?;
                "passed"
            }
            Outcome::CutShort => "CUT SHORT by the budget, nothing failed until then",
        };
        report.push(format!(
            "{:7.1} s  {} {}: {outcome}",
            begin.elapsed().as_secs_f64(),
            suite.package,
            suite.name
        ));
    }
    println!("soak with KVSP_SOAK_OPS={OPERATIONS} PROPTEST_CASES={CASES}:");
    for line in report {
        println!("{line}");
    }
    Ok(())
}

fn share(left: Duration, suites: usize) -> Duration {
    left / u32::try_from(suites).unwrap_or(u32::MAX).max(1)
}

impl Suite {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // As under `cargo test`.
        command.current_dir(workspace::root().join("crates").join(self.package));
        command.arg("--quiet").env("KVSP_SOAK_OPS", OPERATIONS).env("PROPTEST_CASES", CASES);
        command
    }
}

/// Builds the test programs of a package.
fn build(package: &'static str) -> Result<Vec<Suite>, TaskError> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--no-run", "--package", package]).stderr(Stdio::piped());
    let mut child = cargo.spawn().map_err(|source| process::start_error(&cargo, source))?;
    let mut suites = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("{line}");
            suites.extend(suite_of(package, &line));
        }
    }
    let status = child.wait().map_err(|source| process::start_error(&cargo, source))?;
    process::demand(&cargo, status)?;
    Ok(suites)
}

/// The test program that a line of cargo's tells of: `Executable NAME (PATH)`.
fn suite_of(package: &'static str, line: &str) -> Option<Suite> {
    let (name, path) = line.trim().strip_prefix("Executable ")?.rsplit_once(" (")?;
    let program = workspace::root().join(path.strip_suffix(')')?);
    Some(Suite { package, name: name.to_owned(), program })
}

/// Runs a program to its end, or until its time is over.
fn run_within(command: &mut Command, limit: Option<Duration>) -> Result<Outcome, TaskError> {
    let failed = |command: &Command, source| Err(process::start_error(command, source));
    let mut child: Child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return failed(command, source),
    };
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Outcome::Ended(status)),
            Ok(None) if limit.is_some_and(|limit| begin.elapsed() >= limit) => {
                return match child.kill().and_then(|()| child.wait()) {
                    Ok(_) => Ok(Outcome::CutShort),
                    Err(source) => failed(command, source),
                };
            }
            Ok(None) => std::thread::sleep(POLL),
            Err(source) => return failed(command, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_what_cargo_says() {
        let line = "  Executable unittests src/lib.rs (target/debug/deps/kvsp_core-0a)";
        let suite = suite_of("kvsp-core", line).unwrap();
        assert_eq!(suite.name, "unittests src/lib.rs");
        assert_eq!(suite.program, workspace::root().join("target/debug/deps/kvsp_core-0a"));
        let absolute = suite_of("kvsp-core", "Executable tests/x.rs (/t/x y-0)").unwrap();
        assert_eq!(absolute.program, PathBuf::from("/t/x y-0"));
        for line in ["   Compiling kvsp-core v0.1.0 (crates/kvsp-core)", "    Finished `test` profile", ""] {
            assert_eq!(suite_of("kvsp-core", line), None);
        }
    }

    #[test]
    fn a_budget_ends_a_program_and_is_shared_evenly() {
        let mut sleeper = Command::new("sleep");
        let ended = run_within(sleeper.arg("600"), Some(Duration::ZERO)).unwrap();
        assert!(matches!(ended, Outcome::CutShort));
        let ended = run_within(Command::new("sh").args(["-c", "exit 3"]), None).unwrap();
        assert!(matches!(ended, Outcome::Ended(status) if status.code() == Some(3)));
        assert_eq!(share(Duration::from_secs(12), 4), Duration::from_secs(3));
        assert_eq!(share(Duration::ZERO, 1), Duration::ZERO);
    }
}
