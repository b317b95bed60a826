//! Engines that panic: their requests in flight end, and nothing waits for ever.

use super::*;

/// Rule 6 of the cache: a panic may come anywhere. All I/O of the panicking call ends, and other calls work.
#[test]
fn a_panic_leaves_no_page_filling_or_flushing() {
    {
        let rig = rig(2, false, 64);
        let file = rig.file("x", 64);
        let mut page = [0; PAGE as usize];
        for round in 0..4 {
            rig.hooks.panics.store(1, Ordering::SeqCst);
            let read = catch_unwind(AssertUnwindSafe(|| match round {
                0 => file.read_at(&mut page, 5 * PAGE).map(drop),
                1 => file.read_many(&mut [0; 30], &[6 * PAGE, 7 * PAGE, 9 * PAGE], 10),
                2 => file.write_at(&[1; 10], 10 * PAGE + 7),
                _ => file.read_with(12 * PAGE, 3 * PAGE as usize, |_| ()),
            }));
            assert!(read.is_err(), "{round}: the engine did not panic");
        }
        file.write_at(&[7; PAGE as usize], 20 * PAGE).unwrap();
        rig.hooks.panics.store(1, Ordering::SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(|| file.sync())).is_err(), "the engine did not panic");
        let again = file.clone();
        ends("what comes after a panic", move || {
            for number in [5, 6, 7, 9, 10, 12, 13, 14] {
                let mut page = [0; PAGE as usize];
                assert_eq!(again.read_at(&mut page, number * PAGE).unwrap(), page.len());
                assert!(page.iter().all(|&byte| byte == number as u8), "page {number}");
            }
            again.sync().unwrap();
            again.set_len(30 * PAGE).unwrap();
        });
        let mut page = [0; PAGE as usize];
        file.read_at(&mut page, 20 * PAGE).unwrap();
        assert_eq!(page, [7; PAGE as usize]);
        file.close().unwrap();
        ends("closing", move || rig.array.close().unwrap());
    }
}

/// A panic of an engine in the turn of a poll goes to the thread that polls. The next turn reports the ended requests,
/// and nothing waits for ever.
#[test]
fn a_panic_in_a_turn_loses_no_end() {
    for cache_pages in [0, 64] {
        let rig = rig(2, false, cache_pages);
        let file = rig.file("x", 64);
        rig.hooks.panics_at_once.store(true, Ordering::SeqCst);
        let panicked = (1..1000).any(|round| {
            file.advise(.., Advice::DontNeed).unwrap();
            rig.hooks.panics.store(1, Ordering::SeqCst);
            // A read of one page begins without a turn.
            let read = || block_on(file.read_async(round % 60 * PAGE, PAGE as usize));
            catch_unwind(AssertUnwindSafe(read)).is_err()
        });
        assert!(panicked, "no turn of this thread panicked");
        ends("what comes after a panic", move || {
            let mut all = vec![0; 64 * PAGE as usize];
            file.read_at(&mut all, 0).unwrap();
            file.set_len(PAGE).unwrap();
            file.close().unwrap();
            rig.array.close().unwrap();
        });
    }
}

/// An engine panics in the turn of the call that hands over an operation's pieces. The memory of the pieces stays until
/// they have ended.
///
/// Seen to fail without the landing before the push in `Io::run`: by SIGSEGV, or by wrong bytes of a later read.
#[test]
fn a_panic_while_pieces_are_handed_over_keeps_what_they_need() {
    let rig = rig(2, false, 64);
    let file = rig.file("x", 64);
    rig.hooks.panics_at_once.store(true, Ordering::SeqCst);
    for round in 0..200 {
        file.advise(.., Advice::DontNeed).unwrap();
        rig.hooks.panics.store(1, Ordering::SeqCst);
        // Whether the panic comes to this thread or to another one does not matter here.
        let _panicked = catch_unwind(AssertUnwindSafe(|| {
            iomill::block_on(file.read_async(round % 20 * 2 * PAGE, [2, 20][round as usize % 2] * PAGE as usize))
        }));
        rig.hooks.panics.store(0, Ordering::SeqCst);
        let file = file.clone();
        ends("what comes after a panic", move || {
            let mut all = vec![0; 64 * PAGE as usize];
            file.read_at(&mut all, 0).unwrap();
            assert!(all.chunks(PAGE as usize).zip(0..).all(|(page, number)| page.iter().all(|byte| *byte == number)));
        });
    }
    let array = rig.array;
    ends("closing", move || file.close().and_then(|()| array.close()).unwrap());
}

