//! [`Numbers`]: the numbers by which the cache knows files. A file that is closed and opened again finds its pages. Non-goals: the pages.
//!
//! Rules:
//! 1. Two files that may have pages in the cache never have one number.
//! 2. A number is kept for a closed file only if all its pages are as the drives have them. It is the file's again only if the file has the
//!    same length as then. Otherwise the file gets a new number, and the old pages age away.

use std::collections::{BTreeMap, VecDeque};

use crate::cache::key::FILE_MAX;
use crate::catalog::Id;

/// The numbers of files.
#[derive(Debug)]
pub struct Numbers {
    /// Files that were opened so far with a new number.
    drawn: u64,
    /// Closed files that may still have pages.
    kept: BTreeMap<Id, Kept>,
    /// The files of `kept`, those closed longest ago first. It may also have files that are no longer kept.
    order: VecDeque<Id>,
    /// The most files to keep.
    most: usize,
}

/// What is known of a closed file.
#[derive(Clone, Copy, Debug)]
struct Kept {
    number: u32,
    /// Its length in bytes.
    len: u64,
}

/// A number for a file that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// The file may find pages of its own.
    Own(u32),
    /// No file had it before.
    New(u32),
    /// Another file had it. Its pages must go first.
    Used(u32),
}

impl Numbers {
    /// Numbers for files of which at most `most` are remembered after they were closed.
    pub fn new(most: usize) -> Numbers {
        Numbers { drawn: 0, kept: BTreeMap::new(), order: VecDeque::new(), most: most.max(1) }
    }

    /// A number for a file of `len` bytes that is being opened. `is_open` says which numbers open files have.
    pub fn draw(&mut self, id: &Id, len: u64, is_open: impl Fn(u32) -> bool) -> Drawn {
        if let Some(kept) = self.kept.remove(id)
            && kept.len == len
        {
            return Drawn::Own(kept.number);
        }
        loop {
            let number = (self.drawn % u64::from(FILE_MAX)) as u32 + 1;
            let is_used = self.drawn >= u64::from(FILE_MAX);
            self.drawn += 1;
            if !is_used {
                return Drawn::New(number);
            }
            if !is_open(number) {
                self.kept.retain(|_, kept| kept.number != number);
                return Drawn::Used(number);
            }
        }
    }

    /// Keeps the number of a file that is closed (rule 2).
    pub fn keep(&mut self, id: Id, number: u32, len: u64) {
        self.kept.insert(id, Kept { number, len });
        self.order.push_back(id);
        while self.kept.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        if self.order.len() > 2 * self.most {
            self.order.retain(|id| self.kept.contains_key(id));
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    fn id(number: u64) -> Id {
        Id(u128::from(number).to_le_bytes())
    }

    #[test]
    fn a_file_gets_its_number_back_while_it_is_remembered() {
        let mut numbers = Numbers::new(3);
        let none = |_| false;
        assert_eq!(numbers.draw(&id(9), 100, none), Drawn::New(1));
        assert_eq!(numbers.draw(&id(8), 100, none), Drawn::New(2));
        numbers.keep(id(9), 1, 100);
        assert_eq!(numbers.draw(&id(9), 100, none), Drawn::Own(1));
        // It is open, so another opening would be a mistake of the caller's, and gets a number of its own.
        assert_eq!(numbers.draw(&id(9), 100, none), Drawn::New(3));
        numbers.keep(id(8), 2, 100);
        assert_eq!(numbers.draw(&id(8), 101, none), Drawn::New(4), "its length has changed");
        assert_eq!(numbers.draw(&id(8), 100, none), Drawn::New(5), "its pages are the old ones");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut numbers = Numbers::new(3);
        for file in 0..1000 {
            numbers.keep(id(file), file as u32 + 1, 5);
            assert!(numbers.kept.len() <= 3 && numbers.order.len() <= 6);
            // The same file is closed again and again.
            numbers.draw(&id(file), 5, |_| false);
            numbers.keep(id(file), file as u32 + 1, 5);
            assert!(numbers.kept.len() <= 3 && numbers.order.len() <= 7, "{}", numbers.order.len());
        }
        assert_eq!(numbers.draw(&id(998), 5, |_| false), Drawn::Own(999));
        assert!(matches!(numbers.draw(&id(990), 5, |_| false), Drawn::New(_)));
    }

    /// After all numbers were used, they are used again: not those of open files, and not for two files.
    #[test]
    fn numbers_are_used_again_without_the_file_that_had_them() {
        let mut numbers = Numbers::new(10);
        numbers.keep(id(1), 1, 5);
        numbers.keep(id(2), 2, 5);
        numbers.drawn = u64::from(FILE_MAX);
        assert_eq!(numbers.draw(&id(7), 5, |number| number == 1), Drawn::Used(2));
        assert_eq!(numbers.draw(&id(2), 5, |number| number == 1), Drawn::Used(3), "its number is another file's");
        assert_eq!(numbers.draw(&id(1), 5, |number| number == 2), Drawn::Own(1));
    }
}
