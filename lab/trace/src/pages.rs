//! A trace in memory, as accesses to pages, which is all that caches see.
//!
//! Goals: a few bytes per access, and an error before memory runs out. Non-goals: lengths and offsets within pages.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::Path;

use iomill::cache::key::Key;
use iomill::sys::limits::available_bytes;

use crate::error::{Result, TraceError};
use crate::format::Op;
use crate::reader::Reader;

/// The unit of caching, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Offsets in a device are below 2 to this power.
const OFFSET_BITS: u32 = 52;

/// The bits of a page number within its device.
pub(crate) const DEVICE_SHIFT: u32 = OFFSET_BITS - PAGE_BYTES.ilog2();

/// Marks writes of whole pages among the accesses; the other bits are the page's index.
const WRITE: u32 = 1 << 31;

/// Memory per access in bytes, while the list of accesses grows.
const ACCESS_COST_BYTES: usize = 3 * size_of::<u32>();

/// Memory per page that occurs, in bytes: its number, its entry in a table that is half full, and the same again while
/// these grow.
const PAGE_COST_BYTES: usize = 3 * (8 + 2 * 16);

/// The assumed memory if the system reports none.
const MEMORY_BYTES_DEFAULT: usize = 8 << 30;

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The page's index among the pages of the trace, in the order of their first accesses.
    pub index: u32,
    /// The page's number in the trace: its number on its device, and from bit 40 on the device's number.
    pub page: u64,
    /// Whether the access writes all of the page, so that none of its old bytes are needed.
    pub write: bool,
}

/// The page accesses of a trace, in order.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Indices into `pages`, with `WRITE` set in those of writes.
    accesses: Vec<u32>,
    /// The pages that occur, each once.
    pages: Vec<u64>,
}

impl Pages {
    /// Loads the first `requests` of a trace. A request touches every page that it overlaps. It is an error if that
    /// takes more than `memory_bytes` of memory.
    pub fn load(reader: &mut Reader, requests: u64, memory_bytes: usize) -> Result<Pages> {
        Pages::load_units(reader, PAGE_BYTES, (requests, memory_bytes), |_| ())
    }

    /// The same with units of another length: a power of two of bytes, at most a page. They take the place of pages,
    /// also in numbers. `each` is called with the number of units of each request that has bytes.
    pub(crate) fn load_units(
        reader: &mut Reader,
        unit_bytes: u64,
        (requests, memory_bytes): (u64, usize),
        mut each: impl FnMut(u32),
    ) -> Result<Pages> {
        let device_shift = OFFSET_BITS - unit_bytes.ilog2();
        let mut loader = Loader::default();
        let mut left = requests;
        while left > 0 {
            let Some(request) = reader.next_request()? else { break };
            left -= 1;
            if request.len == 0 {
                continue;
            }
            let (first, last) = (request.offset / unit_bytes, (request.end() - 1) / unit_bytes);
            for unit in first..=last {
                let is_whole = unit * unit_bytes >= request.offset && (unit + 1) * unit_bytes <= request.end();
                let number = (u64::from(request.device) << device_shift) | unit;
                loader.access(number, is_whole && request.op == Op::Write);
            }
            each((last - first + 1) as u32);
            if loader.memory_bytes() > memory_bytes || loader.is_full() {
                let why = format!(
                    "its {} page accesses so far, to {} pages, are more than fit into memory ({} MiB for a trace); \
                     --limit REQUESTS takes its beginning only",
                    loader.loaded.accesses.len(),
                    loader.loaded.pages.len(),
                    memory_bytes >> 20
                );
                return Err(TraceError::Whole { path: reader.path().to_owned(), why });
            }
        }
        if loader.loaded.accesses.is_empty() {
            let why = "it has no requests that touch a page, so there is nothing to simulate".to_owned();
            return Err(TraceError::Whole { path: reader.path().to_owned(), why });
        }
        Ok(loader.loaded)
    }

    /// One read of each of these pages, in order.
    pub fn of(pages: impl IntoIterator<Item = u64>) -> Pages {
        let mut loader = Loader::default();
        pages.into_iter().for_each(|page| loader.access(page, false));
        loader.loaded
    }

