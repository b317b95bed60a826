//! Arguments of `replay`.

use std::path::PathBuf;

use clap::Args;
use iomill_trace::Format;
use iomill_trace::pages::PAGE_BYTES;
use iomill_trace::simulate::{Policy, SET_SIZE_DEFAULT};

use super::cache::{read_ahead, set_size};
use iomill_cli::arguments::size;

/// Largest simulated cache in pages (256 GiB). The simulation keeps a table with an entry for each page.
const CACHE_PAGES_MAX: u64 = 1 << 26;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// Recorded accesses, plain or compressed (gzip, xz, zstd); more than one with --simulate
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Form of the traces: csv, spc, msr or blkparse [default: detected by the first line]
    #[arg(long)]
    pub format: Option<Format>,
    /// Take only the first N requests of each trace
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Rule that chooses which page is evicted. On an array or a plain file one of lru, lfu, clock, gclock, sieve,
    /// s3-fifo, w-tinylfu and duel; with --simulate several, also global-lru, global-arc and optimum [default: duel;
    /// with --simulate all]
    #[arg(long = "policy", value_name = "P,P,...", value_delimiter = ',')]
    pub policies: Vec<Policy>,
    /// Pages per set, a multiple of 4 up to 32; several with --simulate. A cache has whole sets only, so it may be a
    /// little smaller than requested
    #[arg(long = "set-size", value_name = "S,S,...", value_delimiter = ',', default_values_t = [SET_SIZE_DEFAULT],
          value_parser = set_size)]
    pub set_sizes: Vec<u32>,

    /// Do no I/O: print the hit rates of simulated caches
    #[arg(long, help_heading = "Simulation")]
    pub simulate: bool,
    /// Sizes of the caches in pages of 4 KiB, at most 67108864 [default: 0.1%, 1%, 5%, 10%, 20% and 40% of a trace's
    /// pages, from 64 pages on]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', requires = "simulate", help_heading = "Simulation",
          value_parser = clap::value_parser!(u64).range(1..=CACHE_PAGES_MAX))]
    pub cache_pages: Vec<u64>,
    /// Simulate caches of granules of these sizes, such as 512B,1KiB, beside one of pages. A granule is a part of a
    /// page: a power of two from 64B to 4KiB. The caches have the memory of a cache with these pages, including
    /// headers, and a request hits if all its granules are cached
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', requires = "simulate", conflicts_with_all = ["svg", "reference"],
          help_heading = "Simulation", value_parser = granule)]
    pub granule: Vec<u64>,
    /// Draw the hit rate against the cache's size, one panel per trace
    #[arg(long, value_name = "FILE", requires = "simulate", help_heading = "Simulation")]
    pub svg: Option<PathBuf>,
    /// Compare with published hit rates: a CSV file with the columns trace, cache_pages, policy, method, hit_rate
    /// and tool. Its sizes are then the default ones
    #[arg(long, value_name = "CSV", requires = "simulate", help_heading = "Simulation")]
    pub reference: Option<PathBuf>,

    /// Memory for the cache; 0 for none [default: 512 MiB, and at most a quarter of the memory]
    #[arg(long, value_name = "SIZE", conflicts_with = "simulate", help_heading = "Replay on an array or a plain file",
          value_parser = size)]
    pub cache: Option<u64>,
    /// The longest read-ahead of sequential requests, up to 4MiB. By default there is none, so that hit rates are those
    /// of the simulation
    #[arg(long, value_name = "SIZE", default_value = "0", conflicts_with = "simulate", help_heading = "Replay on an array or a plain file",
          value_parser = read_ahead)]
    pub read_ahead: u64,
    /// Replay on this file of the array [default: a temporary file, which is removed afterwards]
    #[arg(long, value_name = "NAME", conflicts_with = "simulate", help_heading = "Replay on an array or a plain file")]
    pub file: Option<String>,
    /// Replay on this ordinary file outside any array. It is only read: writes of the trace are left out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["simulate", "file", "writes", "sparse"],
          help_heading = "Replay on an array or a plain file")]
    pub plain: Option<PathBuf>,
    /// Let the trace's writes overwrite the data of FILE; without this they are left out
    #[arg(long, requires = "file", conflicts_with = "simulate", help_heading = "Replay on an array or a plain file")]
    pub writes: bool,
    /// Leave the temporary file empty, instead of first writing all pages that the trace touches. Reads of holes
    /// then never reach a drive
    #[arg(long, conflicts_with_all = ["file", "simulate"], help_heading = "Replay on an array or a plain file")]
    pub sparse: bool,
    /// Number of threads; they take the requests in turn
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "simulate",
          value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Replay on an array or a plain file")]
    pub threads: u16,
}

fn granule(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes.is_power_of_two() && (64..=PAGE_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err("a granule is a power of two from 64B to 4KiB".to_owned()),
    }
}
