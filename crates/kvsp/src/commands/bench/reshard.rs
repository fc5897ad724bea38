//! What a change of a split context costs: the time until 8,192 tokens that three instances held are held by two,
//! beside the bare copy of the octets that move; and how long decoding stands still when the split changes in the
//! middle of an answer.

mod busy;
mod copy;
mod hall;
mod model;
mod pause;

use super::error::BenchError;
use super::report::Bench;
use crate::progress;

/// Measures both.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let bar = progress::spinner("reshard".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BenchError::io("the runtime"))?;
    let mut bench = Bench { name: "reshard", figures: Vec::new(), notes: Vec::new() };
    let hall = runtime.block_on(hall::Hall::open())?;
    copy::measure(quick, &runtime, &hall, &bar, &mut bench)?;
    busy::measure(quick, &runtime, &hall, &bar, &mut bench)?;
    drop(hall);
    pause::measure(quick, &runtime, &bar, &mut bench)?;
    bar.finish_and_clear();
    Ok(bench)
}
