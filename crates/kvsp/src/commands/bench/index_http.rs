//! The Index Service over HTTP: CPU time of a lookup and of publishing, and how long a lookup waits while others
//! publish.

mod latency;
mod lookup;
mod publish;
mod records;

use super::error::BenchError;
use super::pin;
use super::report::Bench;
use crate::progress;

/// Measures all of it.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let mut bench = Bench { name: "index-http", figures: Vec::new(), notes: Vec::new() };
    let bar = progress::spinner("index-http".to_owned());
    pin::on_one_core(|| lookup::measure(quick, &bar, &mut bench))?;
    pin::on_one_core(|| publish::measure(quick, &bar, &mut bench))?;
    latency::measure(quick, &bar, &mut bench)?;
    bar.finish_and_clear();
    Ok(bench)
}
