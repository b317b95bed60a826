//! Files through the page cache: what a call does with pages. A [`Pager`] has the caches, a [`Paged`] is a file's part of them, and an
//! [`OpenFile`] is a file with that part.
//!
//! Goals: `cache` and `exec` put together for calls. Non-goals: the cache's own rules, and lengths.
//!
//! A call is cut into spans of pages. Pages that are in the cache are copied at once (`read`, `wave`). The caller fills the others, in
//! waves of bounded size, adjacent pages by one I/O (`fill`). The call waits for pages that another operation works on after its own
//! fills have ended (rule 4 of the cache). A span with a full set goes past the cache (`complete`). A background thread flushes dirty
//! pages, and so do calls that write too much, and `sync` (`flush`).

pub mod ahead;
pub mod batch;
mod complete;
mod direct;
mod fill;
mod flush;
mod flusher;
mod hit;
mod in_place;
mod io_buffer;
pub mod local;
mod node_request;
mod node_threads;
pub mod nodes;
mod numbers;
mod open;
mod open_files;
mod open_plain;
mod owned;
mod pipeline;
mod read;
mod resize;
mod span;
mod table;
mod todo;
mod wave;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::cache::key::Key;
use crate::cache::policy::PolicyKind;
use crate::cache::{Cache, CacheConfig, HintBase, Memory};
use crate::catalog::Id;
use crate::counters::Board;
use crate::drive::PAGE_BYTES;
use crate::drive::regions::Regions;
use crate::error::Result;
use crate::exec::pools;
use crate::exec::roles::NodeRoles;
use crate::sys::memory::PageBuf;
use crate::sys::process;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, RwLock, lock, read, write};
use flusher::Flusher;
use nodes::{Remote, Spread};
use numbers::{Drawn, Numbers};

pub use direct::DirectReading;
pub use in_place::{PinnedPage, PinnedRange};
pub use io_buffer::{Failed, IoBuffer, IoBytes, Kept, Outcome};
pub use open::{OpenFile, OpenRef};
pub use open_files::OpenFiles;
pub use open_plain::Places;
pub use owned::OwnedBytes;
pub use span::Want;
pub use span::{Span, spans};
pub use todo::LIST_SPANS;

/// Frames are registered with engines in chunks, and memory goes back to the system in chunks. A chunk is a sixteenth of the cache or a
/// little more, within these bounds, in bytes.
const CHUNK_MIN_BYTES: u64 = 2 << 20;
const CHUNK_MAX_BYTES: u64 = 64 << 20;
const CHUNK_SHARE: u64 = 16;

/// So many pages of the cache let it remember one closed file.
const KEPT_SHARE: u64 = 64;

/// Most pages of one wave of fills.
const WAVE_PAGES: usize = 1024;

/// What a pager is made from.
#[derive(Clone, Debug)]
pub struct PagerOptions {
    /// Memory for cached pages in bytes; 0 for none, `None` for the default.
    pub cache_bytes: Option<u64>,
    /// How far it may grow, in bytes.
    pub cache_bytes_max: Option<u64>,
    /// Pages of a set.
    pub set_size: usize,
    pub policy: PolicyKind,
    pub hash_mask: u64,
    pub remote: Remote,
    /// Whether there are threads: there are none in a simulation.
    pub has_threads: bool,
}

/// The caches, and the thread that flushes them. A pager serves the files of any number of arrays.
#[derive(Debug)]
pub struct Pager {
    /// What the caches share.
    memory: Arc<Memory>,
    /// The cache of the first node that has one.
    first: Cache,
    /// The caches of the other nodes, with what only several nodes need.
    spread: Option<Spread>,
    /// Tells the pagers of this process apart in the threads' tables.
    instance: u64,
    /// `instance` while the array is open, then `local::CLOSED`.
    open: AtomicU64,
    /// The open files, by their number in the cache.
    files: RwLock<BTreeMap<u32, Weak<OpenFile>>>,
    numbers: Mutex<Numbers>,
    pub flusher: Flusher,
    board: Arc<Board>,
    /// Pages that came in, roughly. A change tells a thread that has only hits that a policy needs to know of them.
    taken: AtomicU64,
    /// Pages in flight that no call has asked for yet.
    ahead: AtomicU64,
    /// Ranges that advice asks for.
    wanted: ahead::Wanted,
    /// Memory for the copies that are flushed, to be used again: large ones and small ones.
    copies: [Mutex<Vec<PageBuf>>; 2],
    regions: Arc<Regions>,
    /// See [`CHUNK_MIN_BYTES`].
    chunk_bytes: usize,
}

