//! Read-ahead, advice, and tasks in place: which pages come in at which time, and how they are counted.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use iomill::{Advice, Array, ArrayOptions, Counters, Error, File, FileOptions, Tuning};
use tempfile::TempDir;

use super::PAGE;

const DRIVE_THREADS: [bool; 2] = [false, true];

struct World {
    _place: TempDir,
    array: Array,
    file: File,
    bytes: Vec<u8>,
}

impl World {
    /// A file of `pages` pages and a little more, with no page in the cache.
    fn new(options: ArrayOptions, pages: usize) -> World {
        let place = tempfile::tempdir().unwrap();
        let drives: Vec<_> = (0..3).map(|drive| place.path().join(drive.to_string())).collect();
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        let array = options.clone().create(&drives).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        let bytes: Vec<u8> = (0..pages * PAGE + 100).map(|at| (at / 7 % 251) as u8 ^ (at / PAGE) as u8).collect();
        file.write_at(&bytes, 0).unwrap();
        file.close().unwrap();
        array.close().unwrap();
        let array = options.open(&drives[0]).unwrap();
        let file = array.open_file("file").unwrap();
        World { _place: place, array, file, bytes }
    }

    /// Reads one page after the other.
    fn read_on(&self, pages: std::ops::Range<usize>) {
        let mut buf = [0; PAGE];
        for page in pages {
            assert_eq!(self.file.read_at(&mut buf, (page * PAGE) as u64).unwrap(), PAGE);
            assert!(buf[..] == self.bytes[page * PAGE..][..PAGE], "page {page}");
        }
    }

