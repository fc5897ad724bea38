//! `cargo xtask soak`: the tests that compare with a model or try random inputs, many more times.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cli::SoakOptions;
use crate::error::TaskError;
use crate::process;

/// Packages whose tests count their cases by the environment.
const PACKAGES: [&str; 7] =
    ["kvsp-core", "kvsp-proto", "kvsp-blocks", "kvsp-store", "kvsp-engine", "kvsp-gateway", "kvsp-agent"];
/// Test programs of the package `kvsp` that do so; its other ones take no counts.
const PROGRAM: &str = "kvsp";
const PROGRAM_SUITES: [&str; 4] =
    ["tests/crash/main.rs", "tests/faults/main.rs", "tests/resharding/main.rs", "tests/sessions/main.rs"];
/// How often the program is killed under load, and how many blocks a restart finds.
const KILLS: &str = "200";
const BLOCKS: &str = "10000";
/// How many instances are killed at a checkpoint of a session, enough for each of them at every moment, and as
/// many between two.
const SESSION_KILLS: &str = "250";
/// How many processes are killed in the middle of a change of a split context.
const RESHARD_KILLS: &str = "100";
/// Operations of one run against a model.
const OPERATIONS: &str = "100000";
/// Cases of one property.
const CASES: &str = "20000";
/// How often a running test program is looked at.
const POLL: Duration = Duration::from_millis(50);

/// One test program.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    package: String,
    /// The source file of its crate root.
    source: PathBuf,
    /// The package's directory, in which `cargo test` runs it.
    directory: PathBuf,
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
    let suites = build()?;
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
        let (seconds, source) = (begin.elapsed().as_secs_f64(), suite.source.display());
        report.push(format!("{seconds:7.1} s  {} {source}: {outcome}", suite.package));
    }
    println!(
        "soak with KVSP_SOAK_OPS={OPERATIONS} PROPTEST_CASES={CASES} KVSP_CRASH_KILLS={KILLS} \
         KVSP_CRASH_BLOCKS={BLOCKS} KVSP_SESSION_KILLS={SESSION_KILLS} \
         KVSP_RESHARD_KILLS={RESHARD_KILLS}:"
    );
    for line in report {
        println!("{line}");
    }
    Ok(())
}

fn share(left: Duration, suites: usize) -> Duration {
    left / u32::try_from(suites).unwrap_or(u32::MAX).max(1)
}

impl Suite {
    /// The program that a message of cargo's tells of, if it is of one of [`PACKAGES`] or one of
    /// [`PROGRAM_SUITES`].
    fn of(message: &str) -> Option<Self> {
        let (_, profile) = message.split_once("\"profile\":")?;
        let program = member(profile, "executable").filter(|_| profile.contains("\"test\":true"))?;
        let directory = Path::new(member(message, "manifest_path")?).parent()?;
        let package = directory.file_name()?.to_str()?;
        let source = Path::new(member(message, "src_path")?);
        let source = source.strip_prefix(directory).unwrap_or(source);
        let of_program = package == PROGRAM && PROGRAM_SUITES.iter().any(|suite| source == Path::new(suite));
        if !of_program && !PACKAGES.contains(&package) {
            return None;
        }
        Some(Self {
            package: package.to_owned(),
            source: source.to_owned(),
            directory: directory.to_owned(),
            program: program.into(),
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory);
        command.arg("--quiet").env("KVSP_SOAK_OPS", OPERATIONS).env("PROPTEST_CASES", CASES);
        command.env("KVSP_CRASH_KILLS", KILLS).env("KVSP_CRASH_BLOCKS", BLOCKS);
        command.env("KVSP_SESSION_KILLS", SESSION_KILLS).env("KVSP_RESHARD_KILLS", RESHARD_KILLS);
        if self.package == PROGRAM {
            // What these suites did is told on stdout, and they measure the machine: one at a time.
            command.args(["--nocapture", "--test-threads=1"]);
        }
        command
    }
}

/// Builds the test programs, those of the whole workspace as `cargo xtask test` does: with fewer packages
/// the dependencies would have other features and be compiled again.
fn build() -> Result<Vec<Suite>, TaskError> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output =
        cargo.stderr(Stdio::inherit()).output().map_err(|source| process::start_error(&cargo, source))?;
    process::demand(&cargo, output.status)?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let suites: Vec<Suite> = messages.lines().filter_map(Suite::of).collect();
    let mut packages = PACKAGES.iter().chain(&[PROGRAM]);
    match packages.find(|package| suites.iter().all(|suite| suite.package != **package)) {
        Some(package) => Err(TaskError::Missing(format!("cargo built no test program of {package}"))),
        None => Ok(suites),
    }
}

/// A string member of one of cargo's messages. Its paths need no escapes, and the members asked for occur
/// once.
fn member<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(value, _)| value)
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
        let message = |package: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{package}/Cargo.toml","target":{{"kind":["test"],"name":"vectors","src_path":"/w/crates/{package}/tests/vectors.rs","test":true}},"profile":{{"opt_level":"1","test":{test}}},"executable":{executable},"fresh":true}}"#
            )
        };
        let found = Suite::of(&message("kvsp-proto", true, r#""/w/target/vectors-0a""#)).unwrap();
        assert_eq!(found.package, "kvsp-proto");
        assert_eq!(found.source, Path::new("tests/vectors.rs"));
        assert_eq!(found.directory, Path::new("/w/crates/kvsp-proto"));
        assert_eq!(found.program, Path::new("/w/target/vectors-0a"));
        assert_eq!(Suite::of(&message("kvsp-proto", true, "null")), None);
        assert_eq!(Suite::of(&message("kvsp", true, r#""/w/target/vectors-0b""#)), None);
        let crash =
            message("kvsp", true, r#""/w/target/crash-0""#).replace("tests/vectors", "tests/crash/main");
        assert_eq!(Suite::of(&crash).unwrap().source, Path::new("tests/crash/main.rs"));
        let sessions = message("kvsp", true, r#""/w/target/sessions-0""#)
            .replace("tests/vectors", "tests/sessions/main");
        assert_eq!(Suite::of(&sessions).unwrap().source, Path::new("tests/sessions/main.rs"));
        assert_eq!(Suite::of(&message("kvsp-llama", true, r#""/w/target/x-0""#)), None);
        assert_eq!(Suite::of(r#"{"reason":"build-finished","success":true}"#), None);
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