/// An engine panics in a turn that has already ended another operation.
///
/// Seen not to end without the drop of `TurnEnds`.
#[test]
fn a_panic_behind_ends_of_the_same_turn_loses_none_of_them() {
    let rig = rig(2, false, 0);
    let file = rig.file("x", 64);
    rig.hooks.panics_at_once.store(true, Ordering::SeqCst);
    for round in 0..100 {
        rig.hooks.reads.shut();
        let one = file.read_async(round % 64 * PAGE, PAGE as usize);
        rig.hooks.reads.wait_for(1);
        rig.hooks.reads.open();
        // The first wait with a completion may end `one`; the second one panics.
        rig.hooks.panics.store(2, Ordering::SeqCst);
        let _panicked = catch_unwind(AssertUnwindSafe(|| drop(file.read_async(0, 64 * PAGE as usize))));
        let bytes = ends("what ended before a panic", move || block_on(one).unwrap());
        assert_eq!(bytes, [(round % 64) as u8; PAGE as usize]);
        rig.hooks.panics.store(0, Ordering::SeqCst);
    }
    let array = rig.array;
    ends("closing", move || file.close().and_then(|()| array.close()).unwrap());
}

/// A thread that unwinds from one array's panic helps another array, and the engine panics there, too.
///
/// Seen to abort the process when a panic left the turn of a helper: "panic in a destructor during cleanup".
#[test]
fn a_thread_that_unwinds_helps_engines_that_panic() {
    let (one, other) = (rig(2, false, 64), rig(1, false, 0));
    let (file, helped) = (one.file("x", 64), other.file("y", 64));
    one.hooks.panics_at_once.store(true, Ordering::SeqCst);
    for round in 0..100 {
        other.hooks.reads.shut();
        let read = helped.read_async(round % 64 * PAGE, PAGE as usize);
        other.hooks.reads.wait_for(1);
        other.hooks.panics.store(1, Ordering::SeqCst);
        other.hooks.reads.open();
        file.advise(.., Advice::DontNeed).unwrap();
        one.hooks.panics.store(1, Ordering::SeqCst);
        // Whether a panic comes to this thread or to another one does not matter here.
        let _panicked = catch_unwind(AssertUnwindSafe(|| block_on(file.read_async(0, 20 * PAGE as usize))));
        one.hooks.panics.store(0, Ordering::SeqCst);
        other.hooks.panics.store(0, Ordering::SeqCst);
        let bytes = ends("the helped array's read", move || block_on(read).unwrap());
        assert_eq!(bytes, [(round % 64) as u8; PAGE as usize]);
    }
    ends("closing", move || {
        file.close().and_then(|()| helped.close()).unwrap();
        one.array.close().and_then(|()| other.array.close()).unwrap();
    });
}

/// An engine panics again while the call that its first panic unwinds waits for pieces in flight.
///
/// Seen to abort the process when a panic left `Lane::drain` in a drop.
#[test]
fn an_engine_that_panics_again_while_a_call_unwinds_ends_no_process() {
    for cache_pages in [0, 64] {
        let rig = rig(2, false, cache_pages);
        let file = rig.file("x", 64);
        for round in 0..50 {
            file.advise(.., Advice::DontNeed).unwrap();
            rig.hooks.panics_twice.store(true, Ordering::SeqCst);
            rig.hooks.panics.store(1, Ordering::SeqCst);
            let mut all = vec![0; 64 * PAGE as usize];
            let read = catch_unwind(AssertUnwindSafe(|| file.read_at(&mut all, 0)));
            assert!(read.is_err(), "{round}: the engine did not panic");
            rig.hooks.panics_twice.store(false, Ordering::SeqCst);
            rig.hooks.panics.store(0, Ordering::SeqCst);
        }
        ends("what comes after the panics", move || {
            let mut all = vec![0; 64 * PAGE as usize];
            file.read_at(&mut all, 0).unwrap();
            assert!(all.chunks(PAGE as usize).zip(0..).all(|(page, number)| page.iter().all(|byte| *byte == number)));
            file.close().and_then(|()| rig.array.close()).unwrap();
        });
    }
}