/// Bounds that follow from the cache's size.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Pages of one wave of fills (rule 5 of the cache).
    wave_pages: usize,
    /// A set with more dirty pages than this is flushed.
    set_dirty: u32,
    /// With more dirty pages than this in all sets, writers flush by themselves.
    dirty_pages: u64,
}

impl Pager {
    /// The caches that the options ask for, or `None`. A default size shrinks until the address space has room for it.
    pub fn new(
        options: &PagerOptions,
        roles: &NodeRoles,
        instance: u64,
        regions: &Arc<Regions>,
        board: &Arc<Board>,
        notices: &mut Vec<String>,
    ) -> Result<Option<Arc<Pager>>> {
        static ONCE: std::sync::Once = std::sync::Once::new();
        let nodes = roles.cache.len();
        let Some(mut sizes) = resize::sizes(options, nodes)? else { return Ok(None) };
        let mut caches = loop {
            let smaller = match Pager::of_size(options, sizes, nodes) {
                Ok(caches) => break caches,
                Err(error) => sizes.smaller(options, nodes).ok_or(error)?,
            };
            sizes = smaller;
        };
        if sizes.now < sizes.wanted {
            let (now, wanted) = (sizes.now >> 10, sizes.wanted >> 10);
            notices
                .push(format!("the cache has {now} KiB and not {wanted} KiB: address space is limited (`ulimit -v`)"));
        }
        board.set_cache_bytes(sizes.now);
        let share = sizes.now / CHUNK_SHARE / nodes as u64;
        let chunk_bytes = share.next_power_of_two().clamp(CHUNK_MIN_BYTES, CHUNK_MAX_BYTES) as usize;
        for cache in &caches {
            let (start, len) = cache.span();
            regions.add_slab(start, len, chunk_bytes);
            regions.use_slab(start, cache.used_bytes());
        }
        let first = caches.remove(0);
        let threads = options.has_threads;
        let kept = (sizes.most / PAGE_BYTES as u64 / KEPT_SHARE) as usize;
        let spread = (roles.nodes.len() > 1).then(|| Spread::new(roles, caches, options.remote, threads));
        let reads_all = spread.as_ref().is_none_or(Spread::reads_all);
        let memory = Arc::clone(first.memory());
        memory.readers.store(if reads_all { instance } else { local::CLOSED }, Ordering::Relaxed);
        let pager = Pager {
            memory,
            first,
            spread,
            board: Arc::clone(board),
            taken: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            wanted: ahead::Wanted::default(),
            copies: Default::default(),
            regions: Arc::clone(regions),
            chunk_bytes,
            instance,
            open: AtomicU64::new(instance),
            files: RwLock::default(),
            numbers: Mutex::new(Numbers::new(kept)),
            flusher: Flusher::default(),
        };
        pager.bind(roles, notices);
        ONCE.call_once(|| {
            process::call_in_children(local::forget_in_child);
            pools::before_users_code(local::forget_last);
        });
        Ok(Some(Arc::new(pager)))
    }

    fn of_size(options: &PagerOptions, sizes: resize::Sizes, nodes: usize) -> Result<Vec<Cache>> {
        match caches(options, sizes.now, sizes.most, nodes) {
            // The address space may be too small for the largest size. A cache that cannot grow is better than none.
            Err(_) if options.cache_bytes_max.is_none() => caches(options, sizes.now, sizes.now, nodes),
            caches => caches,
        }
    }

    /// The bounds that follow from the present size.
    fn limits(&self) -> Limits {
        // All pages of a wave may belong to one node.
        let (least, pages) = match &self.spread {
            None => (self.first.directory().pages(), self.first.directory().pages()),
            Some(_) => (self.caches().map(|cache| cache.directory().pages()).min().unwrap_or(0), self.pages()),
        };
        Limits {
            wave_pages: (least as usize / 4).clamp(1, WAVE_PAGES),
            set_dirty: self.first.directory().ways() as u32 * 3 / 4,
            dirty_pages: pages * 3 / 4,
        }
    }

    /// A number for a file of `len` bytes that is being opened (rules of `numbers`).
    fn number(&self, id: &Id, len: u64) -> u32 {
        let drawn = lock(&self.numbers).draw(id, len);
        match drawn {
            Drawn::Own(number) | Drawn::New(number) => number,
            Drawn::Used(number) => {
                self.discard(number, 0);
                number
            }
        }
    }

    /// Adds an open file, so that its pages can be flushed.
    fn enter(&self, number: u32, file: &Arc<OpenFile>) {
        write(&self.files).insert(number, Arc::downgrade(file));
    }

