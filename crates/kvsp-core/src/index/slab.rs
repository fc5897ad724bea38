//! Values by small numbers that are given again.

/// A value goes to the place freed last, or to a new one at the end.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn add(&mut self, value: T) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        if let Some(entry) = self.entries.get_mut(id as usize) {
            *entry = Some(value);
        }
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.entries.get_mut(id as usize)?.take();
        if value.is_some() {
            self.free.push(id);
        }
        value
    }

    /// Values held.
    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Octets of the places, free ones too, and of the list of these.
    pub(super) const fn octets(&self) -> u64 {
        (self.entries.len() * size_of::<Option<T>>() + self.free.len() * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_again_once() {
        let mut slab = Slab::default();
        assert_eq!((slab.add('a'), slab.add('b')), (0, 1));
        assert_eq!((slab.remove(0), slab.remove(0), slab.remove(9)), (Some('a'), None, None));
        assert_eq!((slab.used(), slab.get(0)), (1, None));
        assert_eq!((slab.add('c'), slab.add('d')), (0, 2));
        assert_eq!(slab.get(2), Some(&'d'));
    }
}
