//! Randomness and fresh identifiers as a value, so that tests can repeat them.

use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uuid::Uuid;

/// A source of random numbers and identifiers.
pub trait Random: Send + Sync + 'static {
    /// A fresh version 4 UUID, for a lease, session or directive.
    fn uuid(&self) -> Uuid;

    /// 64 random bits.
    fn u64(&self) -> u64;
}

/// The operating system's generator; fit for identifiers that nobody may guess.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn u64(&self) -> u64 {
        // Octets 6 and 8 of a version 4 UUID carry fixed bits; the eight taken here are random throughout.
        let [a, b, c, d, e, f, _, _, _, _, k, l, ..] = *Uuid::new_v4().as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, k, l])
    }
}

/// The same sequence for the same seed; for tests and simulations only.
#[derive(Debug)]
pub struct SeededRandom {
    generator: Mutex<ChaCha8Rng>,
}

impl SeededRandom {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { generator: Mutex::new(ChaCha8Rng::seed_from_u64(seed)) }
    }

    fn with<T>(&self, take: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        // A panic while holding the lock leaves a usable generator behind.
        take(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Random for SeededRandom {
    fn uuid(&self) -> Uuid {
        let mut octets = [0; 16];
        self.with(|generator| generator.fill_bytes(&mut octets));
        uuid::Builder::from_random_bytes(octets).into_uuid()
    }

    fn u64(&self) -> u64 {
        self.with(RngCore::next_u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (one, two, other) = (SeededRandom::new(7), SeededRandom::new(7), SeededRandom::new(8));
        for _ in 0..4 {
            let id = one.uuid();
            assert_eq!(id, two.uuid());
            assert_ne!(id, other.uuid());
            assert_eq!(id.get_version_num(), 4);
            assert_eq!(one.u64(), two.u64());
        }
    }

    #[test]
    fn the_system_does_not_repeat_itself() {
        assert_ne!(SystemRandom.uuid(), SystemRandom.uuid());
        assert_ne!(SystemRandom.u64(), SystemRandom.u64());
    }
}