    /// Removes a file that is closed. Its clean pages stay until the policy chooses them, and are there if the file is opened again with
    /// the same length. `len` is that length, or `None` if not all was flushed. Dirty pages go now: their flush has failed, and that was
    /// reported.
    fn leave(&self, paged: &Paged, len: Option<u64>) {
        let number = paged.number();
        write(&self.files).remove(&number);
        let is_dirty = !self.dirty_of(number).is_empty();
        if is_dirty {
            self.discard(number, 0);
        }
        // Last: from now on another file may get the number.
        match len {
            Some(len) if !is_dirty => lock(&self.numbers).keep(paged.id, number, len),
            _ => lock(&self.numbers).end(number),
        }
    }

    /// An open file, by its number in keys.
    fn file(&self, number: u32) -> Option<OpenRef> {
        read(&self.files).get(&number).and_then(Weak::upgrade).map(OpenRef::new)
    }
}

/// The caches of `nodes` nodes, which share the bytes.
fn caches(options: &PagerOptions, bytes: u64, bytes_max: u64, nodes: usize) -> Result<Vec<Cache>> {
    let share = |bytes| nodes::shares(bytes, options.set_size, nodes);
    let PagerOptions { set_size, policy, hash_mask, .. } = *options;
    let each = share(bytes).into_iter().zip(share(bytes_max));
    let configs: Vec<_> =
        each.map(|(bytes, bytes_max)| CacheConfig { bytes, bytes_max, set_size, policy, hash_mask }).collect();
    Cache::several(&configs)
}

/// A file's part of the cache.
#[derive(Debug)]
pub struct Paged {
    pub pager: Arc<Pager>,
    /// The pager's. A hit finds it here by one load less.
    memory: Arc<Memory>,
    id: Id,
    /// The key of the file's page 0.
    zero: Key,
    /// Where the hints of its pages begin.
    hints: HintBase,
    /// From this offset on, in bytes, the drives hold only zeroes, and no write is in flight. A page there that is not in the cache need
    /// not be read before a write. The offset moves before a page goes to its drive (`on_its_way`). A thread that looks holds the lock of
    /// the page's set, without which no page leaves the cache.
    fresh_from: AtomicU64,
}

impl Paged {
    /// The part of a file that is being opened, `len` bytes long.
    pub fn new(pager: &Arc<Pager>, id: &Id, len: u64) -> Paged {
        let fresh_from = AtomicU64::new(len.next_multiple_of(PAGE_BYTES as u64));
        let zero = Key::first(pager.number(id, len));
        let memory = Arc::clone(&pager.memory);
        let hints = memory.hint_base(zero.file());
        Paged { pager: Arc::clone(pager), memory, id: *id, zero, hints, fresh_from }
    }

    /// The file's number in keys.
    pub fn number(&self) -> u32 {
        self.zero.file()
    }

    /// Notes that a page is about to be written to its drive.
    fn on_its_way(&self, page: u64) {
        let end = (page + 1) * PAGE_BYTES as u64;
        // Relaxed, here and in `is_fresh`: the lock of the page's set orders them.
        if self.fresh_from.load(Ordering::Relaxed) < end {
            self.fresh_from.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Whether a page's drive holds only zeroes of it. The page's set is locked, and does not have the page.
    fn is_fresh(&self, page: u64) -> bool {
        page * PAGE_BYTES as u64 >= self.fresh_from.load(Ordering::Relaxed)
    }

    /// Forgets the cached pages from a length in bytes on, and the page that contains that end. No write and no fill is in flight.
    pub fn cut(&self, len: u64) {
        self.pager.discard(self.number(), len / PAGE_BYTES as u64);
        self.fresh_from.store(len.next_multiple_of(PAGE_BYTES as u64), Ordering::Release);
    }

    /// The same, but the page that contains the end stays, with zeroes beyond the end. Its drive is to zero them, too. Returns `false`, and
    /// forgets nothing, if pins leave no frame for that page.
    pub fn cut_behind(&self, len: u64) -> bool {
        let within = (len % PAGE_BYTES as u64) as usize;
        if within > 0 {
            let (key, _, cache) = self.key(len / PAGE_BYTES as u64);
            if !cache.zero_end(key, within) {
                return false;
            }
        }
        self.cut(len.next_multiple_of(PAGE_BYTES as u64));
        true
    }

    /// The keys of pages.
    fn keys<'a>(&'a self, pages: impl IntoIterator<Item = &'a u64> + 'a) -> impl Iterator<Item = Key> + 'a {
        pages.into_iter().map(|&page| self.zero.page_after(page))
    }
}
