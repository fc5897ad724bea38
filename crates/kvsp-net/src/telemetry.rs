//! Logs on standard error, so that standard output stays for results.

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// The environment variable with the filter of logs, for example `info,kvsp_net=debug`.
pub const FILTER_VARIABLE: &str = "KVSP_LOG";

/// Sends logs to standard error, as text or as one JSON object a line. [`FILTER_VARIABLE`] overrides
/// `default_level`. Where a process has set up its logs already, this changes nothing.
pub fn init(json: bool, default_level: Level) {
    let filter = EnvFilter::builder()
        .with_default_directive(Directive::from(default_level))
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy();
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let outcome = if json { logs.json().try_init() } else { logs.with_ansi(false).try_init() };
    if outcome.is_err() {
        tracing::debug!("logs were set up before");
    }
}
