//! [`Numbers`]: the numbers of files in the cache. By its number a file that is opened again finds its pages.
//! Non-goals: the pages.
//!
//! Rules:
//! 1. Two files that may have pages in the cache never have the same number. A number is in use from its draw until its
//!    file is closed and the pages that must be discarded have been discarded.
//! 2. A number is kept for a closed file only if all its pages equal the bytes on the drives. The next opening gets the
//!    number only if the file still has the same length. Otherwise the file gets a new number, and the policy evicts
//!    the old pages in time.

use std::collections::{BTreeMap, BTreeSet};

use crate::cache::key::FILE_MAX;
use crate::catalog::Id;

/// The numbers of files.
#[derive(Debug)]
pub struct Numbers {
    /// Files that were opened so far with a new number.
    drawn: u64,
    /// Closed files that may still have pages.
    kept: BTreeMap<Id, Kept>,
    /// The files of `kept` by their turns: those closed longest ago come first.
    order: BTreeMap<u64, Id>,
    /// The turn of the file that is closed next.
    turn: u64,
    /// Numbers of files that are being opened, open, or being closed (rule 1).
    used: BTreeSet<u32>,
    /// The most files to keep.
    most: usize,
}

/// The record of a closed file.
#[derive(Clone, Copy, Debug)]
struct Kept {
    number: u32,
    /// Its length in bytes.
    len: u64,
    /// Its key in `order`.
    turn: u64,
}

/// A number for a file that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// The file may find pages of its own.
    Own(u32),
    /// No file had it before.
    New(u32),
    /// Another file had it. The pages of that file must be discarded first.
    Used(u32),
}

impl Numbers {
    /// Numbers for files. At most `most` files are remembered after they were closed.
    pub fn new(most: usize) -> Numbers {
        Numbers {
            drawn: 0,
            kept: BTreeMap::new(),
            order: BTreeMap::new(),
            turn: 0,
            used: BTreeSet::new(),
            most: most.max(1),
        }
    }

    /// A number for a file of `len` bytes that is being opened. It is in use until `keep` or `end`.
    pub fn draw(&mut self, id: &Id, len: u64) -> Drawn {
        let own = self.forget(id).filter(|kept| kept.len == len).map(|kept| Drawn::Own(kept.number));
        let drawn = own.unwrap_or_else(|| self.draw_other());
        let (Drawn::Own(number) | Drawn::New(number) | Drawn::Used(number)) = drawn;
        self.used.insert(number);
        drawn
    }

    fn draw_other(&mut self) -> Drawn {
        loop {
            let number = (self.drawn % u64::from(FILE_MAX)) as u32 + 1;
            let is_new = self.drawn < u64::from(FILE_MAX);
            self.drawn += 1;
            if is_new {
                return Drawn::New(number);
            }
            if !self.used.contains(&number) {
                let had_it = self.kept.iter().find(|(_, kept)| kept.number == number).map(|(id, _)| *id);
                had_it.and_then(|id| self.forget(&id));
                return Drawn::Used(number);
            }
        }
    }

    fn forget(&mut self, id: &Id) -> Option<Kept> {
        let kept = self.kept.remove(id)?;
        self.order.remove(&kept.turn);
        Some(kept)
    }

    /// Keeps the number of a file that is closed (rule 2).
    pub fn keep(&mut self, id: Id, number: u32, len: u64) {
        self.end(number);
        let turn = self.turn;
        self.turn += 1;
        self.kept.insert(id, Kept { number, len, turn });
        self.order.insert(turn, id);
        if self.kept.len() > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.kept.remove(&oldest);
        }
    }

    /// Ends the use of a number. Its file is closed, and does not get it again.
    pub fn end(&mut self, number: u32) {
        self.used.remove(&number);
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
        assert_eq!(numbers.draw(&id(9), 100), Drawn::New(1));
        assert_eq!(numbers.draw(&id(8), 100), Drawn::New(2));
        numbers.keep(id(9), 1, 100);
        assert_eq!(numbers.draw(&id(9), 100), Drawn::Own(1));
        // It is open, so another opening would be a mistake of the caller's, and gets a number of its own.
        assert_eq!(numbers.draw(&id(9), 100), Drawn::New(3));
        numbers.keep(id(8), 2, 100);
        assert_eq!(numbers.draw(&id(8), 101), Drawn::New(4), "its length has changed");
        assert_eq!(numbers.draw(&id(8), 100), Drawn::New(5), "its pages are the old ones");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut numbers = Numbers::new(3);
        for file in 0..1000 {
            numbers.keep(id(file), file as u32 + 1, 5);
            assert!(numbers.kept.len() <= 3 && numbers.order.len() == numbers.kept.len());
            // The same file is closed again and again.
            numbers.draw(&id(file), 5);
            numbers.keep(id(file), file as u32 + 1, 5);
            assert!(numbers.kept.len() <= 3 && numbers.order.len() == numbers.kept.len() && numbers.used.is_empty());
        }
        assert_eq!(numbers.draw(&id(998), 5), Drawn::Own(999));
        assert!(matches!(numbers.draw(&id(990), 5), Drawn::New(_)));
    }

    /// The file that was closed longest ago is forgotten, not one that was closed often.
    #[test]
    fn a_file_that_is_closed_often_is_remembered() {
        let mut numbers = Numbers::new(3);
        for file in 1..=3 {
            numbers.keep(id(file), file as u32, 5);
        }
        assert_eq!(numbers.draw(&id(1), 5), Drawn::Own(1));
        numbers.keep(id(1), 1, 5);
        numbers.keep(id(4), 4, 5);
        assert_eq!(numbers.draw(&id(1), 5), Drawn::Own(1));
        assert!(matches!(numbers.draw(&id(2), 5), Drawn::New(_)), "it was closed before the others");
    }

    /// After all numbers were used, they are used again: not those of open files, and not for two files.
    #[test]
    fn numbers_are_used_again_without_the_file_that_had_them() {
        let mut numbers = Numbers::new(10);
        numbers.keep(id(1), 1, 5);
        numbers.keep(id(2), 2, 5);
        numbers.drawn = u64::from(FILE_MAX);
        // A number in use is no other file's, however long the opening or the closing of its file takes.
        assert_eq!(numbers.draw(&id(1), 5), Drawn::Own(1));
        assert_eq!(numbers.draw(&id(7), 5), Drawn::Used(2));
        assert_eq!(numbers.draw(&id(2), 5), Drawn::Used(3), "its number is another file's");
        numbers.end(1);
        numbers.keep(id(7), 2, 5);
        numbers.drawn = u64::from(FILE_MAX);
        assert_eq!(numbers.draw(&id(8), 5), Drawn::Used(1));
        assert_eq!(numbers.draw(&id(9), 5), Drawn::Used(2));
        assert_eq!(numbers.draw(&id(10), 5), Drawn::Used(4), "3 is in use");
        assert_eq!(numbers.draw(&id(7), 5), Drawn::Used(5), "its number is another file's");
    }
}
