//! Files through the page cache: what a call does with pages. A [`Pager`] has the caches, a [`Paged`] is a file's part
//! of them, and an [`OpenFile`] is a file with that part.
//!
//! Goals: `cache` and `exec` put together for calls. Non-goals: the cache's own rules, and lengths (`file`).
//!
//! - `mod.rs`: `Pager` and `Paged`, and the size of the cache.
//! - `open.rs`, `open_files.rs`, `table.rs`: `OpenFile`: a file's state and its pages; the open files of an array or
//!   runtime.
//! - `hit.rs`, `local.rs`: the path of a hit by its hint; the state of each thread for a cache.
//! - `read.rs`: lookups in the sets, also batches of lookups that overlap.
//! - `span.rs`, `todo.rs`, `wave.rs`, `fill.rs`, `complete.rs`: calls that need I/O.
//! - `pipeline.rs`: blocking calls with many missing pages: half a wave begins while the other half drains.
//! - `flush.rs`, `flusher.rs`: writing dirty pages to the drives.
//! - `in_place.rs`: pins and ranges in place.
//! - `io_buffer.rs`: memory that an operation owns until its end, and the outcomes that return it.
//! - `batch.rs`: batches for futures and callbacks.
//! - `direct.rs`: asynchronous reads that consist of their pieces alone, and asynchronous writes to cached pages.
//! - `ahead.rs`, `wanted.rs`: read-ahead and advice.
//! - `spread.rs`, `nodes.rs`, `node_request.rs`, `node_threads.rs`: NUMA nodes.
//! - `numbers.rs`: the numbers of files in the cache, also of closed files.
//!
//! # One call
//!
//! A call is cut into spans, one for each page.
//!
//! ```text
//! read    page -> hint -> frame: is the page its occupant? copy -> is the version still the same?      no lock
//!           | no
//!           v
//!         key, hash -> set: tags, keys -> frame: the same proof; the hint is right from now on         no lock
//!           | not there
//!           v
//! wave    under the set's lock: a free way, or the policy's victim -> filling
//!           one piece for adjacent pages -> drives -> copy to the caller -> present, tell the waiters
//! write   under the set's lock: copy in, dirty      (fill first, if the write covers part of a page on its drive)
//! flush   under the set's lock: copy out, flushing -> drives -> clean, or dirty again
//! ```
//!
//! - A wave has at most 1,024 pages, and at most a quarter of the smallest cache. So a call never needs more frames of
//!   a set than the set has. A blocking call has two halves of a wave at a time (`pipeline.rs`), and so has a future
//!   with more pages than a wave, and a batch that reads and writes.
//! - A wave has all spans of its pages, from anywhere in the call (`todo.rs`). So rows of one page are one I/O, in any
//!   order and with any size of the cache. A page serves all its spans before it can be evicted. No gather reads more
//!   pages than a call for each row would.
//! - Spans are sorted by page, a million at a time, and a blocking gather lists at most a million. So its time is
//!   proportional to its rows, and its list has at most 48 MiB. A future lists all its missing spans when it is made,
//!   24 bytes each. A page with rows in several such lists may be read once for each.
//! - Spans with a busy page, or with a full set, are the next wave: the page that they wait for may soon be evicted
//!   again.
//! - A call waits for pages of other operations only after its own fills have ended (rule 4 of the cache).
//!   `wait_for_busy` in `complete.rs` waits, and the end of the fill wakes the page's waiter.
//! - A page with a full set bypasses the cache, with one I/O for all its rows in a read. The transit table lists the
//!   page meanwhile, so rule 3 of the cache holds.
//!
//! # Flushing
//!
//! A flush copies each page and writes from the copy. The copy is cheap compared with the write. In return calls may
//! write to a page during its flush, and adjacent dirty pages of a block are one write.
//!
//! - The flusher, a thread in the background, flushes sets with more than three quarters of their pages dirty, and sets
//!   where a read displaced a clean page instead of a dirty one.
//! - A call that writes flushes its page's set, if its page displaced a clean page and a quarter of the set is dirty,
//!   or if all pages of the set are dirty. If three quarters of the cache are dirty, it also flushes other sets with
//!   many dirty pages.
//! - `sync`, and the end of a file, flush all dirty pages of the file.
//! - A clean page is evicted before a dirty one, so a call that needs a frame does not wait for a drive. If the policy
//!   had chosen a dirty page, its set is flushed soon. Otherwise unused dirty pages would stay for ever, and clean
//!   pages would be evicted in their place.
//! - The flusher has engines of its own, and writes in the background class.
//! - A failed flush leaves its pages dirty, and records its error in the file (`file/writeback_errors.rs`). The next
//!   sync or close of each handle that was open first repeats the flush, and reports the error once. `Array::close`
//!   returns an error that no handle has reported; otherwise the error becomes a notice.
//!
//! # Pages in place
//!
//! - `pin`, `read_with` and `submit_with` ask for pages by `Want::Touch`: a fill that copies nothing.
//! - No thread waits without bound for the end of a pin: pins may fill a set, and their holders may wait for pins, too.
//!   A range in place copies pages that cannot be pinned. A call for a single pin in a set full of pins returns an
//!   error after a while.
//! - The function of `submit_with` runs on a callback thread. If its pages were evicted again four times, the callback
//!   thread reads them.
//!
//! # Closed files
//!
//! The clean pages of a closed file stay until the policy evicts them. `numbers.rs` remembers the numbers of closed
//! files: one file for each 64 pages of the cache, and the file that was closed longest ago is forgotten first. A file
//! that is opened again with the same length finds its pages. If its number was forgotten, or if its last flush or sync
//! failed, it gets a new number, and does not find its old pages. A plain file that has changed has another id. A plain
//! file is not remembered if it was open for writing, or if a change of it might not show (`docs/plain-files.md`).
//!
//! `close` of the last handle waits for the I/O in flight, so that nothing holds the file after it.
//!
//! # Read-ahead
//!
//! - Misses decide on read-ahead. A handle keeps eight streams: positions from which a thread reads one page after the
//!   other.
//! - A hit makes one check: does its read end at the end of a 64 KiB chunk? Only then, and only while a stream has a
//!   window, does it check whether the next window is due.
//! - Windows are read in the background context and class: the reader submits them, and the reaper collects their
//!   completions.
//! - The failure of a window is not an error of any call. A call that needs its pages reads them itself.
//! - Pages that were read ahead have no mark, so a hit has none to clear. Read-ahead in vain is not counted.
//!
//! `docs/cache.md` describes windows and advice for users.
//!
//! # Nodes
//!
//! With several NUMA nodes, each node that caches has a whole cache in its own memory. With one node there is one
//! cache, and no message.
//!
//! - A hash of the 64 KiB around a page alone decides its node. So neighbours share one I/O, a small call uses one or
//!   two nodes, and a resize moves no page to another node. The hash of the page itself is independent of this hash.
//! - A lookup reads the memory of another node directly, without a lock. Frames have one numbering over all nodes, and
//!   hints and pins are common, so a hit does not need the node. A message would save the transfer of some cache lines
//!   between sockets, and cost two wakes.
//! - Fills and writes are sent as a message if a wave has eight pages or more for a node. `Tuning::remote`
//!   changes that. Futures and callbacks never send messages: a wait for a node would block the thread that polls.
//! - A node's thread waits for drives only. It returns undone the pages that another thread works on, and those with a
//!   full set. So threads never wait for each other in a circle (`node_request.rs`, rules 1 to 4).
//! - A node has one thread for each eight of its CPUs, at least one and at most four. Its inbox is that of a drive
//!   thread, with a bound.
//! - A node may cache and own no drives (`cache_nodes`, `io_nodes`). Then there are drive threads, and the engines of
//!   the node threads hand them their requests.
//! - Memory is allocated on the node by preference, not by binding. A page on another node is slower, but a process
//!   that is killed for lack of memory on one node is worse.
//! - An emulated topology (`emulate:N`) divides the CPUs and binds no memory. A simulation has nodes and no threads:
//!   the caller does all shares.

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
mod nodes;
mod numbers;
mod open;
mod open_files;
mod pipeline;
mod read;
mod span;
pub mod spread;
mod table;
mod todo;
mod wanted;
mod wave;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use crate::cache::directory::shape;
use crate::cache::key::{FILE_PAGES, Key};
use crate::cache::policy::PolicyKind;
use crate::cache::{Cache, CacheConfig, CacheMemory, CacheResize, HintBase, NO_READERS, Progress};
use crate::catalog::Id;
use crate::counters::Board;
use crate::drive::regions::Regions;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::exec::roles::NodeRoles;
use crate::file::MAX_FILE_BYTES;
use crate::file::sums::Sums;
use crate::sys::limits::{address_space_bytes, default_cache_bytes, memory_limit_bytes};
use crate::sys::memory::PageBuf;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, RwLock, lock, read, write};
use flusher::Flusher;
use numbers::{Drawn, Numbers};
use spread::{Remote, Spread};
use wanted::Wanted;

