//! From nothing to an engine that computes. It is built on the engine thread, because weights take their time;
//! requests that come before it wait, and blocks that are loaded before it go to the host tier.

use std::sync::{Arc, Mutex, PoisonError};

use kvsp_engine::{Engine, EngineInfo};
use tokio::sync::{mpsc, watch};

use super::{Output, SubmitError};

/// Why an engine could not be built.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// An engine that is there, or what builds it; what it will be is known beforehand.
pub struct EngineSource<E> {
    info: Arc<EngineInfo>,
    build: Box<dyn FnOnce() -> Result<E, BuildError> + Send>,
}

/// The engine that was built is not the one that was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine that was built differs from what was announced in its {0}")]
pub struct EngineDiffers(&'static str);

impl<E: Engine> EngineSource<E> {
    /// An engine that is there.
    pub fn of(engine: E) -> Self {
        let info = Arc::new(engine.info().clone());
        Self { info, build: Box::new(move || Ok(engine)) }
    }

    /// An engine that `build` makes, on the engine thread. Until it has, the instance is described by `info`,
    /// which must be that of the engine: where it is not, the instance ends.
    pub fn build(info: EngineInfo, build: impl FnOnce() -> Result<E, BuildError> + Send + 'static) -> Self {
        Self { info: Arc::new(info), build: Box::new(build) }
    }

    pub(crate) fn info(&self) -> &Arc<EngineInfo> {
        &self.info
    }

    /// Build it.
    ///
    /// # Errors
    /// [`BuildError`] where it cannot be built; [`EngineDiffers`].
    pub(super) fn run(self) -> Result<E, BuildError> {
        let engine = (self.build)()?;
        match difference(engine.info(), &self.info) {
            Some(what) => Err(EngineDiffers(what).into()),
            None => Ok(engine),
        }
    }
}

fn difference(built: &EngineInfo, announced: &EngineInfo) -> Option<&'static str> {
    let EngineInfo { descriptor, max_context, vocab, eos, pages, batch_invariant } = built;
    [
        (descriptor.compat_id() == announced.descriptor.compat_id(), "descriptor"),
        (*max_context == announced.max_context, "context"),
        (*vocab == announced.vocab, "vocabulary"),
        (*eos == announced.eos, "ends of a text"),
        (*pages == announced.pages, "pages"),
        (*batch_invariant == announced.batch_invariant, "batch invariance"),
    ]
    .into_iter()
    .find_map(|(equal, what)| (!equal).then_some(what))
}

/// Requests that came before the engine; `None` once it is there. Whoever may send one holds the lock, so that
/// none comes after those that the engine found when it came.
#[derive(Debug)]
pub(super) struct Early(Mutex<Option<Vec<mpsc::WeakSender<Output>>>>);

impl Early {
    fn with<R>(&self, run: impl FnOnce(&mut Option<Vec<mpsc::WeakSender<Output>>>) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Have `send` hand over a request, where the engine is not there yet and fewer than `max` wait for it;
    /// gives it back where the engine is there.
    pub(super) fn submit<R>(
        &self,
        max: usize,
        (request, output): (R, mpsc::Sender<Output>),
        send: impl FnOnce(R, mpsc::Sender<Output>) -> Result<(), SubmitError>,
    ) -> Result<Option<(R, mpsc::Sender<Output>)>, SubmitError> {
        self.with(|early| {
            let Some(waiting) = early else { return Ok(Some((request, output))) };
            waiting.retain(is_wanted);
            if waiting.len() >= max {
                return Err(SubmitError::QueueFull);
            }
            let waits = output.downgrade();
            send(request, output)?;
            waiting.push(waits);
            Ok(None)
        })
    }

    /// Requests that wait for the engine.
    pub(super) fn waiting(&self) -> usize {
        self.with(|early| early.as_ref().map_or(0, |waiting| waiting.iter().filter(|w| is_wanted(w)).count()))
    }
}

/// Whether whoever asked still listens.
fn is_wanted(output: &mpsc::WeakSender<Output>) -> bool {
    output.upgrade().is_some_and(|output| !output.is_closed())
}

/// The engine thread's end: dropped where the engine ends, or never comes.
pub(super) struct Opener {
    early: Arc<Early>,
    up: watch::Sender<bool>,
}

impl Opener {
    pub(super) fn new() -> (Self, Arc<Early>, watch::Receiver<bool>) {
        let early = Arc::new(Early(Mutex::new(Some(Vec::new()))));
        let (up, seen) = watch::channel(false);
        (Self { early: early.clone(), up }, early, seen)
    }

    /// The engine is there: `take` takes over what waits, and from now on requests go straight to it.
    pub(super) fn open(&self, take: impl FnOnce()) {
        self.early.with(|early| {
            take();
            *early = None;
        });
        self.up.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_within_bounds_until_the_engine_takes_them_over() {
        let (opener, early, up) = Opener::new();
        let mut sent = Vec::new();
        let mut ask = |n: u32| {
            let (output, listener) = mpsc::channel(1);
            let taken = early.submit(2, (n, output), |n, output| {
                sent.push((n, output));
                Ok(())
            });
            (taken.map(|back| back.is_none()), listener)
        };
        let (first, listener) = ask(1);
        let (second, _second) = ask(2);
        assert_eq!((first, second), (Ok(true), Ok(true)));
        assert_eq!(ask(3).0, Err(SubmitError::QueueFull));
        drop(listener);
        let (fourth, _fourth) = ask(4);
        assert_eq!(fourth, Ok(true), "who went away makes room");
        assert_eq!(early.waiting(), 2);
        assert!(!*up.borrow());
        let mut taken = 0;
        opener.open(|| taken = sent.len());
        assert!(*up.borrow() && taken == 3);
        assert_eq!(early.waiting(), 0);
        let (output, _listener) = mpsc::channel(1);
        let back = early.submit(0, (5, output), |_, _| Err(SubmitError::Stopped));
        assert!(matches!(back, Ok(Some((5, _)))), "the engine judges for itself");
    }
}