/// The last holder of a file flushes it. A panic of the engine there becomes a notice: in a thread that unwinds, and in
/// front of the end of a read that held the file.
///
/// Seen to abort the process, and to leave the read without its end, when the panic left the drop of the file.
#[test]
fn a_panic_in_the_close_of_a_file_is_a_notice() {
    let rig = rig(1, false, 64);
    let file = rig.file("x", 64);
    file.write_at(&[1; 10], 5 * PAGE).unwrap();
    rig.hooks.panics.store(1, Ordering::SeqCst);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _last = file;
        panic!("a test's own");
    }));
    assert!(unwound.is_err());
    let notices = || rig.array.notices().iter().filter(|notice| notice.contains("closing \"")).count();
    assert_eq!(notices(), 1, "{:?}", rig.array.notices());

    let file = rig.file("y", 64);
    file.write_at(&[1; 10], 5 * PAGE).unwrap();
    rig.hooks.reads.shut();
    let read = file.read_async(10 * PAGE, PAGE as usize);
    rig.hooks.reads.wait_for(1);
    drop(file);
    // The read's own wait is the first one.
    rig.hooks.panics.store(2, Ordering::SeqCst);
    rig.hooks.reads.open();
    assert_eq!(ends("the read", || block_on(read)).unwrap(), [10; PAGE as usize]);
    assert_eq!(notices(), 2, "{:?}", rig.array.notices());
    ends("closing", move || rig.array.close().unwrap());
}

/// An engine panics at the first file of two that `close` has to flush.
///
/// Seen to leave the drives locked when the panic left `OpenFiles::close`.
#[test]
fn a_close_that_panics_at_one_file_finishes_the_others() {
    let Rig { _dir, drives, hooks, array } = rig(1, false, 64);
    let names = ["x", "y"];
    let files = names.map(|name| array.create_file(name, &FileOptions::new()).unwrap());
    files.iter().for_each(|file| file.write_at(&[1; 10], 0).unwrap());
    hooks.panics.store(1, Ordering::SeqCst);
    let closing = array.clone();
    let error = ends("closing", move || closing.close()).unwrap_err();
    assert!(matches!(error, Error::Panicked), "{error}");
    drop((files, array));
    let array = ArrayOptions::new().open(&drives[0]).unwrap();
    let flushed = names.map(|name| array.open_file(name).unwrap().len());
    assert_eq!(flushed.iter().filter(|len| **len == 10).count(), 1, "{flushed:?}");
}

/// `iomill::block_on` takes the turns of all contexts of its thread. The engine of another array panics there, and so
/// does the engine of the future's own array.
///
/// Seen to unwind out of `block_on` when its turns let the panics go on.
#[test]
fn a_panic_in_a_turn_of_block_on_ends_no_future() {
    let (one, other) = (rig(2, false, 64), rig(1, false, 0));
    let (file, beside) = (one.file("x", 64), other.file("y", 64));
    for round in 0..100 {
        other.hooks.reads.shut();
        let read = beside.read_async(round % 64 * PAGE, PAGE as usize);
        other.hooks.reads.wait_for(1);
        other.hooks.panics.store(1, Ordering::SeqCst);
        one.hooks.panics.store((round % 2) as u32, Ordering::SeqCst);
        other.hooks.reads.open();
        file.advise(.., Advice::DontNeed).unwrap();
        // A read of one page begins without a turn. A panic in such a turn would be its own.
        let bytes = iomill::block_on(file.read_async(round % 60 * PAGE, PAGE as usize)).unwrap().unwrap();
        assert_eq!(bytes, [(round % 60) as u8; PAGE as usize]);
        let bytes = iomill::block_on(read).unwrap().unwrap();
        assert_eq!(bytes, [(round % 64) as u8; PAGE as usize]);
        one.hooks.panics.store(0, Ordering::SeqCst);
        other.hooks.panics.store(0, Ordering::SeqCst);
    }
    ends("closing", move || {
        file.close().and_then(|()| beside.close()).unwrap();
        one.array.close().and_then(|()| other.array.close()).unwrap();
    });
}

/// Files are put at the same time, and the engine panics while it writes their contents together. Each is then written
/// by itself.
///
/// Seen to fail all of them when the panic ended the turn.
#[test]
fn a_panic_in_the_pages_of_a_turn_fails_no_put() {
    let rig = rig(2, false, 0);
    let put = |name: &str| rig.array.put_async(name, name.repeat(30), &PutOptions::new());
    rig.hooks.writes.shut();
    let first = put("first");
    rig.hooks.writes.wait_for(1);
    // These are one turn.
    let names: Vec<String> = (0..10).map(|number| format!("file {number}")).collect();
    let others: Vec<_> = names.iter().map(|name| put(name)).collect();
    // The first turn waits once, the next one panics.
    rig.hooks.panics.store(2, Ordering::SeqCst);
    rig.hooks.writes.open();
    ends("the puts", move || {
        block_on(first).unwrap();
        others.into_iter().for_each(|put| drop(block_on(put).unwrap()));
    });
    assert_eq!(rig.hooks.panics.load(Ordering::SeqCst), 0, "the engine did not panic");
    names.iter().for_each(|name| assert_eq!(rig.array.read(name).unwrap(), name.repeat(30).as_bytes()));
    ends("closing", move || rig.array.close().unwrap());
}

