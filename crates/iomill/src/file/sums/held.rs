//! [`HeldPages`]: the pages on which operations work that go past the cache, so that a page and its sum change
//! together. Non-goals: waiting, which the caller does.

use std::ops::Range;

use crate::sys::sync::{Mutex, lock};

/// See the module.
#[derive(Debug, Default)]
pub struct HeldPages {
    all: Mutex<Vec<(u64, Hold)>>,
    next: Mutex<u64>,
}

/// What one operation holds.
#[derive(Debug)]
struct Hold {
    /// Ranges of pages, in rising order.
    pages: Vec<Range<u64>>,
    writes: bool,
}

/// Pages that an operation holds until this is dropped.
#[derive(Debug)]
pub struct Holding<'a> {
    held: &'a HeldPages,
    number: u64,
}

impl HeldPages {
    /// Holds pages, to write to them or to read them, as ranges in rising order. `None` if another operation holds one
    /// of them to write, or, for a write, at all.
    pub fn try_hold(&self, pages: &[Range<u64>], writes: bool) -> Option<Holding<'_>> {
        let mut all = lock(&self.all);
        if all.iter().any(|(_, hold)| (hold.writes || writes) && overlap(&hold.pages, pages)) {
            return None;
        }
        let number = {
            let mut next = lock(&self.next);
            *next += 1;
            *next
        };
        all.push((number, Hold { pages: pages.to_vec(), writes }));
        Some(Holding { held: self, number })
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        lock(&self.held.all).retain(|(number, _)| *number != self.number);
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
        assert!(one(2..3, true).is_none());
        let writing = held.try_hold(&[3..8, 9..10], true).unwrap();
        assert!(one(7..8, false).is_none() && one(7..8, true).is_none());
        drop((reading, more, writing));
        assert!(one(0..100, true).is_some());
    }
}