    /// Waits until the counters satisfy a condition.
    #[track_caller]
    fn wait_for(&self, what: impl Fn(&Counters) -> bool) -> Counters {
        let start = Instant::now();
        loop {
            let counters = self.array.counters();
            if what(&counters) {
                return counters;
            }
            assert!(start.elapsed() < crate::PATIENCE, "{counters:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn options(drive_threads: bool) -> ArrayOptions {
    ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).cache_bytes(16 << 20)
}

#[test]
fn a_sequential_reader_hardly_misses() {
    for drive_threads in DRIVE_THREADS {
        let world = World::new(options(drive_threads), 2000);
        world.read_on(0..2000);
        let counted = world.array.counters();
        assert!(counted.misses < 40, "drive threads {drive_threads}: {counted:?}");
        assert!(counted.read_ahead > 1900, "drive threads {drive_threads}: {counted:?}");
        assert_eq!(
            counted.hits + counted.misses,
            2000,
            "each page is asked for once, drive threads {drive_threads}: {counted:?}"
        );
        // Many pages in one request.
        let requests: u64 = counted.drives.iter().map(|drive| drive.reads).sum();
        assert!(requests < 300, "drive threads {drive_threads}: {requests} requests");
    }
}

#[test]
fn a_reader_through_std_and_one_by_pins_gain_too() {
    let world = World::new(options(false), 500);
    let mut all = Vec::new();
    world.file.cursor().take(1000 * PAGE as u64).read_to_end(&mut all).unwrap();
    assert!(all == world.bytes);
    assert!(world.array.counters().read_ahead > 400);
    let world = World::new(options(false), 500);
    for page in 0..500 {
        assert!(world.file.pin(page as u64).unwrap()[..] == world.bytes[page * PAGE..][..PAGE]);
    }
    assert!(world.array.counters().read_ahead > 400);
}

#[test]
fn without_it_every_page_is_missed() {
    for options in [options(false).with_cache(|cache| cache.read_ahead_bytes(0)), options(false)] {
        let is_off = format!("{options:?}").contains("read_ahead_bytes: 0");
        let world = World::new(options, 300);
        if !is_off {
            world.file.advise(.., Advice::Random).unwrap();
        }
        world.read_on(0..300);
        let counted = world.array.counters();
        assert_eq!((counted.misses, counted.hits, counted.read_ahead), (300, 0, 0));
        if !is_off {
            // Back to the beginning; no other handle got the advice.
            world.file.advise(.., Advice::Normal).unwrap();
            world.file.advise(.., Advice::DontNeed).unwrap();
            world.read_on(0..300);
            assert!(world.array.counters().read_ahead > 200);
        }
    }
}

#[test]
fn random_reads_bring_in_nothing_else() {
    let world = World::new(options(false), 3000);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut buf = [0; 100];
    for _ in 0..500 {
        let page = rng.usize(0..1000) * 3;
        world.file.read_at(&mut buf, (page * PAGE) as u64 + 50).unwrap();
    }
    let counted = world.array.counters();
    assert_eq!((counted.read_ahead, counted.fills), (0, counted.misses));
}

#[test]
fn a_sequential_reader_waits_for_the_first_page_only() {
    let world = World::new(options(false), 300);
    world.file.advise(.., Advice::Sequential).unwrap();
    world.read_on(0..1);
    assert_eq!(world.array.counters().read_ahead, 32);
}

#[test]
fn what_will_be_needed_comes_in_the_background() {
    for drive_threads in DRIVE_THREADS {
        let world = World::new(options(drive_threads), 1000);
        world.file.advise(PAGE as u64 * 10 + 5..PAGE as u64 * 600, Advice::WillNeed).unwrap();
        world.file.advise(PAGE as u64 * 900.., Advice::WillNeed).unwrap();
        let counted = world.wait_for(|counters| counters.read_ahead == 590 + 101);
        assert_eq!((counted.misses, counted.hits), (0, 0), "no call has asked, drive threads {drive_threads}");
        // The last pages may still be on their way. Then the read waits for them.
        world.read_on(10..600);
        world.read_on(900..1000);
        let counted = world.array.counters();
        assert_eq!((counted.misses, counted.hits, counted.read_ahead), (0, 690, 691), "drive threads {drive_threads}");
    }
}

#[test]
fn more_than_the_cache_holds_is_not_brought_in() {
    let pages = 480;
    let world = World::new(ArrayOptions::new().cache_bytes((pages * PAGE) as u64), 3000);
    world.file.advise(.., Advice::WillNeed).unwrap();
    world.wait_for(|counters| counters.read_ahead >= pages as u64 / 2);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(world.array.counters().read_ahead, pages as u64 / 2);
}

#[test]
fn a_file_whose_pages_are_on_their_way_can_be_deleted() {
    let World { _place, array, file, .. } = World::new(options(false), 3000);
    file.advise(.., Advice::WillNeed).unwrap();
    drop(file);
    array.delete("file").unwrap();
    array.close().unwrap();
}

#[test]
fn what_is_not_needed_leaves_but_for_what_is_dirty_or_pinned() {
    let world = World::new(options(false), 400);
    // A page that is on its way by read-ahead does not leave, either.
    world.file.advise(.., Advice::Random).unwrap();
    world.read_on(0..400);
    let before = world.array.counters();
    let pin = world.file.pin(7).unwrap();
    world.file.write_at(&world.bytes[20 * PAGE..21 * PAGE], 20 * PAGE as u64).unwrap();
    // Pages that lie only partly in the range stay.
    world.file.advise(PAGE as u64 * 5 + 1..PAGE as u64 * 30 + 1, Advice::DontNeed).unwrap();
    for page in [5, 7, 20, 30, 31] {
        world.read_on(page..page + 1);
    }
    let hits = world.array.counters().since(&before);
    assert_eq!((hits.misses, hits.flushes), (0, 0));
    world.read_on(6..30);
    assert_eq!(world.array.counters().since(&before).misses, 22, "all but the pinned one and the dirty one");
    assert!(pin[..] == world.bytes[7 * PAGE..8 * PAGE]);
    drop(pin);
    // A range that is larger than the cache, and the end of the file, which is not a whole page.
    world.file.sync().unwrap();
    world.file.advise(.., Advice::DontNeed).unwrap();
    let before = world.array.counters();
    world.read_on(0..400);
    let mut end = [0; 100];
    assert_eq!(world.file.read_at(&mut end, 400 * PAGE as u64).unwrap(), 100);
    assert_eq!(world.array.counters().since(&before).misses, 401);
}

#[test]
fn advice_without_a_cache_is_taken_and_changes_nothing() {
    let world = World::new(ArrayOptions::new().cache_bytes(0), 10);
    for advice in [Advice::Normal, Advice::Random, Advice::Sequential, Advice::WillNeed, Advice::DontNeed] {
        world.file.advise(0..=4096, advice).unwrap();
    }
    world.read_on(0..10);
    let file = world.file.clone();
    world.array.clone().close().unwrap();
    assert!(matches!(file.advise(.., Advice::Normal), Err(Error::Closed)));
}

/// A page read in place counts once: as a miss if it comes in, else as a hit.
#[test]
fn pins_and_tasks_are_counted_once() {
    for drive_threads in DRIVE_THREADS {
        let world = World::new(options(drive_threads).with_cache(|cache| cache.read_ahead_bytes(0)), 100);
        let counts = || {
            let c = world.array.counters();
            (c.hits, c.misses, c.fills, c.pins, c.bytes_read)
        };
        drop(world.file.pin(3).unwrap());
        assert_eq!(counts(), (0, 1, 1, 1, 0), "drive threads {drive_threads}");
        drop(world.file.pin(3).unwrap());
        assert_eq!(counts(), (1, 1, 1, 2, 0), "drive threads {drive_threads}");
        let sum = |pages: &iomill::PinnedRange<'_>| pages.iter().flatten().map(|byte| u64::from(*byte)).sum::<u64>();
        let right = world.bytes[100..6 * PAGE].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        assert_eq!(world.file.read_with(100, 6 * PAGE - 100, sum).unwrap(), right);
        assert_eq!(counts(), (2, 6, 6, 8, 0), "drive threads {drive_threads}: one of six was there");
        assert_eq!(world.file.read_with(100, 6 * PAGE - 100, sum).unwrap(), right);
        assert_eq!(counts(), (8, 6, 6, 14, 0), "drive threads {drive_threads}");
        let (told, ends) = channel();
        world.file.submit_with(100, 8 * PAGE, move |pages| told.send(pages.map(sum)).unwrap()).unwrap();
        let right = world.bytes[100..][..8 * PAGE].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        assert_eq!(ends.recv().unwrap().unwrap(), right);
        assert_eq!(counts(), (14, 9, 9, 23, 0), "drive threads {drive_threads}: six of nine were there");
    }
}

/// Thousands of tasks at a time, each of which submits one more.
#[test]
fn many_tasks_are_on_their_way_at_a_time_and_ask_for_more() {
    fn task(file: File, page: usize, step: usize, told: std::sync::mpsc::Sender<(usize, u8)>) {
        let next = (page * 31 + 7) % 3000;
        let (again, at) = (file.clone(), (page * PAGE) as u64);
        let run = move |pages: iomill::Result<&iomill::PinnedRange<'_>>| {
            told.send((page, pages.unwrap().iter().next().unwrap()[0])).unwrap();
            if step > 0 {
                task(again, next, step - 1, told);
            }
        };
        file.submit_with(at, PAGE, run).unwrap();
    }
    for drive_threads in DRIVE_THREADS {
        // The cache holds only a part of the file.
        let world = World::new(options(drive_threads).cache_bytes(2 << 20), 3000);
        let (told, ends) = channel();
        for start in 0..1000 {
            task(world.file.clone(), start * 3, 3, told.clone());
        }
        drop(told);
        let mut count = 0;
        for (page, byte) in ends {
            assert_eq!(byte, world.bytes[page * PAGE], "page {page}");
            count += 1;
        }
        assert_eq!(count, 4000, "drive threads {drive_threads}");
    }
}

/// A thread that the task notifies of its end may delete the file.
#[test]
fn a_task_keeps_no_handle() {
    let World { _place, array, file, .. } = World::new(options(false), 100);
    for round in 0..50 {
        let (told, ends) = channel();
        file.submit_with(round * PAGE as u64, PAGE, move |pages| told.send(pages.is_ok()).unwrap()).unwrap();
        assert!(ends.recv().unwrap());
    }
    // `delete` waits for work in progress on the file, and the task is part of that work.
    let (told, ends) = channel();
    let inside = array.clone();
    let task = move |_: iomill::Result<&iomill::PinnedRange<'_>>| {
        told.send([inside.delete("file"), inside.rename("file", "other")]).unwrap();
    };
    file.submit_with(0, PAGE, task).unwrap();
    drop(file);
    let refused = ends.recv_timeout(crate::PATIENCE).unwrap();
    assert!(refused.iter().all(|result| matches!(result, Err(Error::BlockingCall { .. }))), "{refused:?}");
    array.delete("file").unwrap();
}

