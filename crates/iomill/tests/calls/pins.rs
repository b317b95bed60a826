//! Pins and ranges in place where there is little room for them. No call waits for ever, and no thread keeps unused
//! room.

use std::sync::mpsc::channel;
use std::thread;

use iomill::{Array, ArrayOptions, CacheOptions, Error, File, FileOptions, PinnedRange, Topology, Tuning};

use super::PAGE;

fn options(set_pages: usize, pages: usize) -> ArrayOptions {
    let options = ArrayOptions::new()
        .tuning(Tuning::new().topology(Topology::One))
        .cache(CacheOptions::new().read_ahead_bytes(0));
    options.with_cache(|cache| cache.set_pages(set_pages)).cache_bytes((pages * PAGE) as u64)
}

/// A file of `pages` clean pages, each full of its number.
fn made(options: ArrayOptions, pages: usize) -> (tempfile::TempDir, Array, File) {
    let place = tempfile::tempdir().unwrap();
    let array = options.create([place.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    let bytes: Vec<u8> = (0..pages as u64 * 512).flat_map(|word| (word / 512).to_le_bytes()).collect();
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    (place, array, file)
}

fn check(pages: &PinnedRange<'_>, first: u64) {
    for (number, page) in (first..).zip(pages.iter()) {
        assert!(page.chunks(8).all(|word| *word == number.to_le_bytes()), "page {number}");
    }
}

/// Fails if `test` hangs.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (told, end) = channel();
    let thread = thread::spawn(move || {
        test();
        told.send(()).unwrap();
    });
    if end.recv_timeout(crate::PATIENCE).is_err() {
        assert!(thread.is_finished(), "it hangs");
    }
    thread.join().unwrap();
}

/// Ranges of more pages than a set has, of more than the cache has, and of the largest length over small sets.
#[test]
fn a_range_is_had_whatever_fits() {
    for (set_pages, pages, range) in [(12, 12, 16), (4, 4, 16), (4, 8192, 1024)] {
        ends(move || {
            let (_place, _array, file) = made(options(set_pages, pages), 2 * range);
            for first in (0..range as u64).step_by(range / 16 * 5) {
                file.read_with(first * PAGE as u64, range * PAGE, |pages| {
                    assert_eq!(pages.len(), range * PAGE);
                    check(pages, first);
                })
                .unwrap();
                let (told, end) = channel();
                let task = move |pages: iomill::Result<&PinnedRange<'_>>| {
                    check(pages.unwrap(), first);
                    told.send(()).unwrap();
                };
                file.submit_with(first * PAGE as u64, range * PAGE, task).unwrap();
                end.recv().unwrap();
            }
        });
    }
}

/// The ranges of several threads are together more than a set holds. Each thread has a part of the set while it asks
/// for the rest.
#[test]
fn ranges_do_not_wait_for_each_other() {
    ends(|| {
        let (_place, _array, file) = made(options(4, 256).with_cache(|cache| cache.hash_mask(0)), 600);
        thread::scope(|scope| {
            for thread in 0..3 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..300 {
                        let first = (round * 7 + thread * 100) % 590;
                        file.read_with(first * PAGE as u64, 3 * PAGE, |pages| check(pages, first)).unwrap();
                    }
                });
            }
        });
    });
}

/// All pages of a set are pinned. One more pin is an error that says so, and all other calls work.
#[test]
fn a_pin_in_a_set_full_of_pins_is_an_error() {
    ends(|| {
        let (_place, _array, file) = made(options(4, 256).with_cache(|cache| cache.hash_mask(0)), 100);
        let mut pins: Vec<_> = (0..4).map(|page| file.pin(page).unwrap()).collect();
        let error = file.pin(4).unwrap_err();
        assert!(matches!(&error, Error::PinnedSet { page: 4, set_pages: 4, source: None, .. }), "{error}");
        let mut bytes = [0; PAGE];
        file.read_at(&mut bytes, 50 * PAGE as u64).unwrap();
        assert_eq!(bytes[0], 50);
        file.read_with(4 * PAGE as u64, 9 * PAGE, |pages| check(pages, 4)).unwrap();
        for page in 0..8 {
            file.write_at(&[7; PAGE], page * PAGE as u64).unwrap();
        }
        assert!(pins.iter().enumerate().all(|(page, pin)| pin[0] == page as u8));
        pins.pop();
        assert_eq!(file.pin(4).unwrap()[0], 7);
    });
}

