//! The [`Sizes`] of the cache: those of its opening, and their change by `Pager::resize` while files are read and
//! written. Non-goals: moving pages (`cache::resize`).

use std::path::Path;

use super::{Pager, PagerOptions};
use crate::cache::key::Key;
use crate::cache::{Cache, CacheResize, Progress};
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::sys::limits::{address_space_bytes, default_cache_bytes, memory_limit_bytes};

/// The number of times that a cache may double by default, if there is memory.
const DOUBLINGS: u32 = 2;

/// Sets that a resize changes before it looks again whether the array is open.
const STEP_SETS: u32 = 64;

/// A cache may grow to 1/`ADDRESS_SHARE` of a limited address space. Rings, threads and the program need the rest.
const ADDRESS_SHARE: u64 = 2;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub now: u64,
    /// The largest size.
    pub most: u64,
    /// The default size with unlimited address space.
    pub wanted: u64,
}

impl Sizes {
    /// The next smaller default size to try if the address space has no room for this one. `None` below one set, and if
    /// an option names a size.
    pub fn smaller(self, options: &PagerOptions, nodes: usize) -> Option<Sizes> {
        let now = self.now / 2;
        let by_default = options.cache_bytes.is_none() && options.cache_max_bytes.is_none();
        (by_default && check_least(options.set_pages, nodes, now).is_ok()).then_some(Sizes { now, most: now, ..self })
    }
}

/// The sizes that options ask for; `None` for no cache.
pub fn sizes(options: &PagerOptions, nodes: usize) -> Result<Option<Sizes>> {
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

impl Pager {
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
        let shares = super::nodes::shares(bytes, ways, self.caches().count());
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
}
