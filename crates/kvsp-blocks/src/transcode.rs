//! Representations in other codecs: made once, away from the threads that serve, and kept while there is
//! room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvsp_proto::problem::Problem;
use tokio::sync::OnceCell;

use crate::digests::ReprName;
use crate::represent::Representation;

/// Representations and those being made, the least recently used of them going first.
#[derive(Debug)]
pub(crate) struct TranscodeCache {
    capacity: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    slots: BTreeMap<ReprName, Slot>,
    order: BTreeMap<u64, ReprName>,
    octets: u64,
    next: u64,
}

#[derive(Debug)]
struct Slot {
    cell: Arc<OnceCell<Representation>>,
    stamp: u64,
    /// 0 while it is being made.
    octets: u64,
}

impl TranscodeCache {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, kept: Mutex::default() }
    }

    /// A representation that was made before; `None` while it is being made.
    #[cfg(test)]
    fn get(&self, name: &ReprName) -> Option<Representation> {
        let mut kept = self.lock();
        let made = kept.slots.get(name)?.cell.get().cloned()?;
        kept.touch(name);
        Some(made)
    }

    /// A representation, made by `make` unless it is there or another request is making it; and whether this
    /// one did. Only what was made whole is kept.
    pub(crate) async fn get_or_make(
        &self,
        name: ReprName,
        make: impl Future<Output = Result<Representation, Problem>>,
    ) -> Result<(Representation, bool), Problem> {
        let settling = Settling { cache: self, name, cell: self.lock().slot(name) };
        let mut made_here = false;
        let made = settling
            .cell
            .get_or_try_init(|| async {
                made_here = true;
                make.await
            })
            .await
            .cloned();
        made.map(|made| (made, made_here))
    }

    /// Octets of what is kept.
    pub(crate) fn octets(&self) -> u64 {
        self.lock().octets
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A panic between two changes costs a representation kept too long or made twice.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request for a representation, which ends also where the peer goes away.
struct Settling<'a> {
    cache: &'a TranscodeCache,
    name: ReprName,
    cell: Arc<OnceCell<Representation>>,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.cache.lock().settle(&self.name, &self.cell, self.cache.capacity);
    }
}

impl Kept {
    fn slot(&mut self, name: ReprName) -> Arc<OnceCell<Representation>> {
        self.slots.entry(name).or_insert_with(|| Slot { cell: Arc::default(), stamp: 0, octets: 0 });
        self.touch(&name);
        self.slots.get(&name).map(|slot| slot.cell.clone()).unwrap_or_default()
    }

    fn touch(&mut self, name: &ReprName) {
        if let Some(slot) = self.slots.get_mut(name) {
            self.order.remove(&slot.stamp);
            // 2^64 uses at 10^9 a second take 580 years.
            self.next = self.next.saturating_add(1);
            slot.stamp = self.next;
            self.order.insert(slot.stamp, *name);
        }
    }

    /// Counts what was made, forgets what was not and nobody is making any more, and makes room.
    fn settle(&mut self, name: &ReprName, cell: &Arc<OnceCell<Representation>>, capacity: u64) {
        let Some(slot) = self.slots.get_mut(name).filter(|slot| Arc::ptr_eq(&slot.cell, cell)) else {
            return;
        };
        match cell.get() {
            Some(made) if slot.octets == 0 => {
                slot.octets = made.parts.size();
                self.octets = self.octets.saturating_add(slot.octets);
            }
            Some(_) => {}
            // The slot's and this one: nobody else waits for it.
            None if Arc::strong_count(cell) <= 2 => {
                self.forget(name);
                return;
            }
            None => {}
        }
        while self.octets > capacity {
            let made = |name: &&ReprName| self.slots.get(name).is_some_and(|slot| slot.octets > 0);
            let Some(oldest) = self.order.values().find(made).copied() else {
                return;
            };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, name: &ReprName) {
        if let Some(slot) = self.slots.remove(name) {
            self.order.remove(&slot.stamp);
            self.octets = self.octets.saturating_sub(slot.octets);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kvsp_proto::container::LayerRange;
    use kvsp_proto::digest::ReprDigest;
    use kvsp_proto::id::Digest;
    use kvsp_proto::registry::Codec;
    use kvsp_store::BlockPart;

    use super::*;

    fn name(n: u8) -> ReprName {
        ReprName { whole: Digest([n; 32]), layers: LayerRange::new(0, 1).unwrap(), codec: Codec::RAW }
    }

    fn made(octets: usize) -> Representation {
        let parts = BlockPart { head: Bytes::from(vec![7; octets]), data: Bytes::new() };
        Representation { digest: ReprDigest::of(&parts.head), parts }
    }

    #[tokio::test]
    async fn one_of_many_makes_it() {
        let cache = TranscodeCache::new(100);
        let (begun, wait) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
        let slow = cache.get_or_make(name(1), async {
            begun.notify_one();
            wait.notified().await;
            Ok(made(10))
        });
        let others = async {
            begun.notified().await;
            assert!(cache.get(&name(1)).is_none());
            let second = cache.get_or_make(name(1), async { unreachable!("it is being made") });
            wait.notify_one();
            second.await.unwrap()
        };
        let (first, second) = tokio::join!(slow, others);
        assert!(first.unwrap().1 && !second.1);
        assert_eq!(cache.get(&name(1)).unwrap().parts.size(), 10);
    }

    #[tokio::test]
    async fn the_least_recently_used_goes_and_a_failure_is_not_kept() {
        let cache = TranscodeCache::new(25);
        for n in 1..=2 {
            cache.get_or_make(name(n), async { Ok(made(10)) }).await.unwrap();
        }
        assert!(cache.get(&name(1)).is_some());
        cache.get_or_make(name(3), async { Ok(made(10)) }).await.unwrap();
        assert!(
            cache.get(&name(2)).is_none() && cache.get(&name(1)).is_some() && cache.get(&name(3)).is_some()
        );
        let problem = Problem::blank(503, "no");
        cache.get_or_make(name(4), async { Err(problem) }).await.unwrap_err();
        assert!(cache.get(&name(4)).is_none());
        cache.get_or_make(name(4), async { Ok(made(26)) }).await.unwrap();
        assert!(cache.get(&name(4)).is_none(), "larger than all of it");
        let kept = cache.lock();
        assert_eq!((kept.octets, kept.slots.len(), kept.order.len()), (0, 0, 0));
    }
}
