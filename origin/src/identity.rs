//! [`ObjectId`] names one version of one object, [`GranuleId`] a granule of it, and [`GranuleId::sum`] proves a page.
//! `docs/origin.md` has the rules P1 and P2. Non-goals: the places of granules.

use twox_hash::{XxHash3_64, XxHash3_128};

/// The unit of a sum.
pub const PAGE_BYTES: usize = 4096;

/// The most pages of a granule.
pub const PAGES_MAX: usize = 16;

/// The sums of a granule's pages. Sums past its last page are 0.
pub type Sums = [u32; PAGES_MAX];

/// What distinguishes the contents of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The etag, and the version if the origin has one.
    Tag { e_tag: Option<String>, version: Option<String> },
    /// The time of the last change, for origins without etags.
    Modified { ns: i64 },
}

/// One version of one object, in 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId(u128);

/// One granule of one version of an object. Rule P1: it depends on origin, key, version, size and place, and on nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GranuleId {
    /// The index finds the granule by it. Never 0.
    pub tag: u64,
    /// Only the sums of the granule contain it. A granule with the same tag and another proof is a miss.
    proof: u64,
}

impl ObjectId {
    pub fn new(origin: &str, key: &str, version: &Version, size: u64) -> ObjectId {
        let mut text = Vec::with_capacity(origin.len() + key.len() + 96);
        let mut field = |bytes: Option<&[u8]>| {
            // The length of a field precedes it, so no field continues in the next one. The length of an absent field
            // is one that no text has.
            let bytes_or_none = bytes.unwrap_or_default();
            text.extend_from_slice(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
            text.extend_from_slice(bytes_or_none);
        };
        field(Some(origin.as_bytes()));
        field(Some(key.as_bytes()));
        match version {
            Version::Tag { e_tag, version } => {
                field(e_tag.as_deref().map(str::as_bytes));
                field(version.as_deref().map(str::as_bytes));
            }
            Version::Modified { ns } => field(Some(&[&b"modified"[..], &ns.to_le_bytes()].concat())),
        }
        field(Some(&size.to_le_bytes()));
        ObjectId(XxHash3_128::oneshot(&text))
    }

    pub fn granule(self, number: u64) -> GranuleId {
        let (low, high) = (self.0 as u64, (self.0 >> 64) as u64);
        let tag = mixed(low ^ mixed(number.wrapping_add(high)));
        GranuleId { tag: tag.max(1), proof: mixed(high ^ mixed(number ^ low.rotate_left(32))) }
    }
}

impl GranuleId {
    /// Rule P2: the sum of a page covers its bytes and their identity.
    pub fn sum(self, page: usize, bytes: &[u8]) -> u32 {
        let what = mixed(self.proof ^ self.tag.rotate_left(17) ^ page as u64);
        (mixed(XxHash3_64::oneshot(bytes) ^ what) >> 32) as u32
    }

    /// The sums of a granule, which is whole pages.
    pub fn sums(self, bytes: &[u8]) -> Sums {
        let mut sums = [0; PAGES_MAX];
        for (page, (sum, bytes)) in sums.iter_mut().zip(bytes.chunks(PAGE_BYTES)).enumerate() {
            *sum = self.sum(page, bytes);
        }
        sums
    }
}

/// A bijection in which each bit of the result depends on all bits of the number.
pub fn mixed(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(0xe9846af9b1a615d);
    x ^= x >> 32;
    x = x.wrapping_mul(0xe9846af9b1a615d);
    x ^ (x >> 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(e_tag: &str) -> Version {
        Version::Tag { e_tag: Some(e_tag.into()), version: None }
    }

    #[test]
    fn each_part_of_an_identity_counts() {
        let ids = [
            ObjectId::new("s3://a", "k", &tag("1"), 5),
            ObjectId::new("s3://b", "k", &tag("1"), 5),
            // The same letters, cut at another place.
            ObjectId::new("s3://", "ak", &tag("1"), 5),
            ObjectId::new("s3://a", "l", &tag("1"), 5),
            ObjectId::new("s3://a", "k", &tag("2"), 5),
            ObjectId::new("s3://a", "k", &tag("1"), 6),
            ObjectId::new("s3://a", "k", &Version::Tag { e_tag: Some("1".into()), version: Some("1".into()) }, 5),
            ObjectId::new("s3://a", "k", &Version::Tag { e_tag: None, version: Some("1".into()) }, 5),
            ObjectId::new("s3://a", "k", &Version::Modified { ns: 1 }, 5),
            ObjectId::new("s3://a", "k", &Version::Modified { ns: 2 }, 5),
        ];
        let page = [7; PAGE_BYTES];
        let mut tags = std::collections::HashSet::new();
        let mut sums = std::collections::HashSet::new();
        for id in ids {
            for number in [0, 1, 2, u64::MAX] {
                let granule = id.granule(number);
                assert!(tags.insert(granule.tag), "two granules with one tag");
                for place in 0..4 {
                    assert!(sums.insert(granule.sum(place, &page)), "a page has the sum of another page");
                }
            }
        }
    }

    #[test]
    fn each_bit_of_a_page_counts() {
        let granule = ObjectId::new("o", "k", &tag("1"), 1).granule(0);
        let mut page = [0; PAGE_BYTES];
        let sum = granule.sum(0, &page);
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(granule.sum(0, &page), sum, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// They are on drives. Another result is another format version.
    #[test]
    fn identities_and_sums_never_change() {
        let granule = ObjectId::new("s3://bucket", "key", &tag("\"abc\""), 100_000).granule(3);
        let page: Vec<u8> = (0..PAGE_BYTES).map(|n| n as u8).collect();
        let found = (granule.tag, granule.proof, granule.sum(2, &page));
        assert_eq!(found, (16225358010499036659, 14688649909823244561, 450215029));
    }
}
