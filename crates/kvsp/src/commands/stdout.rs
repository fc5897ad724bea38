//! Results on stdout.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints a result and a line feed. Whoever closed the pipe has seen enough: that is no error.
pub(super) fn print(result: &dyn Display) -> io::Result<()> {
    print_line(result).map(|_| ())
}

/// Prints one line of several; `false` where nobody reads any more.
pub(super) fn print_line(line: &dyn Display) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