/// A thread that has pinned many pages leaves room to others while it lives.
#[test]
fn a_thread_gives_back_room_for_pins() {
    for pages in [128, 8192] {
        let (_place, _array, file) = made(options(12, pages), pages);
        let range = pages / 9 * PAGE;
        let can_pin = |file: &File| thread::scope(|scope| scope.spawn(|| file.pin(0).is_ok()).join().unwrap());
        file.read_with(0, range, |pages| check(pages, 0)).unwrap();
        file.read_with(0, range, |pages| check(pages, 0)).unwrap();
        assert!(can_pin(&file), "after a range, {pages} pages");
        let mut pins: Vec<_> = (0..).map_while(|page| file.pin(page).ok()).collect();
        assert!(pins.len() > pages / 16 && !can_pin(&file), "{} pins in {pages} pages", pins.len());
        pins.truncate(1);
        drop(file.pin(pages as u64 - 1).unwrap());
        assert!(can_pin(&file), "after pins, {pages} pages");
    }
}

/// A file that is cut under a range ends there, or later. All bytes of the range can be read.
#[test]
fn a_range_of_a_file_that_is_being_cut() {
    let (_place, _array, file) = made(options(12, 600), 64);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let is_over = || stop.load(std::sync::atomic::Ordering::Relaxed);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over() {
                    for offset in [0, 100, 8 * PAGE - 5, 63 * PAGE] {
                        let len = 20 * PAGE;
                        let sum = file.read_with(offset as u64, len, |pages| {
                            assert_eq!(pages.iter().map(<[u8]>::len).sum::<usize>(), pages.len());
                        });
                        sum.unwrap();
                    }
                }
            });
        }
        for _ in 0..crate::rounds(50) {
            for len in [0, 50, 9 * PAGE as u64 + 7, 64 * PAGE as u64] {
                file.set_len(len).unwrap();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Threads that have pinned once, and live on, take no room for pins from others, for any number of threads. The same
/// holds for threads that keep fewer pins than they reserved room for.
#[test]
fn any_number_of_threads_may_pin() {
    // Room for 32 pins and for 1,032, in blocks of one slot and of several.
    for (pages, threads, kept) in [(256, 100, 20), (8192, 200, 150)] {
        let (_place, _array, file) = made(options(4, pages), pages / 2);
        let (done, barrier) = (std::sync::Barrier::new(threads + 1), std::sync::Barrier::new(threads + 1));
        // The pins that end at once come one at a time, so there is always room.
        let one = std::sync::Mutex::new(());
        thread::scope(|scope| {
            for thread in 0..threads as u64 {
                let (file, done, barrier, one) = (&file, &done, &barrier, &one);
                scope.spawn(move || {
                    let page = thread % (pages as u64 / 2);
                    let mut turn = one.lock().unwrap();
                    let pinned = file.pin(page).map(|pin| assert_eq!(pin[0], page as u8));
                    let kept = (thread < kept).then(|| file.pin(page));
                    drop(turn);
                    done.wait();
                    barrier.wait();
                    pinned.unwrap();
                    turn = one.lock().unwrap();
                    // Whatever happened to their slots, pinned pages stay, and the other threads pin again.
                    kept.into_iter().for_each(|pin| assert_eq!(pin.unwrap()[0], page as u8));
                    assert_eq!(file.pin(page).unwrap()[0], page as u8, "thread {thread}");
                    drop(turn);
                });
            }
            done.wait();
            let pinned = file.pin(7).map(|pin| assert_eq!(pin[0], 7));
            barrier.wait();
            pinned.unwrap();
        });
    }
}

/// Pins of a thread that has ended take up their room. Other threads get all the rest.
#[test]
fn pins_outlive_their_threads() {
    let (_place, _array, file) = made(options(4, 8192), 4096);
    let left = 1032 / 2;
    let mut pins: Vec<_> = thread::scope(|scope| {
        let threads = (0..left).map(|page| {
            scope.spawn({
                let file = &file;
                move || file.pin(page).unwrap()
            })
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut pages: Vec<u64> = (0..left).collect();
    for page in left..4096 {
        match file.pin(page) {
            Ok(pin) => {
                pins.push(pin);
                pages.push(page);
            }
            Err(Error::Pins { .. }) => break,
            // Its set is full of pins.
            Err(_) => {}
        }
    }
    assert!(pins.len() >= 1024, "{} pins", pins.len());
    assert!(pins.iter().zip(pages).all(|(pin, page)| pin[0] == page as u8));
}
