//! [`HeldPages`]: locks on pages for operations past the cache, so that a page and its sum change together. Non-goals:
//! waiting, which the caller does.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::Waiter;
use crate::sys::sync::{Mutex, lock};

/// See the module.
#[derive(Debug, Default)]
pub struct HeldPages {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    holds: Vec<Hold>,
    /// The number of the next hold.
    next: u64,
}

/// The pages that one operation holds.
#[derive(Debug)]
struct Hold {
    number: u64,
    /// Ranges of pages, in rising order.
    pages: Vec<Range<u64>>,
    writes: bool,
    /// For operations that wait for its end.
    waiter: Option<Arc<Waiter>>,
}

/// Pages that an operation holds until this is dropped.
#[derive(Debug)]
pub struct Holding<'a> {
    held: &'a HeldPages,
    number: u64,
}

impl HeldPages {
    /// Holds pages for a write or a read, as ranges in rising order. A write excludes all other holds of a page, and a
    /// read excludes writes. If another operation excludes this one, returns the waiter for the end of its hold.
    pub fn try_hold(&self, pages: &[Range<u64>], writes: bool) -> Result<Holding<'_>, Arc<Waiter>> {
        let mut state = lock(&self.state);
        let excludes = |hold: &&mut Hold| (hold.writes || writes) && overlap(&hold.pages, pages);
        if let Some(other) = state.holds.iter_mut().find(excludes) {
            return Err(Arc::clone(other.waiter.get_or_insert_default()));
        }
        let number = state.next;
        state.next += 1;
        state.holds.push(Hold { number, pages: pages.to_vec(), writes, waiter: None });
        Ok(Holding { held: self, number })
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let waiter = {
            let mut state = lock(&self.held.state);
            let place = state.holds.iter().position(|hold| hold.number == self.number);
            place.and_then(|place| state.holds.swap_remove(place).waiter)
        };
        // A waiting operation tries by itself, whatever the outcome of this one.
        waiter.inspect(|waiter| waiter.tell(Ok(())));
    }
}

/// Whether two lists of ranges in rising order have a page in common.
fn overlap(mut one: &[Range<u64>], mut other: &[Range<u64>]) -> bool {
    while let ([first, rest @ ..], [second, others @ ..]) = (one, other) {
        if first.end <= second.start {
            one = rest;
        } else if second.end <= first.start {
            other = others;
        } else {
            return true;
        }
    }
    false
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn a_write_holds_its_pages_alone() {
        let held = HeldPages::default();
        let one = |range, writes| held.try_hold(std::slice::from_ref(&range), writes);
        let reading = held.try_hold(&[0..2, 8..9], false).unwrap();
        let more = one(1..3, false).unwrap();
        assert!(one(2..3, true).is_err());
        let writing = held.try_hold(&[3..8, 9..10], true).unwrap();
        let (reader, writer) = (one(7..8, false).unwrap_err(), one(7..8, true).unwrap_err());
        assert!(reader.outcome().is_none() && Arc::ptr_eq(&reader, &writer));
        drop(writing);
        assert_eq!(reader.outcome(), Some(Ok(())), "the end of a hold is told");
        drop((reading, more));
        assert!(one(0..100, true).is_ok());
    }
}
