//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use crate::error::TaskError;

/// What `cargo xtask help` prints.
pub(crate) const HELP: &str = "\
Tasks of the workspace.

Usage: cargo xtask TASK

  demo [ARGS...]       build kvsp, fetch a small real model where it is missing, run `kvsp demo ARGS...`;
                       with --model PATH among ARGS nothing is fetched
  test [ARGS...]       prepare the model and a Python with the openai package, run
                       `cargo test --workspace ARGS...`
  python               prepare a Python with the openai package; prints its path and, where it needs
                       one, the value of PYTHONPATH
  soak [--minutes N]   model and property tests with many more cases, for at most N minutes
  check                formatting, lints, documentation, the arrows of ARCHITECTURE.md, licences and sources
                       of dependencies
  help                 this text
";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    /// Arguments for `kvsp demo`.
    Demo(Vec<OsString>),
    /// Arguments for `cargo test`.
    Test(Vec<OsString>),
    Python,
    Soak(SoakOptions),
    Check,
}

/// How long to soak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SoakOptions {
    /// The budget of the runs, compilation not counted; `None` for as long as it takes.
    pub(crate) budget: Option<Duration>,
}

/// Reads the arguments that follow `cargo xtask`.
///
/// # Errors
/// [`TaskError::Usage`].
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, TaskError> {
    let mut args = args.into_iter();
    let Some(task) = args.next() else {
        return Err(usage("no task given"));
    };
    let rest: Vec<OsString> = args.collect();
    match task.to_str() {
        Some("demo") => Ok(Task::Demo(rest)),
        Some("test") => Ok(Task::Test(rest)),
        Some("soak") => soak_options(&rest).map(Task::Soak),
        Some("python") if rest.is_empty() => Ok(Task::Python),
        Some("python") => Err(usage("python takes no arguments")),
        Some("check") if rest.is_empty() => Ok(Task::Check),
        Some("check") => Err(usage("check takes no arguments")),
        Some("help" | "--help" | "-h") => Ok(Task::Help),
        _ => Err(usage(&format!("unknown task {}", task.display()))),
    }
}

fn soak_options(args: &[OsString]) -> Result<SoakOptions, TaskError> {
    let minutes = match args {
        [] => return Ok(SoakOptions::default()),
        [flag, minutes] if flag == "--minutes" => minutes.to_str(),
        [joined] => joined.to_str().and_then(|text| text.strip_prefix("--minutes=")),
        _ => None,
    };
    match minutes.and_then(|text| text.parse::<u32>().ok()) {
        Some(minutes @ 1..) => Ok(SoakOptions { budget: Some(Duration::from_secs(60 * u64::from(minutes))) }),
        _ => Err(usage("soak takes --minutes N, N at least 1")),
    }
}

fn usage(what: &str) -> TaskError {
    TaskError::Usage(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Task, String> {
        parse(args.iter().map(OsString::from)).map_err(|error| error.to_string())
    }

    fn words(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn arguments_of_demo_and_test_are_passed_on_as_they_are() {
        assert_eq!(parsed(&["demo"]), Ok(Task::Demo(vec![])));
        let args = ["--short", "--help", "soak", "--minutes"];
        assert_eq!(parsed(&[&["demo"], &args[..]].concat()), Ok(Task::Demo(words(&args))));
        assert_eq!(parsed(&["test", "--", "--nocapture"]), Ok(Task::Test(words(&["--", "--nocapture"]))));
    }

    #[test]
    fn a_soak_may_have_a_budget() {
        let minutes = |n: u64| Ok(Task::Soak(SoakOptions { budget: Some(Duration::from_secs(60 * n)) }));
        assert_eq!(parsed(&["soak"]), Ok(Task::Soak(SoakOptions::default())));
        assert_eq!(parsed(&["soak", "--minutes", "10"]), minutes(10));
        assert_eq!(parsed(&["soak", "--minutes=3"]), minutes(3));
        assert_eq!(parsed(&["soak", "--minutes", "4294967295"]), minutes(4_294_967_295));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let wrong: [&[&str]; 11] = [
            &[],
            &["build"],
            &["check", "--fix"],
            &["python", "-c"],
            &["soak", "10"],
            &["soak", "--minutes"],
            &["soak", "--minutes", "0"],
            &["soak", "--minutes", "-1"],
            &["soak", "--minutes", "1.5"],
            &["soak", "--minutes", "1", "2"],
            &["soak", "--minutes="],
        ];
        for args in wrong {
            assert!(parsed(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn help_is_help() {
        for word in ["help", "--help", "-h"] {
            assert_eq!(parsed(&[word]), Ok(Task::Help));
        }
    }
}
