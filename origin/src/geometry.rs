//! [`Geometry`]: the places of granules and summaries in the data file of a drive. Non-goals: their contents
//! (`summary`).
//!
//! A data file consists of regions of one length. A region begins with the pages of its summary. Its places for
//! granules follow.

use crate::identity::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes of a page of a summary before its entries.
pub const SUMMARY_HEAD_BYTES: usize = 64;

/// The lengths that the label of a drive fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    granule_bytes: u32,
    region_bytes: u64,
    regions: u32,
    /// Granules of a region.
    places: u32,
    /// Pages of a region's summary.
    summary_pages: u32,
}

impl Geometry {
    /// An error names the wrong length and the valid values.
    pub fn new(granule_bytes: u32, region_bytes: u64, regions: u32) -> Result<Geometry, String> {
        if !granule_bytes.is_power_of_two() || !(4096..=65536).contains(&granule_bytes) {
            return Err(format!(
                "a granule of {granule_bytes} bytes: the length must be a power of two from 4096 to 65536"
            ));
        }
        if !region_bytes.is_multiple_of(PAGE) || !(16 * u64::from(granule_bytes)..=1 << 36).contains(&region_bytes) {
            let least = 16 * granule_bytes;
            return Err(format!(
                "a region of {region_bytes} bytes: the length must be whole pages, from {least} bytes to 64 GiB"
            ));
        }
        if regions < 2 {
            return Err(format!(
                "{regions} regions: a drive has at least 2 of {region_bytes} bytes; give it more bytes"
            ));
        }
        let mut made = Geometry { granule_bytes, region_bytes, regions, places: 0, summary_pages: 0 };
        let entries = u64::from(made.entries_of_page());
        // Each page of the summary and its granules form one stretch; the last stretch may be shorter.
        let stretch = PAGE + entries * u64::from(granule_bytes);
        let rest = (region_bytes % stretch).saturating_sub(PAGE) / u64::from(granule_bytes);
        made.places = (region_bytes / stretch * entries + rest) as u32;
        made.summary_pages = made.places.div_ceil(made.entries_of_page());
        match u64::from(made.places) * u64::from(regions) {
            // The index has 36 bits for a place, of which 0 is none.
            0..=0xf_ffff_fffe => Ok(made),
            _ => Err(format!("{regions} regions of {region_bytes} bytes: a drive has at most 2^36 granules")),
        }
    }

    pub fn granule_bytes(&self) -> usize {
        self.granule_bytes as usize
    }

    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Granules of one region.
    pub fn places_of_region(&self) -> u32 {
        self.places
    }

    /// Granules of the drive.
    pub fn places(&self) -> u64 {
        u64::from(self.places) * u64::from(self.regions)
    }

    /// The length of the data file.
    pub fn file_bytes(&self) -> u64 {
        self.region_bytes * u64::from(self.regions)
    }

    /// Pages of a granule.
    pub fn pages(&self) -> usize {
        self.granule_bytes() / PAGE_BYTES
    }

    /// Words of an entry: the tag, and two sums in each.
    pub fn entry_words(&self) -> usize {
        1 + self.pages().div_ceil(2)
    }

    /// Entries of one page of a summary.
    pub fn entries_of_page(&self) -> u32 {
        ((PAGE_BYTES - SUMMARY_HEAD_BYTES) / (8 * self.entry_words())) as u32
    }

    pub fn summary_pages(&self) -> u32 {
        self.summary_pages
    }

    /// The offset of a page of a region's summary.
    pub fn summary_offset(&self, region: u32, page: u32) -> u64 {
        u64::from(region) * self.region_bytes + u64::from(page) * PAGE
    }

    /// The offset of the granule at a place.
    pub fn offset(&self, place: u64) -> u64 {
        let (region, within) = (self.region_of(place), place % u64::from(self.places));
        let data = self.summary_offset(region, self.summary_pages);
        data + within * u64::from(self.granule_bytes)
    }

    pub fn region_of(&self, place: u64) -> u32 {
        (place / u64::from(self.places)) as u32
    }

    pub fn first_place(&self, region: u32) -> u64 {
        u64::from(region) * u64::from(self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn granules_and_summaries_fill_a_region_and_never_overlap(shift in 12..=16u32, pages in 256..30_000u64, regions in 2..50u32) {
            let geometry = Geometry::new(1 << shift, pages * PAGE, regions).unwrap();
            let places = u64::from(geometry.places_of_region());
            prop_assert!(geometry.summary_pages() * geometry.entries_of_page() >= geometry.places_of_region());
            for region in [0, regions - 1] {
                let begin = u64::from(region) * geometry.region_bytes();
                let first = geometry.offset(geometry.first_place(region));
                prop_assert!(first >= geometry.summary_offset(region, geometry.summary_pages()));
                prop_assert_eq!(first % PAGE, 0);
                let last = geometry.offset(geometry.first_place(region) + places - 1);
                let end = last + geometry.granule_bytes() as u64;
                prop_assert!(end <= begin + geometry.region_bytes());
                prop_assert!(begin + geometry.region_bytes() - end < PAGE + geometry.granule_bytes() as u64, "room is lost");
                prop_assert_eq!(geometry.region_of(geometry.first_place(region) + places - 1), region);
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for (granule, region, regions, word) in [
            (5000, 1 << 20, 4, "granule"),
            (131_072, 1 << 26, 4, "granule"),
            (16_384, 5000, 4, "region"),
            (16_384, 1 << 37, 4, "region"),
            (16_384, 1 << 20, 1, "regions"),
            (4096, 1 << 36, u32::MAX, "2^36"),
        ] {
            let why = Geometry::new(granule, region, regions).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