pub use direct::DirectReading;
pub use in_place::{PinnedPage, PinnedRange};
pub use io_buffer::{Failed, IoBuffer, IoBytes, Kept, Returned};
pub use open::{OpenFile, OpenRef};
pub use open_files::{OpenFiles, Places};
pub use span::Want;
pub use span::{Span, spans};
pub use todo::LIST_SPANS;

/// Frames are registered with engines in chunks, and memory goes back to the system in chunks. A chunk is a sixteenth
/// of the cache or a little more, within these bounds, in bytes.
const CHUNK_MIN_BYTES: u64 = 2 << 20;
const CHUNK_MAX_BYTES: u64 = 64 << 20;
const CHUNK_SHARE: u64 = 16;

/// Pages of the cache for each closed file that it remembers.
const KEPT_SHARE: u64 = 64;

/// Most pages of one wave of fills.
const WAVE_PAGES: usize = 1024;

/// The number of times that a cache may double by default, if there is memory.
const DOUBLINGS: u32 = 2;

/// Sets that a resize changes before it looks again whether the array is open.
const STEP_SETS: u32 = 64;

/// A cache may grow to 1/`ADDRESS_SHARE` of a limited address space. Rings, threads and the program need the rest.
const ADDRESS_SHARE: u64 = 2;

