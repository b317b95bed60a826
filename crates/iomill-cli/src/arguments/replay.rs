//! Arguments of `replay`.

use std::path::PathBuf;

use clap::Args;
use iomill_trace::Format;
use iomill_trace::simulate::{Policy, SET_SIZE_DEFAULT};

use super::cache::{read_ahead, set_size};
use super::size;

/// Largest simulated cache in pages (256 GiB): the simulation has a table of as many entries.
const CACHE_PAGES_MAX: u64 = 1 << 26;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// Recorded accesses, plain or compressed (gzip, xz, zstd); more than one with --simulate
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Form of the traces: csv, spc, msr or blkparse [default: what the first line shows]
    #[arg(long)]
    pub format: Option<Format>,
    /// Take only the first N requests of each trace
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Which page goes when another comes: of the array's cache one of lru, lfu, clock, gclock, sieve, s3-fifo, w-tinylfu and
    /// duel; with --simulate several, and global-lru, global-arc and optimum too [default: duel; with --simulate all]
    #[arg(long = "policy", value_name = "P,P,...", value_delimiter = ',')]
    pub policies: Vec<Policy>,
    /// Pages per set, a multiple of 4 up to 32, with --simulate several; a cache has whole sets only, and is so much smaller
    /// than asked for
    #[arg(long = "set-size", value_name = "S,S,...", value_delimiter = ',', default_values_t = [SET_SIZE_DEFAULT],
          value_parser = set_size)]
    pub set_sizes: Vec<u32>,

    /// Do no I/O: print the hit rates that caches would have
    #[arg(long, help_heading = "Simulation")]
    pub simulate: bool,
    /// Sizes of the caches in pages of 4 KiB, at most 67108864 [default: 0.1%, 1%, 5%, 10%, 20% and 40% of a trace's
    /// pages, from 64 pages on]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', requires = "simulate", help_heading = "Simulation",
          value_parser = clap::value_parser!(u64).range(1..=CACHE_PAGES_MAX))]
    pub cache_pages: Vec<u64>,
    /// Draw hit rate against size, a panel per trace
    #[arg(long, value_name = "FILE", requires = "simulate", help_heading = "Simulation")]
    pub svg: Option<PathBuf>,
    /// Compare with hit rates that others found: a CSV file with the columns trace, cache_pages, policy, method, hit_rate
    /// and tool; its sizes are the default ones then
    #[arg(long, value_name = "CSV", requires = "simulate", help_heading = "Simulation")]
    pub reference: Option<PathBuf>,

    /// Memory for the array's cache; 0 is none [default: 512 MiB, and at most a quarter of the memory]
    #[arg(long, value_name = "SIZE", conflicts_with = "simulate", help_heading = "Replay on an array",
          value_parser = size)]
    pub cache: Option<u64>,
    /// How far ahead of sequential requests the cache reads at most, up to 4MiB; not at all by default, so that hit rates are those of the
    /// simulation
    #[arg(long, value_name = "SIZE", default_value = "0", conflicts_with = "simulate", help_heading = "Replay on an array",
          value_parser = read_ahead)]
    pub read_ahead: u64,
    /// Replay on this file of the array [default: a temporary one, removed afterwards]
    #[arg(long, value_name = "NAME", conflicts_with = "simulate", help_heading = "Replay on an array")]
    pub file: Option<String>,
    /// Let the trace's writes overwrite what FILE holds; without it they are left out
    #[arg(long, requires = "file", conflicts_with = "simulate", help_heading = "Replay on an array")]
    pub writes: bool,
    /// Leave the temporary file empty, instead of first writing all pages that the trace touches: reads of holes
    /// then never reach a drive
    #[arg(long, conflicts_with_all = ["file", "simulate"], help_heading = "Replay on an array")]
    pub sparse: bool,
    /// Threads, which take the requests in turn
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "simulate",
          value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Replay on an array")]
    pub threads: u16,
}
