//! The cost of a hit: random reads of small records that are all in memory, from one contender after the other.
//!
//! Goals: the figure that decides whether a cache in user space is worth it, compared with a mapped file.
//! Non-goals: misses, writes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, Error, Result};

use crate::arena::{Arena, SEED};
use crate::asynchronous::Flyer;
use crate::bench::{Rivals, Stage};
use crate::cached::{self, Whole};
use crate::contender::{Contender, FOYER, MMAP, MMAP_SMALL_PAGES, MOKA, PREAD, QUICK_CACHE, TOKIO_FS};
use crate::machine;
use crate::pattern::PAGE_BYTES;
use crate::records::{Data, RecordReads, Skew};
use crate::report::Report;
use crate::rivals;
use crate::rivals::resident;
use crate::rounds::{self, Plan, Turns, WARM_UP};

/// Number of copies of all bytes in memory at the same time: in the page cache and in iomill's cache.
pub(crate) const COPIES: u64 = 2;
/// The same with the caches of other crates, which share one more copy.
const COPIES_WITH_CACHES: u64 = 3;
/// Those caches.
const CACHES: [&str; 3] = [QUICK_CACHE, MOKA, FOYER];

/// Default ratio of the size of iomill's cache to the data. A page can be in one set only. In a cache as large as the
/// data many sets would be too small for their pages. With this ratio a set has room for four times its average number
/// of pages, and almost none is too small. The cache takes memory only for present pages.
pub const CACHE_OVER_SIZE: u64 = 4;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the data in bytes. All of it is in memory.
    pub size_bytes: u64,
    /// Size of iomill's cache in bytes. The default is [`CACHE_OVER_SIZE`] times the data.
    pub cache_bytes: Option<u64>,
    /// How iomill opens the array. The measurement sets the cache's size and the access itself.
    pub options: ArrayOptions,
    /// The popularities of the records; one measurement each.
    pub skews: Vec<Skew>,
    /// Records per call, for contenders that take many in a call.
    pub batch: u32,
    /// How turns are taken.
    pub turns: Turns,
    /// iomill's asynchronous ways.
    pub flyers: Vec<Flyer>,
    /// The contenders besides iomill.
    pub rivals: Rivals,
}

impl Settings {
    fn plans(&self) -> Vec<Plan<RecordReads>> {
        let reads = self.skews.iter().map(|&skew| RecordReads { skew, batch: self.batch });
        reads.flat_map(|reads| self.turns.plans(reads, WARM_UP)).collect()
    }
}

/// The rivals that may take part.
pub const RIVALS: &[&str] = &[MMAP, MMAP_SMALL_PAGES, PREAD, QUICK_CACHE, MOKA, FOYER, TOKIO_FS];

/// Measures on `arena`. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    settings.rivals.check(RIVALS)?;
    if let Some(cache_bytes) = settings.cache_bytes.filter(|&bytes| bytes < settings.size_bytes) {
        let (cache, size) = (iomill_cli::human::size(cache_bytes), iomill_cli::human::size(settings.size_bytes));
        let why = "the cache must hold all of the file; give a larger --cache, or leave --cache out";
        return Err(Error::invalid(format!("a cache of {cache} for {size}"), why));
    }
    let has_caches = CACHES.iter().any(|name| settings.rivals.include(name));
    check_memory(settings.size_bytes, if has_caches { COPIES_WITH_CACHES } else { COPIES })?;
    let mut filling = |done, total| stage(Stage::Filling(done, total));
    let (flat, machine) = arena.fill_with_flat(settings.size_bytes, cancel, &mut filling)?;
    let data = Arc::new(Data::new(flat.path().to_owned(), flat.len_bytes() / PAGE_BYTES as u64, SEED)?);
    let cache_bytes = settings.cache_bytes.unwrap_or(settings.size_bytes.saturating_mul(CACHE_OVER_SIZE));
    let whole = Arc::new(Whole::new(arena, &settings.options, cache_bytes));
    let mut contenders = contenders(&data, &whole, &settings.flyers);
    contenders.retain(|contender| settings.rivals.include(contender.name()));
    let plans = settings.plans();
    let measured = rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel)?;
    Ok(Report { baselines: &[MMAP, MMAP_SMALL_PAGES], ..Report::new(machine, &measured) })
}

/// Refuses a size of which `copies` copies do not fit in memory.
pub(crate) fn check_memory(size_bytes: u64, copies: u64) -> Result<()> {
    let (needed, there) = (size_bytes.saturating_mul(copies), machine::available_memory_bytes()?);
    if needed > there / 10 * 9 {
        let (needed, there) = (iomill_cli::human::size(needed), iomill_cli::human::size(there));
        let why = format!("{copies} copies need {needed} of memory, and {there} is free; give a smaller --size");
        return Err(Error::invalid(format!("a size of {}", iomill_cli::human::size(size_bytes)), why));
    }
    Ok(())
}

