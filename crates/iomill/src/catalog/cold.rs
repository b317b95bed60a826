//! [`ColdRuns`]: free pages of small files that are holes (rule 1 of `give_back`). Non-goals: when pages become cold,
//! and when they are filled again.

use std::collections::BTreeMap;

use super::journal::space::Place;

/// Runs of pages that are holes, of one drive. No two touch.
#[derive(Debug, Default)]
pub(super) struct ColdRuns(BTreeMap<Place, u32>);

impl ColdRuns {
    /// Adds a run, and joins it with its neighbours.
    pub(super) fn add(&mut self, (part, page): Place, pages: u32) {
        let (mut first, mut end) = (page, page + pages);
        if let Some((&(of, before), &len)) = self.0.range(..(part, page)).next_back()
            && of == part
            && before + len == page
        {
            self.0.remove(&(of, before));
            first = before;
        }
        if let Some(len) = self.0.remove(&(part, end)) {
            end += len;
        }
        self.0.insert((part, first), end - first);
    }

    /// Takes at most `most` pages from a run that has `least`.
    pub(super) fn take(&mut self, least: u32, most: u32) -> Option<(Place, u32)> {
        let (&place, &pages) = self.0.iter().find(|(_, pages)| **pages >= least)?;
        let taken = pages.min(most.max(least));
        self.0.remove(&place);
        if taken < pages {
            self.0.insert((place.0, place.1 + taken), pages - taken);
        }
        Some((place, taken))
    }

    /// All of them.
    pub(super) fn into_runs(self) -> impl Iterator<Item = (Place, u32)> {
        self.0.into_iter()
    }

    /// How many pages there are.
    pub(super) fn pages(&self) -> u64 {
        self.0.values().map(|pages| u64::from(*pages)).sum()
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn cold_runs_are_joined_and_divided() {
        let mut cold = ColdRuns::default();
        for (place, pages) in [((0, 10), 5), ((0, 20), 5), ((1, 0), 30), ((0, 15), 5)] {
            cold.add(place, pages);
        }
        assert_eq!((cold.pages(), cold.0.len()), (45, 2));
        assert_eq!(cold.take(16, 100), Some(((1, 0), 30)));
        assert_eq!(cold.take(16, 100), None);
        assert_eq!(cold.take(3, 4), Some(((0, 10), 4)));
        assert_eq!((cold.take(1, 100), cold.pages()), (Some(((0, 14), 11)), 0));
    }
}