/// The engine of a node's thread panics while the thread has requests of several calls. The calls do without it.
///
/// Seen to fail the calls when a dropped request ended with an error.
#[test]
fn a_panic_in_the_thread_of_a_node_fails_no_call() {
    const PAGES: u64 = 256;
    for writes in [false, true] {
        let tuning = Tuning::new().topology(Topology::Emulate(2)).remote(Remote::Message);
        let rig = rig_of(2, tuning, 4 * PAGES);
        let files = ["x", "y"].map(|name| rig.file(name, PAGES));
        *rig.hooks.panics_in.lock().unwrap() = Some("iomill-node");
        rig.hooks.reads.shut();
        let calls = files.clone().map(|file| {
            thread::spawn(move || {
                let offsets: Vec<u64> = (0..PAGES).map(|page| page * PAGE + 7).collect();
                let mut rows = vec![0xFF; 10 * PAGES as usize];
                match writes {
                    true => file.write_many(&rows, &offsets, 10)?,
                    false => file.read_many(&mut rows, &offsets, 10)?,
                }
                Ok::<_, Error>(rows)
            })
        });
        rig.hooks.reads.wait_for(2);
        rig.hooks.panics.store(1, Ordering::SeqCst);
        rig.hooks.reads.open();
        for call in calls {
            let rows = ends("the call", move || call.join().unwrap()).unwrap();
            let right = |page: usize| if writes { 0xFF } else { page as u8 };
            assert!(rows.chunks(10).enumerate().all(|(page, row)| row == [right(page); 10]), "writes {writes}");
        }
        assert_eq!(rig.hooks.panics.load(Ordering::SeqCst), 0, "the engine did not panic");
        for file in files {
            let mut all = vec![0; (PAGES * PAGE) as usize];
            file.read_at(&mut all, 0).unwrap();
            for (page, bytes) in all.chunks(PAGE as usize).enumerate() {
                let mut right = [page as u8; PAGE as usize];
                if writes {
                    right[7..17].fill(0xFF);
                }
                assert_eq!(bytes, right, "page {page}");
            }
            file.close().unwrap();
        }
        ends("closing", move || rig.array.close().unwrap());
    }
}

/// A file was closed, and the engines panic when they forget it: at the next use, by operations on another file.
///
/// Seen to lose the callback's read, and to leave the future's, when the panic left the turn; and to end a drive's thread
/// with its requests.
#[test]
fn a_panic_over_a_closed_file_fails_no_operation_on_another() {
    for drive_threads in [false, true] {
        let rig = rig(1, drive_threads, 0);
        let file = rig.file("x", 64);
        let read = |page: u64| {
            let (tell, told) = channel();
            let callback = move |outcome: std::result::Result<(Vec<u8>, usize), _>| drop(tell.send(outcome));
            file.read_at_then(vec![0; PAGE as usize], page * PAGE, callback).unwrap();
            let (bytes, _) = told.recv_timeout(PATIENCE).expect("the callback is not called").unwrap();
            assert_eq!(bytes, [page as u8; PAGE as usize]);
            assert_eq!(block_on(file.read_async(page * PAGE, PAGE as usize)).unwrap(), bytes);
            let mut again = [0; PAGE as usize];
            file.read_at(&mut again, page * PAGE).unwrap();
            assert_eq!(again[..], bytes);
        };
        // The contexts are there when the file is closed.
        read(0);
        for round in 0..20 {
            let closed = rig.file("y", 4);
            // The drive's thread forgets it at once. Without one the contexts of the callbacks, of the future and of the
            // blocking call each do so later.
            let most = if drive_threads { 1 } else { 3 };
            rig.hooks.panics_in_forget.store(most, Ordering::SeqCst);
            closed.close().unwrap();
            read(round % 64);
            assert!(rig.hooks.panics_in_forget.swap(0, Ordering::SeqCst) < most, "no engine has panicked");
            rig.array.delete("y").unwrap();
        }
        ends("closing", move || file.close().and_then(|()| rig.array.close()).unwrap());
    }
}
