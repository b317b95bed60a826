//! Whether the counts of a slice match the state that its contender claims.
//!
//! Goals: a figure with the name warm, cold or held is one. A slice in another state is taken again a few times, then
//! it ends the measurement with an error. Non-goals: bringing a contender into a state, which it does itself; counting
//! ([`crate::seen`]); times, which other programs on the machine change.
//!
//! Rules:
//! 1. Warm: threads have no page faults and fetch nothing from drives, and a cache, if any, has all pages.
//! 2. Cold: all bytes come from drives.
//! 3. Held: memory was full when the slice started, and the share of reads that found their bytes in it matches its
//!    size.
//! 4. A contender that does not report what its slices saw is in the wrong state. A figure that the kernel does not
//!    count passes the check.

use iomill::{Error, Result};

use crate::contender::{Cache, Sample, Slice};
use crate::seen::{Own, Seen};
use crate::task::Finds;
use iomill_cli::human;

/// Warm: one page fault or miss in this many operations costs less than one percent of the shortest operations.
const OPS_PER_EXCEPTION: u64 = 10_000;

/// Warm: one page fault without I/O in this many microseconds of CPU time costs less than one percent of it. The kernel
/// serves one in two microseconds, also if it maps the pages around it. CPU time of other programs does not count: it
/// would hide faults.
const CPU_US_PER_FAULT: u64 = 200;

/// Page faults that each thread may have however short the slice is. It allocates a histogram, buffers, and memory for
/// hundreds of operations in flight.
const FAULTS_PER_THREAD: u64 = 256;

/// Page faults that wait for a drive and that a process may have besides: pages of its own executable.
const MAJOR_FAULTS_BESIDES: u64 = 16;

/// Bytes that a process may fetch besides: pages of its own executable.
const FETCHED_BESIDES_BYTES: u64 = 256 << 10;

/// Maximum share of misses in a warm cache. It is too small to make a difference.
const MISSED_SHARE_MAX: f64 = 0.001;

/// Cold: minimum share of all bytes that comes from drives. A kernel may keep dropped pages for a moment.
const COLD_SHARE_MIN: f64 = 0.9;

/// Held: minimum share of the memory in use. A page can be in one set only, so some frames stay free.
const FILLED_SHARE_MIN: f64 = 0.7;

/// The contender and workload of a slice, for the text of an error.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// The contender's name.
    pub contender: &'a str,
    /// The state that it claims.
    pub cache: Cache,
    /// The name of the workload, such as `random-read-4KiB`.
    pub workload: &'a str,
}

/// Refuses a slice that was not in its contender's state.
pub fn check(whose: Whose<'_>, finds: Option<&Finds>, slice: &Slice<'_>, sample: &Sample) -> Result<()> {
    let wrong = match whose.cache {
        Cache::Direct => None,
        Cache::Warm => not_warm(slice, sample),
        Cache::Cold => not_cold(sample),
        Cache::Held => not_held(finds, sample),
    };
    let Some(why) = wrong else { return Ok(()) };
    let (name, state, workload) = (whose.contender, whose.cache.name(), whose.workload);
    let kind = if slice.verify { "checking" } else { "timed" };
    let what = format!(
        "a {kind} slice of {name} ({state}), {workload}, {} threads, {} operations in {:.3} s",
        slice.threads,
        sample.ops,
        sample.wall.as_secs_f64()
    );
    let why = format!(
        "it was not {state}: {why}; its figure would be misleading, so there is none; run again on an idle machine, or with longer --seconds"
    );
    Err(Error::Tool { what, why })
}

/// The reason why a slice breaks rule 1.
fn not_warm(slice: &Slice<'_>, sample: &Sample) -> Option<String> {
    let Some(seen) = sample.seen else { return Some(UNSEEN.to_owned()) };
    let exceptions = sample.ops / OPS_PER_EXCEPTION;
    let affordable = sample.cpu_us as u64 / CPU_US_PER_FAULT;
    let most = affordable.max(FAULTS_PER_THREAD * slice.threads as u64);
    let Seen { minor_faults, major_faults, .. } = seen;
    if minor_faults > most || major_faults > exceptions + MAJOR_FAULTS_BESIDES {
        return Some(format!(
            "{most} page faults are expected at most, and {minor_faults} minor and {major_faults} major ones were seen"
        ));
    }
    let most = exceptions * 4096 + FETCHED_BESIDES_BYTES;
    if let Some(fetched) = seen.fetched_bytes.filter(|&fetched| fetched > most) {
        let (most, fetched) = (human::size(most), human::size(fetched));
        return Some(format!("{most} are expected from drives at most, and {fetched} came"));
    }
    let own = sample.own?;
    let missed = own.misses as f64 / (own.hits + own.misses).max(1) as f64;
    (missed > MISSED_SHARE_MAX).then(|| {
        let Own { hits, misses } = own;
        format!(
            "its cache may lack a share of at most {MISSED_SHARE_MAX} of the pages, but it had {hits} and lacked {misses}"
        )
    })
}

