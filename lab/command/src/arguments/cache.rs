//! Arguments for the cache of an array.

use std::path::Path;

use clap::Args;
use iomill::cache::set::{Shape, WAYS_MAX, WAYS_MIN};
use iomill::sys::limits::available_bytes;
use iomill::{ArrayOptions, PolicyKind};
use iomill_cli::arguments::size;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::human;
use iomill_trace::simulate::SET_SIZE_DEFAULT;

/// Longest window of the cache's read-ahead.
const READ_AHEAD_MAX_BYTES: u64 = 4 << 20;

/// The kind of iomill's cache, apart from its size.
#[derive(Clone, Copy, Debug, Args)]
pub struct CacheKind {
    /// Pages per set of iomill's cache: a multiple of 4, from 4 to 32
    #[arg(long, value_name = "N", default_value_t = SET_SIZE_DEFAULT, value_parser = set_size)]
    pub set_size: u32,
    /// Rule that chooses which page of a set makes room for another: lru, lfu, clock, gclock, sieve, s3-fifo, w-tinylfu
    /// or duel
    #[arg(long, value_name = "NAME", default_value_t)]
    pub policy: PolicyKind,
    /// The longest read-ahead of a sequential reader, up to 4MiB; 0 switches it off
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = read_ahead)]
    pub read_ahead: u64,
}

impl CacheKind {
    /// The arguments as options.
    pub fn apply(self, options: ArrayOptions) -> ArrayOptions {
        options.with_cache(|cache| {
            cache.set_pages(self.set_size as usize).policy(self.policy).read_ahead_bytes(self.read_ahead)
        })
    }
}

pub fn read_ahead(text: &str) -> std::result::Result<u64, String> {
    match size(text)? {
        bytes if bytes <= READ_AHEAD_MAX_BYTES => Ok(bytes),
        _ => Err("read-ahead is at most 4MiB".to_owned()),
    }
}

pub fn set_size(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(size) if Shape::new(size as usize).is_some() => Ok(size),
        _ => Err(format!("a set has a multiple of 4 pages, from {WAYS_MIN} to {WAYS_MAX}, such as {SET_SIZE_DEFAULT}")),
    }
}

/// Memory beside the cache: of the process, its buffers, and the processes that it starts.
const BESIDES_BYTES: u64 = 32 << 20;

/// Refuses a cache that does not fit in the available memory. Otherwise the kernel would kill the process.
pub fn check_cache(bytes: u64) -> Result<()> {
    // If the memory's size cannot be read, making the cache fails.
    match available_bytes(Path::new("/")) {
        Ok(there) if bytes.saturating_add(BESIDES_BYTES) > there => Err(Failure::Usage(format!(
            "a cache of {}, with {} for the rest, is larger than the memory that is available, which is {}; give a smaller --cache",
            human::size(bytes),
            human::size(BESIDES_BYTES),
            human::size(there)
        ))),
        _ => Ok(()),
    }
}
