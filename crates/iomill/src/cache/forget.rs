//! Dropping of pages that are no longer needed, and the end of failed read-ahead.

use std::ops::Range;

use super::directory::SetIndex;
use super::key::Key;
use super::set::Locked;
use super::{Cache, Fill};

impl Cache {
    /// Drops the clean pages of a file in a range, and returns their number. Pages that are dirty, pinned, being filled
    /// or being flushed stay.
    pub fn forget(&self, file: u32, pages: Range<u64>) -> u64 {
        if pages.end.saturating_sub(pages.start) < self.directory().pages() {
            return pages.filter(|&page| self.forget_page(file, page)).count() as u64;
        }
        let _all = self.moves.read().unwrap_or_else(|e| e.into_inner());
        let mut gone = 0;
        for index in 0..self.directory().sets() {
            let set = self.directory().set(SetIndex(index));
            if !set.may_hold(file) {
                continue;
            }
            let mut set = set.lock();
            for way in (0..set.ways()).filter(|&way| Locked::has(set.present(), way)).collect::<Vec<_>>() {
                let key = set.key(way);
                if key.file() == file && pages.contains(&key.page()) && self.forget_way(&mut set, way) {
                    gone += 1;
                }
            }
        }
        gone
    }

    /// Ends a failed fill that no call asked for. Threads that wait for the page are told to look again, and a read of
    /// their own then reports the page's error. The failure may have been a neighbour's.
    pub fn abandon_fill(&self, fill: Fill) {
        let hash = fill.hash;
        let (_, mut set) = self.directory().lock(hash);
        if fill.is_passing {
            return self.end_pass(fill, &mut set, Ok(()));
        }
        let Some(way) = set.find(fill.key, hash) else { unreachable!("a filling way stays until its fill ends") };
        set.set_free(way);
        self.frames.give(fill.frame);
        self.waiters.tell(&mut set, fill.key, Ok(()));
    }

    fn forget_page(&self, file: u32, page: u64) -> bool {
        let Some(key) = Key::new(file, page) else { return false };
        let hash = self.directory().hash(key);
        let (_, mut set) = self.directory().lock(hash);
        let way = set.find(key, hash).filter(|&way| Locked::has(set.present(), way));
        way.is_some_and(|way| self.forget_way(&mut set, way))
    }

    /// Drops the page of a present way of a locked set, if it may go.
    fn forget_way(&self, set: &mut Locked<'_>, way: usize) -> bool {
        if Locked::has(set.dirty() | set.flushing(), way) {
            return false;
        }
        // A pinned page keeps its frame and stays in the cache (rule 2).
        if Locked::has(set.marked(), way) && self.unmark(set, 1 << way) == 0 {
            return false;
        }
        self.drop_page(set, way);
        true
    }
}
