//! Progress on stderr: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of octets with a label.
pub(crate) fn octets(label: &'static str) -> ProgressBar {
    bar("{prefix} {bar:30} {bytes}/{total_bytes} {eta}").with_prefix(label)
}

/// A bar of things that are counted, with a label.
pub(crate) fn items(label: &'static str) -> ProgressBar {
    bar("{prefix} {bar:30} {pos}/{len} {elapsed}").with_prefix(label)
}

/// A bar of steps with a label and a message that says what is left.
pub(crate) fn steps(label: &'static str) -> ProgressBar {
    bar("{prefix} {bar:30} {msg} {elapsed}").with_prefix(label)
}

/// A line with a label and a spinning sign, for work of unknown length.
pub(crate) fn spinner(label: String) -> ProgressBar {
    let spinner = bar("{spinner} {msg} {elapsed}").with_message(label);
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    spinner
}

fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    bar.set_draw_target(if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    });
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A callback of (done, total) that draws a bar.
pub(crate) fn callback(bar: &ProgressBar) -> impl Fn(u64, u64) + '_ {
    |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}