const _: () = assert!(MAX_FILE_BYTES == FILE_PAGES * PAGE_BYTES as u64);

/// The options of a pager.
#[derive(Clone, Debug)]
pub struct PagerOptions {
    /// Memory for cached pages in bytes; 0 for none, `None` for the default.
    pub cache_bytes: Option<u64>,
    /// The largest size that it may grow to, in bytes.
    pub cache_max_bytes: Option<u64>,
    /// Pages of a set.
    pub set_pages: usize,
    pub policy: PolicyKind,
    pub hash_mask: u64,
    pub remote: Remote,
    /// Whether there are threads: there are none in a simulation.
    pub has_threads: bool,
}

/// The caches, and the thread that flushes them. A pager serves the files of any number of arrays.
#[derive(Debug)]
pub struct Pager {
    /// The memory that the caches share.
    memory: Arc<CacheMemory>,
    /// The cache of the first node that has one.
    first: Cache,
    /// The caches of the other nodes, with the state that only several nodes need.
    spread: Option<Spread>,
    /// Tells the pagers of this process apart in the threads' tables.
    instance: u64,
    /// `instance` while the array is open, then `NO_READERS`.
    open: AtomicU64,
    /// The open files, by their number in the cache.
    files: RwLock<BTreeMap<u32, Weak<OpenFile>>>,
    numbers: Mutex<Numbers>,
    pub flusher: Flusher,
    board: Arc<Board>,
    /// The approximate number of pages that were read. A change tells a thread with only hits that a policy needs its
    /// hits.
    taken: AtomicU64,
    /// Pages in flight that no call has asked for yet.
    ahead: AtomicU64,
    /// Ranges that advice asks for.
    wanted: Wanted<OpenFile>,
    /// Memory for the copies that are flushed, to be used again: large ones and small ones.
    copies: [Mutex<Vec<PageBuf>>; 2],
    regions: Arc<Regions>,
    /// See [`CHUNK_MIN_BYTES`].
    chunk_bytes: usize,
}

/// Sizes of the cache in bytes, at its opening.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    now: u64,
    /// The largest size.
    most: u64,
    /// The default size with unlimited address space.
    wanted: u64,
}

impl Sizes {
    /// The next smaller default size to try if the address space has no room for this one. `None` below one set, and if
    /// an option names a size.
    fn smaller(self, options: &PagerOptions, nodes: usize) -> Option<Sizes> {
        let now = self.now / 2;
        let by_default = options.cache_bytes.is_none() && options.cache_max_bytes.is_none();
        (by_default && check_least(options.set_pages, nodes, now).is_ok()).then_some(Sizes { now, most: now, ..self })
    }
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
        let nodes = roles.cache.len();
        let Some(mut sizes) = sizes(options, nodes)? else { return Ok(None) };
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
        memory.readers.store(if reads_all { instance } else { NO_READERS }, Ordering::Relaxed);
        let pager = Pager {
            memory,
            first,
            spread,
            board: Arc::clone(board),
            taken: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            wanted: Wanted::default(),
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
        Ok(Some(Arc::new(pager)))
    }

