//! Which cores the contestants run on.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::error::BenchError;

/// Does the work in a thread that is bound to one core. Threads and processes that the work starts are bound to
/// the same one, so both ends of a connection share it, and what is measured does not depend on where the
/// system puts them.
pub(super) fn on_one_core<T: Send>(
    work: impl FnOnce() -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind_to_one_core()?;
            work()
        });
        bound.join().map_err(|_| BenchError::Ended("the bound thread"))?
    })
}

/// The last core that this thread may use: the system's own work tends to be on the first.
fn bind_to_one_core() -> Result<(), BenchError> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).map_err(BenchError::system("the cores allowed"))?;
    let last = (0..CpuSet::count()).rev().find(|&core| allowed.is_set(core).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.unwrap_or(0)).map_err(BenchError::system("a core"))?;
    sched_setaffinity(this, &one).map_err(BenchError::system("binding to a core"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> usize {
        std::thread::available_parallelism().map_or(0, usize::from)
    }

    #[test]
    fn what_the_work_starts_is_bound_too() {
        let before = cores();
        let seen = on_one_core(|| Ok((cores(), std::thread::spawn(cores).join().unwrap()))).unwrap();
        assert_eq!(seen, (1, 1));
        assert_eq!(cores(), before, "other threads stay as they are");
    }
}
