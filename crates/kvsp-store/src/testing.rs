//! File systems for tests, behind the trait of the real one: what is lost without power, an operation that
//! fails, a disk that is slow. With the feature `testing`.

mod before;
mod failing;
mod power_loss;
mod recording;
mod slow;
mod tree;

pub use before::{Asking, Before, Operation};
pub use failing::{Failing, FailingFileSystem, Faults};
pub use power_loss::{LOSSES, Loss};
pub use recording::RecordingFileSystem;
pub use slow::{Slow, SlowFileSystem};
