//! Running programs.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

use crate::error::TaskError;
use crate::workspace;

/// Cargo, in the workspace.
pub(crate) fn cargo() -> Command {
    // The cargo that runs this task, so that both use one toolchain.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

/// Shows a command on stderr, runs it to its end and demands success.
///
/// # Errors
/// It cannot be started, or it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), TaskError> {
    eprintln!("+ {}", shown(command));
    let status = command.status().map_err(|source| start_error(command, source))?;
    demand(command, status)
}

/// As [`run`], with the program's stdout on stderr: stdout is for results.
pub(crate) fn run_aside(command: &mut Command) -> Result<(), TaskError> {
    run(command.stdout(io::stderr()))
}

/// Runs a command without showing anything and returns what it says on stdout; `None` where it fails.
///
/// # Errors
/// It cannot be started.
pub(crate) fn ask(command: &mut Command) -> Result<Option<String>, TaskError> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|source| start_error(command, source))?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// Success, or [`TaskError::Failed`].
pub(crate) fn demand(command: &Command, status: ExitStatus) -> Result<(), TaskError> {
    if status.success() { Ok(()) } else { Err(TaskError::Failed { program: program(command), status }) }
}

/// [`TaskError::Start`] of a command.
pub(crate) fn start_error(command: &Command, source: io::Error) -> TaskError {
    TaskError::Start { program: program(command), source }
}

fn program(command: &Command) -> String {
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    let first =
        words.next().map(std::path::Path::new).and_then(std::path::Path::file_name).unwrap_or_default();
    let second = words.next().map(|word| format!(" {}", word.display())).unwrap_or_default();
    format!("{}{second}", first.display())
}

/// The command line for people; script text among the arguments is left out.
fn shown(command: &Command) -> String {
    let mut line = command.get_program().display().to_string();
    for word in command.get_args() {
        let word = word.display().to_string();
        line.push(' ');
        line.push_str(if word.contains('\n') { "..." } else { &word });
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_in_one_line() {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", "import sys\nprint()", "a b"]);
        assert_eq!(shown(&command), "/usr/bin/python3 -c ... a b");
        assert_eq!(program(&command), "python3 -c");
    }

    #[test]
    fn a_failure_carries_the_status_of_the_program() {
        let error = run(Command::new("sh").args(["-c", "exit 5"])).unwrap_err();
        assert!(matches!(&error, TaskError::Failed { status, .. } if status.code() == Some(5)));
        assert!(matches!(
            run(&mut Command::new("/nonexistent/program")).unwrap_err(),
            TaskError::Start { .. }
        ));
        assert_eq!(ask(Command::new("sh").args(["-c", "echo yes"])).unwrap().as_deref(), Some("yes"));
        assert_eq!(ask(Command::new("sh").args(["-c", "echo no; exit 1"])).unwrap(), None);
    }
}