/// iomill, the ways of the kernel, and other crates.
fn contenders(data: &Arc<Data>, whole: &Arc<Whole>, flyers: &[Flyer]) -> Vec<Box<dyn Contender<RecordReads>>> {
    let mut contenders = cached::warm(data, whole, flyers);
    let kernel: [Box<dyn Contender<RecordReads>>; 3] =
        [Box::new(resident::mmap(data)), Box::new(resident::mmap_small_pages(data)), Box::new(resident::pread(data))];
    contenders.extend(kernel);
    contenders.extend(rivals::warm(data));
    contenders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Shape;
    use crate::contender::{IOMILL_PIN, IOMILL_READ_AT, IOMILL_READ_MANY, Slice};
    use crate::flat::FlatFile;
    use std::time::Duration;

    static NEVER: AtomicBool = AtomicBool::new(false);

    const LEN_BYTES: u64 = 2 << 20;

    /// The fields are dropped in this order: the contenders go before the array.
    struct Setting {
        contenders: Vec<Box<dyn Contender<RecordReads>>>,
        _flat: FlatFile,
        _arena: Arena,
        _dir: tempfile::TempDir,
    }

    fn setting(seed_read: u64, cache_bytes: u64) -> Setting {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
        let shape = Shape { len_bytes: LEN_BYTES, layout: iomill::FileOptions::new() };
        arena.fill(&shape, &NEVER, &mut |_, _| ()).unwrap();
        let flat = FlatFile::write(dir.path().join("f"), LEN_BYTES, SEED, &NEVER, &mut |_, _| ()).unwrap();
        let data = Arc::new(Data::new(flat.path().to_owned(), 512, seed_read).unwrap());
        let whole = Arc::new(Whole::new(&arena, &ArrayOptions::new(), cache_bytes));
        Setting { contenders: contenders(&data, &whole, &Flyer::all()), _flat: flat, _arena: arena, _dir: dir }
    }

    fn slice(verify: bool) -> Slice<'static> {
        Slice { threads: 2, duration: Duration::from_millis(60), verify, cancel: &NEVER }
    }

    #[test]
    fn each_contender_reads_the_right_records() {
        let mut setting = setting(SEED, LEN_BYTES * CACHE_OVER_SIZE);
        let contenders = &mut setting.contenders;
        for skew in [Skew::Uniform, Skew::Zipf] {
            for contender in &mut *contenders {
                assert_eq!(contender.prepare(&RecordReads { skew, batch: 100 }).unwrap(), None);
                // Contenders that wait for other threads may wait long on a busy machine.
                let least = if contender.notes().iter().any(|note| note.contains("in flight")) { 1 } else { 100 };
                for verify in [true, false] {
                    let sample = contender.run(&slice(verify)).unwrap();
                    assert!(
                        sample.ops >= least && sample.bytes == sample.ops * 128,
                        "{}: {}",
                        contender.name(),
                        sample.ops
                    );
                    assert!(sample.cpu_us > 0.0, "{}", contender.name());
                }
                // On a busy machine a slice may end before its threads start.
                let none = Slice { duration: Duration::ZERO, ..slice(false) };
                assert!(contender.run(&none).unwrap().ops >= least, "{}", contender.name());
            }
        }
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
        let iomill = [IOMILL_READ_AT, IOMILL_PIN, IOMILL_READ_MANY];
        assert_eq!(names[..3], iomill);
        let flyers: Vec<&str> = Flyer::all().iter().map(Flyer::name).collect();
        let ours = 3 + flyers.len();
        assert_eq!(names[3..ours], flyers);
        assert_eq!(names[ours..], *RIVALS);
        for contender in &contenders[..ours] {
            assert!(contender.notes()[0].contains("8 MiB, in which 100.0000%"), "{:?}", contender.notes());
        }
    }

    #[test]
    fn each_contender_notices_wrong_bytes() {
        let mut setting = setting(SEED + 1, LEN_BYTES * CACHE_OVER_SIZE);
        for contender in &mut setting.contenders {
            contender.prepare(&RecordReads { skew: Skew::Uniform, batch: 1 }).unwrap();
            let error = contender.run(&slice(true)).unwrap_err().to_string();
            assert!(error.contains("is not what was written"), "{}: {error}", contender.name());
        }
    }

    #[test]
    fn a_cache_that_does_not_hold_the_data_is_left_out() {
        let mut setting = setting(SEED, LEN_BYTES);
        for contender in &mut setting.contenders[..9] {
            let why = contender.prepare(&RecordReads { skew: Skew::Uniform, batch: 1 }).unwrap().unwrap();
            assert!(why.contains("a cache of 2 MiB keeps") && why.contains("larger --cache"), "{why}");
        }
    }
}
