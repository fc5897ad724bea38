//! Results on stdout.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints a result and a line feed. Whoever closed the pipe has seen enough: that is no error.
pub(super) fn print(result: &dyn Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{result}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