#[test]
fn tasks_over_too_much_or_nothing() {
    let world = World::new(ArrayOptions::new().cache_bytes(480 * 4096), 400);
    let error = world.file.submit_with(0, 400 * PAGE, |_| {}).unwrap_err();
    assert!(error.to_string().contains("over 245760 bytes at most"), "{error}");
    for (offset, wanted) in [(0, 0), (400 * PAGE as u64, 100), (1 << 40, 0)] {
        let (told, ends) = channel();
        let len = if offset == 0 { 0 } else { PAGE };
        world.file.submit_with(offset, len, move |pages| told.send(pages.unwrap().len()).unwrap()).unwrap();
        assert_eq!(ends.recv().unwrap(), wanted);
    }
}

#[test]
fn read_ahead_beside_threads_that_change_the_length() {
    let world = World::new(options(false), 800);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let mut buf = [0; PAGE];
            for _ in 0..crate::rounds(3) {
                for page in 0..800 {
                    let read = world.file.read_at(&mut buf, (page * PAGE) as u64).unwrap();
                    let right = &world.bytes[page * PAGE..][..read];
                    assert!(page >= 400 || buf[..read] == *right, "page {page}");
                }
                world.file.advise(.., Advice::DontNeed).unwrap();
                world.file.advise(.., Advice::WillNeed).unwrap();
            }
        };
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                world.file.set_len(400 * PAGE as u64).unwrap();
                world.file.set_len(800 * PAGE as u64).unwrap();
            }
        });
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(read)).collect();
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}
