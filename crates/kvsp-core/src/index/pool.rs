//! Values kept once, counted, and named by small numbers.

use std::collections::BTreeMap;

/// A pool of values in use; a value whose last use ends is forgotten and its number given again.
#[derive(Debug)]
pub(super) struct Pool<K> {
    ids: BTreeMap<K, u32>,
    entries: Vec<Option<(K, u32)>>,
    free: Vec<u32>,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), entries: Vec::new(), free: Vec::new() }
    }
}

impl<K: Ord + Clone> Pool<K> {
    /// The number of a value in use.
    pub(super) fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<u32>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.ids.get(key).copied()
    }

    /// The value of a number.
    pub(super) fn get(&self, id: u32) -> Option<&K> {
        self.entries.get(id as usize)?.as_ref().map(|(key, _)| key)
    }

    /// One more use of a value.
    pub(super) fn take(&mut self, key: &K) -> u32 {
        if let Some(id) = self.ids.get(key) {
            if let Some(Some((_, uses))) = self.entries.get_mut(*id as usize) {
                *uses += 1;
            }
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        if let Some(entry) = self.entries.get_mut(id as usize) {
            *entry = Some((key.clone(), 1));
        }
        self.ids.insert(key.clone(), id);
        id
    }

    /// One use less; a number that is not in use changes nothing.
    pub(super) fn release(&mut self, id: u32) {
        let Some(entry) = self.entries.get_mut(id as usize) else { return };
        match entry {
            Some((_, uses)) if *uses > 1 => *uses -= 1,
            Some((key, _)) => {
                self.ids.remove(key);
                *entry = None;
                self.free.push(id);
            }
            None => {}
        }
    }

    /// Values in use.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_as_long_as_its_uses() {
        let mut pool: Pool<Box<str>> = Pool::default();
        let a = pool.take(&"a".into());
        assert_eq!(pool.take(&"a".into()), a);
        pool.release(a);
        assert_eq!(pool.find("a"), Some(a));
        pool.release(a);
        pool.release(a);
        assert_eq!((pool.find("a"), pool.get(a), pool.len()), (None, None, 0));
        assert_eq!(pool.take(&"b".into()), a, "the number is given again");
    }
}