    fn of_size(options: &PagerOptions, sizes: Sizes, nodes: usize) -> Result<Vec<Cache>> {
        match caches(options, sizes.now, sizes.most, nodes) {
            // The address space may be too small for the largest size. A cache that cannot grow is better than none.
            Err(_) if options.cache_max_bytes.is_none() => caches(options, sizes.now, sizes.now, nodes),
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

    /// Changes the size to `bytes`, step by step, and waits for pages that block a step. After an error the size is
    /// between the old and the new one.
    pub fn resize(&self, exec: &Exec, bytes: u64) -> Result<()> {
        let ways = self.first.directory().ways();
        if bytes == 0 {
            let help = "shrink it to one set at least, or open it without a cache";
            return Err(Error::invalid("a cache of 0 bytes", "an open array or runtime keeps its cache").advise(help));
        }
        check_least(ways, self.caches().count(), bytes)?;
        let set_bytes = (ways * PAGE_BYTES) as u64;
        let sets_max = self.caches().map(|cache| u64::from(cache.directory().sets_max())).sum();
        let most = set_bytes * sets_max;
        // Compared in whole sets: bytes beyond the last one do not count.
        if bytes / set_bytes > sets_max {
            let why = format!("it was opened to grow to {most} bytes");
            let help = format!("open it anew with a largest size of {bytes} bytes (`max_bytes`)");
            return Err(Error::invalid(format!("a cache of {bytes} bytes"), why).advise(help));
        }
        // All resizes begin before the first continues. So of two calls at a time the same one comes first on all
        // nodes.
        let shares = spread::shares(bytes, ways, self.caches().count());
        let mut resizes: Vec<_> =
            self.caches().zip(shares).map(|(cache, bytes)| (cache, cache.begin_resize(bytes))).collect();
        let resized = resizes.iter_mut().try_for_each(|(cache, resize)| self.resize_one(exec, cache, resize));
        // Set before the resizes end: of two calls at a time, the sizes of the one that ends last remain.
        let hints = self.memory.set_pages(self.pages()).map_err(|source| Error::MemoryKept { source });
        resized.and(hints)?;
        self.board.set_cache_bytes(bytes);
        drop(resizes);
        Ok(())
    }

    /// Runs one cache's resize to its end.
    fn resize_one(&self, exec: &Exec, cache: &Cache, resize: &mut CacheResize<'_>) -> Result<()> {
        let start = cache.span().0;
        self.regions.use_slab(start, cache.used_bytes());
        let mut dirty = Vec::new();
        loop {
            let step = resize.go_on(STEP_SETS, &mut dirty);
            self.board.set_cache_bytes(self.pages() * PAGE_BYTES as u64);
            exec.check_open()?;
            match step {
                Progress::Done => break,
                Progress::More => {}
                Progress::Blocked if self.flush_out(&mut dirty)? => {}
                Progress::Blocked => exec.pause_for_io(),
            }
        }
        self.regions.use_slab(start, cache.used_bytes());
        let released = resize.release(self.chunk_bytes, |range| self.regions.drop_chunks(start, range));
        released.map(drop).map_err(|source| Error::MemoryKept { source })
    }

    /// Flushes pages that are in the way, and clears the list. Returns whether any could be flushed.
    fn flush_out(&self, dirty: &mut Vec<Key>) -> Result<bool> {
        dirty.sort_unstable();
        let mut any = false;
        for keys in dirty.chunk_by(|a, b| a.file() == b.file()) {
            let Some(file) = self.file(keys[0].file()) else { continue };
            let io = file.exec().blocking();
            if let Some(flushed) = Exec::run_to_end(file.flush_if_open(&io, keys, Class::Foreground)) {
                flushed.result?;
                any |= flushed.cleaned > 0;
            }
        }
        dirty.clear();
        Ok(any)
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

    /// Removes a closed file. Its clean pages stay until the policy evicts them, and are found if the file is opened
    /// again with the same length. `len` is that length, or `None` if not all was flushed. Dirty pages are discarded:
    /// their flush has failed, and the failure was reported.
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

/// The sizes that options ask for; `None` for no cache.
fn sizes(options: &PagerOptions, nodes: usize) -> Result<Option<Sizes>> {
    // If the limit is unknown, there is no cache by default, and a cache grows only as far as the options say.
    let memory_bytes = memory_limit_bytes(Path::new("/")).unwrap_or(0);
    let address_bytes = address_space_bytes();
    let most = options.cache_max_bytes;
    let by_default = |limit_bytes| default_cache_bytes(limit_bytes).min(most.unwrap_or(u64::MAX));
    let (now, wanted) = match options.cache_bytes {
        Some(bytes) => (bytes, bytes),
        None => (by_default(memory_bytes.min(address_bytes)), by_default(memory_bytes)),
    };
    if now == 0 {
        return Ok(None);
    }
    // Before it is multiplied or divided by.
    shape(options.set_pages)?;
    check_least(options.set_pages, nodes, now)?;
    if let Some(most) = most
        && most < now
    {
        let what = format!("a cache of {now} bytes that may grow to {most} bytes");
        return Err(Error::invalid(what, "the largest size is at least the first (`max_bytes`, `cache_bytes`)"));
    }
    let room = memory_bytes.min(address_bytes / ADDRESS_SHARE);
    let fits = |doublings: &u32| now.checked_shl(*doublings).is_some_and(|bytes| bytes <= room);
    let most = most.unwrap_or_else(|| now << (0..=DOUBLINGS).rev().find(fits).unwrap_or(0));
    Ok(Some(Sizes { now, most, wanted }))
}

fn check_least(ways: usize, nodes: usize, bytes: u64) -> Result<()> {
    let least = (nodes * ways * PAGE_BYTES) as u64;
    if bytes < least {
        let each = if nodes == 1 { String::new() } else { format!(" for each of {nodes} nodes") };
        let why = format!("it holds at least one set of {ways} pages{each}, {least} bytes");
        return Err(Error::invalid(format!("a cache of {bytes} bytes"), why).advise("give at least that"));
    }
    Ok(())
}

/// The caches of `nodes` nodes, which share the bytes.
fn caches(options: &PagerOptions, bytes: u64, max_bytes: u64, nodes: usize) -> Result<Vec<Cache>> {
    let share = |bytes| spread::shares(bytes, options.set_pages, nodes);
    let PagerOptions { set_pages, policy, hash_mask, .. } = *options;
    let each = share(bytes).into_iter().zip(share(max_bytes));
    let configs: Vec<_> =
        each.map(|(bytes, max_bytes)| CacheConfig { bytes, max_bytes, set_pages, policy, hash_mask }).collect();
    Cache::several(&configs)
}

/// A file's part of the cache.
#[derive(Debug)]
pub struct Paged {
    pub pager: Arc<Pager>,
    /// The pager's memory, here to save a hit one load.
    memory: Arc<CacheMemory>,
    id: Id,
    /// The key of the file's page 0.
    zero: Key,
    /// Where the hints of its pages begin.
    hints: HintBase,
    /// The sums of its pages, if they have some.
    sums: Option<Arc<Sums>>,
    /// From this offset on, in bytes, the drives hold only zeroes, and no write is in flight. A missing page there need
    /// not be read before a write. The offset moves before a page is written to its drive (`on_its_way`). A thread that
    /// reads the offset holds the lock of the page's set, without which no page is evicted.
    fresh_from: AtomicU64,
}

impl Paged {
    /// The part of a file that is being opened, `len` bytes long, with its sums.
    pub fn new(pager: &Arc<Pager>, id: &Id, len: u64, sums: Option<Arc<Sums>>) -> Paged {
        let fresh_from = AtomicU64::new(len.next_multiple_of(PAGE_BYTES as u64));
        let zero = Key::first(pager.number(id, len));
        let memory = Arc::clone(&pager.memory);
        let hints = memory.hint_base(zero.file());
        Paged { pager: Arc::clone(pager), memory, id: *id, zero, hints, sums, fresh_from }
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

    /// Whether the bytes of a page on its drive are all zero. The page's set is locked, and does not have the page.
    fn is_fresh(&self, page: u64) -> bool {
        page * PAGE_BYTES as u64 >= self.fresh_from.load(Ordering::Relaxed)
    }

    /// Discards the cached pages past a length in bytes, and the page that contains that end. No write and no fill is
    /// in flight.
    pub fn cut(&self, len: u64) {
        self.pager.discard(self.number(), len / PAGE_BYTES as u64);
        self.fresh_from.store(len.next_multiple_of(PAGE_BYTES as u64), Ordering::Release);
    }

    /// After a `cut` that has cut nothing on the drives: the file still has `len` bytes there.
    pub fn undo_cut(&self, len: u64) {
        self.fresh_from.fetch_max(len.next_multiple_of(PAGE_BYTES as u64), Ordering::Release);
    }

    /// `cut`, but the page that contains the end stays, with zeroes past the end. The caller zeroes them on the drive,
    /// too. Returns `false`, and discards nothing, if pins leave no frame for that page.
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
