//! Doubly linked lists over indices. Each index is in at most one list.

/// The mark of an index outside any list.
const NOWHERE: u8 = u8::MAX;

/// `N` lists over the indices below a bound.
#[derive(Debug)]
pub(crate) struct Lists<const N: usize> {
    /// (previous, next) of each index, then of each list's anchor. An anchor's next is the first of the list, its
    /// previous the last.
    links: Vec<(u32, u32)>,
    /// The list that each index is in.
    within: Vec<u8>,
    lens: [usize; N],
}

impl<const N: usize> Lists<N> {
    /// Empty lists over indices below `bound`, which is below 2^31.
    pub(crate) fn new(bound: usize) -> Lists<N> {
        let mut links = vec![(0, 0); bound];
        links.extend((bound..bound + N).map(|anchor| (anchor as u32, anchor as u32)));
        Lists { links, within: vec![NOWHERE; bound], lens: [0; N] }
    }

    /// The list that an index is in.
    pub(crate) fn of(&self, index: u32) -> Option<usize> {
        let list = self.within[index as usize];
        (list != NOWHERE).then_some(usize::from(list))
    }

    pub(crate) fn len(&self, list: usize) -> usize {
        self.lens[list]
    }

    /// Puts an index that is in no list at the front of a list.
    pub(crate) fn push_front(&mut self, list: usize, index: u32) {
        let anchor = self.within.len() + list;
        let first = self.links[anchor].1;
        self.links[index as usize] = (anchor as u32, first);
        self.links[first as usize].0 = index;
        self.links[anchor].1 = index;
        self.within[index as usize] = list as u8;
        self.lens[list] += 1;
    }

    /// Removes an index from its list.
    pub(crate) fn remove(&mut self, index: u32) {
        let list = std::mem::replace(&mut self.within[index as usize], NOWHERE);
        let (previous, next) = self.links[index as usize];
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.lens[usize::from(list)] -= 1;
    }

    /// Removes the last index from a list.
    pub(crate) fn pop_back(&mut self, list: usize) -> Option<u32> {
        let last = self.links[self.within.len() + list].0;
        if last as usize >= self.within.len() {
            return None;
        }
        self.remove(last);
        Some(last)
    }
}