/// The reason why a slice breaks rule 2.
fn not_cold(sample: &Sample) -> Option<String> {
    let Some(seen) = sample.seen else { return Some(UNSEEN.to_owned()) };
    let least = sample.bytes as f64 * COLD_SHARE_MIN;
    seen.fetched_bytes.filter(|&fetched| (fetched as f64) < least).map(|fetched| {
        let (bytes, fetched) = (human::size(sample.bytes), human::size(fetched));
        format!("all of {bytes} are expected from drives, but only {fetched} came")
    })
}

/// The reason why a slice breaks rule 3.
fn not_held(finds: Option<&Finds>, sample: &Sample) -> Option<String> {
    let Some(filled) = sample.filled else { return Some(UNSEEN.to_owned()) };
    if filled < FILLED_SHARE_MIN {
        let (least, seen) = (100.0 * FILLED_SHARE_MIN, 100.0 * filled);
        return Some(format!("at least {least:.0}% of its memory must be in use, but only {seen:.0}% was"));
    }
    let (finds, fetched) = (finds?, sample.fetched_bytes?);
    let found = 1.0 - fetched as f64 / (sample.ops.max(1) * finds.miss_bytes) as f64;
    // Three standard deviations of a share that is measured with this number of operations.
    let slack = 1.5 / (sample.ops.max(1) as f64).sqrt();
    let (least, most) = (finds.share.start() - slack, finds.share.end() + slack);
    (!(least..=most).contains(&found)).then(|| {
        let (least, most, found) = (100.0 * least.max(0.0), 100.0 * most.min(1.0), 100.0 * found);
        format!(
            "{least:.1} to {most:.1}% of its operations are expected to find their bytes in memory, and {found:.1}% did"
        )
    })
}

