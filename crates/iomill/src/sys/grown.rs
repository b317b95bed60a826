//! [`Grown`]: a list that only grows, up to a bound. Readers take no lock. Non-goals: removing or moving values.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Grown<T> {
    /// The slots before `len` are set.
    slots: Box<[OnceLock<T>]>,
    len: AtomicUsize,
}

impl<T> Grown<T> {
    /// An empty list with room for `most`.
    pub fn new(most: usize) -> Grown<T> {
        Grown { slots: (0..most).map(|_| OnceLock::new()).collect(), len: AtomicUsize::new(0) }
    }

    /// The number of values.
    #[inline]
    pub fn count(&self) -> usize {
        // Acquire: pairs with the Release in `push`.
        self.len.load(Ordering::Acquire)
    }

    /// Appends a value, and returns its index, or the value itself if the list is full. One thread at a time pushes.
    pub fn push(&self, value: T) -> Result<usize, T> {
        let index = self.count();
        let Some(slot) = self.slots.get(index) else { return Err(value) };
        slot.set(value)?;
        // Release: pairs with the Acquire in `count`, so that every slot before the length is seen as set.
        self.len.store(index + 1, Ordering::Release);
        Ok(index)
    }

    /// The value at an index, if there is one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.get()
    }

    /// All present values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map_while(OnceLock::get)
    }
}

impl<T> Index<usize> for Grown<T> {
    type Output = T;

    /// # Panics
    /// If there is no value at the index.
    #[inline]
    fn index(&self, index: usize) -> &T {
        match self.get(index) {
            Some(value) => value,
            None => panic!("no entry {index} of {}", self.count()),
        }
    }
}

impl<T> Extend<T> for Grown<T> {
    /// # Panics
    /// If the list is full.
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| assert!(self.push(value).is_ok(), "the list is made with room for all"));
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn it_grows_up_to_its_bound() {
        let list = Grown::new(2);
        assert_eq!((list.count(), list.get(0)), (0, None));
        assert_eq!((list.push('a'), list.push('b'), list.push('c')), (Ok(0), Ok(1), Err('c')));
        assert_eq!((list.count(), list[1], list.get(2)), (2, 'b', None));
        assert_eq!(list.iter().copied().collect::<String>(), "ab");
    }
}