    /// The number of accesses.
    pub fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Whether there are no accesses.
    pub fn is_empty(&self) -> bool {
        self.accesses.is_empty()
    }

    /// The number of different pages.
    pub fn unique(&self) -> usize {
        self.pages.len()
    }

    /// The accesses in order.
    pub fn accesses(&self) -> impl ExactSizeIterator<Item = Access> + '_ {
        self.accesses.iter().map(|&access| {
            let index = access & !WRITE;
            Access { index, page: self.pages[index as usize], write: access & WRITE != 0 }
        })
    }

    /// The pages' indices in the order of the accesses.
    pub(crate) fn indices(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + '_ {
        self.accesses.iter().map(|&access| access & !WRITE)
    }
}

/// Half of the memory that this process can use now, in bytes.
pub fn memory_bytes() -> usize {
    let available = available_bytes(Path::new("/")).ok().and_then(|bytes| usize::try_from(bytes).ok());
    available.unwrap_or(MEMORY_BYTES_DEFAULT) / 2
}

#[derive(Default)]
struct Loader {
    loaded: Pages,
    index_of: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
}

/// The cache's own hash of a page's number. It takes a fraction of the time of the standard hash.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u64(&mut self, page: u64) {
        self.0 = Key::from_word(self.0 ^ page).hash().0;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Loader {
    fn access(&mut self, page: u64, write: bool) {
        let next = self.loaded.pages.len() as u32;
        let index = *self.index_of.entry(page).or_insert(next);
        if index == next {
            self.loaded.pages.push(page);
        }
        self.loaded.accesses.push(if write { index | WRITE } else { index });
    }

    fn memory_bytes(&self) -> usize {
        self.loaded.accesses.len() * ACCESS_COST_BYTES + self.loaded.pages.len() * PAGE_COST_BYTES
    }

    /// Whether the indices of one more request might not stay below 2^31, or the simulations' positions of its accesses
    /// below 2^32.
    fn is_full(&self) -> bool {
        const ROOM: usize = 1 << 19;
        self.loaded.pages.len() > WRITE as usize - ROOM || self.loaded.accesses.len() > u32::MAX as usize - ROOM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, requests: u64, memory_bytes: usize) -> Result<Pages> {
        let mut reader = Reader::new(std::io::Cursor::new(text.to_owned()), "t".into(), None)?;
        Pages::load(&mut reader, requests, memory_bytes)
    }

    #[test]
    fn a_request_touches_every_page_it_overlaps() {
        let pages = load("r,0,4096\nw,4095,4097\nr,8192,0\nr,4096,8193\n", u64::MAX, 1 << 20).unwrap();
        let found: Vec<(u32, u64, bool)> =
            pages.accesses().map(|access| (access.index, access.page, access.write)).collect();
        assert_eq!(found, [(0, 0, false), (0, 0, false), (1, 1, true), (1, 1, false), (2, 2, false), (3, 3, false)]);
        assert_eq!((pages.len(), pages.unique()), (6, 4));
    }

    #[test]
    fn devices_share_no_page() {
        let pages = load("0,0,512,r,0\n1,0,512,r,0\n0,1,512,r,0\n", u64::MAX, 1 << 20).unwrap();
        assert_eq!(pages.indices().collect::<Vec<_>>(), [0, 1, 0]);
        let far = "0,8796093022207,512,r,0\n1,0,512,r,0\n";
        assert_eq!(load(far, u64::MAX, 1 << 20).unwrap().unique(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_a_way_out() {
        let text = "r,0,1048576\nr,1048576,1048576\n";
        let error = load(text, u64::MAX, 300 * (ACCESS_COST_BYTES + PAGE_COST_BYTES)).unwrap_err().to_string();
        assert!(error.contains("512 page accesses") && error.contains("--limit"), "{error}");
        assert_eq!(load(text, 1, 300 * (ACCESS_COST_BYTES + PAGE_COST_BYTES)).unwrap().len(), 256);
        assert!(load("r,0,0\n", u64::MAX, 1 << 20).unwrap_err().to_string().contains("no requests"));
        assert!(memory_bytes() > 1 << 20);
    }
}