const UNSEEN: &str = "it does not say what its threads saw";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::contender::Contender;
    use crate::flat::FlatFile;
    use crate::memory::Region;
    use crate::records::{self, Copier, Data, OneByOne, RECORD_BYTES, Record, RecordReads, Skew};
    use crate::rounds::{self, Plan};
    use crate::target::{Part, Target};
    use crate::threads::{self, Count};

    static NEVER: AtomicBool = AtomicBool::new(false);
    const LEN_BYTES: u64 = 64 << 20;

    /// Reads a mapping. Its pages are or are not mapped before the slice.
    struct Mapping {
        data: Arc<Data>,
        is_brought_in: bool,
    }

    struct Copies<'a>(&'a [u8]);

    impl Copier for Copies<'_> {
        fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
            record.copy_from_slice(&self.0[offset as usize..][..RECORD_BYTES]);
            Ok(())
        }
    }

    impl Contender<RecordReads> for Mapping {
        fn name(&self) -> &'static str {
            "a mapping"
        }
        fn cache(&self) -> Cache {
            Cache::Warm
        }
        fn prepare(&mut self, _: &RecordReads) -> Result<Option<String>> {
            Ok(None)
        }
        fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
            let file = fs::File::open(self.data.path()).unwrap();
            let mapped = Region::file_as_it_comes(&file, LEN_BYTES as usize).unwrap();
            mapped.keep_small_pages().unwrap();
            if self.is_brought_in {
                mapped.populate().unwrap();
            }
            let reads = RecordReads { skew: Skew::Uniform, batch: 1 };
            records::run(slice, &reads, &self.data, || Ok(OneByOne(Copies(mapped.bytes()))))
        }
    }

    fn file() -> (tempfile::TempDir, FlatFile) {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let flat = FlatFile::write(dir.path().join("f"), LEN_BYTES, 7, &NEVER, &mut |_, _| ()).unwrap();
        (dir, flat)
    }

    #[test]
    fn a_mapping_that_is_faulted_in_while_it_is_timed_is_refused() {
        let (_dir, flat) = file();
        let data = Arc::new(Data::new(flat.path().to_owned(), LEN_BYTES / 4096, 7).unwrap());
        let time = Duration::from_millis(60);
        let workload = RecordReads { skew: Skew::Uniform, batch: 1 };
        let plan = Plan { workload, threads: 1, rounds: 1, slice: time, warm_up: time };
        let run = |is_brought_in| {
            let contender = Mapping { data: data.clone(), is_brought_in };
            rounds::run(&mut [Box::new(contender) as Box<dyn Contender<_>>], &plan, &mut |_| (), &NEVER)
        };
        let measured = run(true).unwrap();
        assert_eq!(measured.outcomes[0].samples.len(), 1);
        // The pages are in the page cache from the last run, but not mapped. A slice in which the thread hardly ran has
        // too few faults.
        let refused = (0..10).find_map(|_| run(false).err());
        let error = refused.map(|error| error.to_string()).unwrap_or_default();
        for said in
            ["slice of a mapping (warm), uniform, 1 threads", "was not warm", "page faults are expected at most"]
        {
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_cold_slice_that_finds_its_bytes_in_memory_is_refused() {
        let (_dir, flat) = file();
        let part = Part { path: flat.path().to_owned(), len_bytes: LEN_BYTES };
        let target = Target::new(vec![part], 7, Target::striped(1, 1)).unwrap();
        if let Some(why) = target.why_not_cold().unwrap() {
            assert!(why.contains("brought nothing from a drive"), "{why}");
            return;
        }
        let slice = Slice { threads: 2, duration: Duration::from_secs(60), verify: false, cancel: &NEVER };
        let whose = Whose { contender: "reads", cache: Cache::Cold, workload: "all" };
        let all = |file: &mut fs::File, stop: &AtomicBool| {
            let (mut count, mut bytes) = (Count::new()?, vec![0; 1 << 16]);
            while !stop.load(Ordering::Relaxed) && count.bytes < LEN_BYTES / 2 {
                file.read_exact_at(&mut bytes, count.bytes).unwrap();
                (count.ops, count.bytes) = (count.ops + 1, count.bytes + (1 << 16));
            }
            Ok(count)
        };
        let one = Slice { threads: 1, ..slice };
        target.drop_cached().unwrap();
        let cold = threads::run(&one, |_| Ok(fs::File::open(flat.path()).unwrap()), all).unwrap();
        check(whose, None, &one, &cold).unwrap();
        let warm = threads::run(&slice, |_| Ok(fs::File::open(flat.path()).unwrap()), all).unwrap();
        let error = check(whose, None, &slice, &warm).unwrap_err().to_string();
        assert!(error.contains("all of 64 MiB are expected from drives"), "{error}");
        check(Whose { cache: Cache::Warm, ..whose }, None, &slice, &warm).unwrap();
        let error = check(Whose { cache: Cache::Warm, ..whose }, None, &one, &cold).unwrap_err().to_string();
        assert!(error.contains("from drives at most, and"), "{error}");
    }

    fn sample(seen: Option<Seen>) -> Sample {
        let wall = Duration::from_secs(1);
        Sample { ops: 1_000_000, bytes: 128_000_000, wall, cpu_us: 2e6, seen, ..Sample::empty().unwrap() }
    }

    fn refusal(cache: Cache, finds: Option<&Finds>, sample: &Sample) -> Option<String> {
        let slice = Slice { threads: 2, duration: sample.wall, verify: false, cancel: &NEVER };
        check(Whose { contender: "it", cache, workload: "reads" }, finds, &slice, sample).err().map(|e| e.to_string())
    }

    #[test]
    fn warm_means_no_faults_no_fetches_and_no_misses() {
        let good = Seen { minor_faults: 100, major_faults: 0, fetched_bytes: Some(4096) };
        let refused = |seen| refusal(Cache::Warm, None, &sample(Some(seen)));
        assert_eq!(refused(good), None);
        assert!(
            refused(Seen { minor_faults: 30_000, ..good }).unwrap().contains("10000 page faults are expected at most")
        );
        assert!(refused(Seen { major_faults: 700, ..good }).unwrap().contains("100 minor and 700 major"));
        assert!(refused(Seen { fetched_bytes: Some(1 << 20), ..good }).unwrap().contains("and 1 MiB came"));
        assert_eq!(refused(Seen { fetched_bytes: None, ..good }), None, "the kernel does not tell");
        let with = |misses| Sample { own: Some(Own { hits: 10_000, misses }), ..sample(Some(good)) };
        assert_eq!(refusal(Cache::Warm, None, &with(10)), None);
        assert!(refusal(Cache::Warm, None, &with(11)).unwrap().contains("had 10000 and lacked 11"));
        for cache in [Cache::Warm, Cache::Cold, Cache::Held] {
            assert!(refusal(cache, None, &sample(None)).unwrap().contains("does not say"), "{cache:?}");
        }
        assert_eq!(refusal(Cache::Direct, None, &sample(None)), None);
    }

    #[test]
    fn held_means_full_and_no_more_than_that() {
        let finds = Finds { miss_bytes: 4096, share: 0.1..=0.15 };
        let held = |filled, found: f64| {
            let fetched_bytes = Some(((1.0 - found) * 1e6 * 4096.0) as u64);
            let one = Sample { filled: Some(filled), fetched_bytes, ..sample(Some(Seen::default())) };
            refusal(Cache::Held, Some(&finds), &one)
        };
        assert_eq!(held(0.95, 0.125), None);
        assert!(held(0.5, 0.125).unwrap().contains("at least 70% of its memory must be in use, but only 50% was"));
        assert!(held(1.0, 0.2).unwrap().contains("and 20.0% did"));
        assert!(held(1.0, 0.05).unwrap().contains("and 5.0% did"));
    }
}
