use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use iomill::ArrayOptions;

use super::executor::{Inbox, block_on_all};
use super::*;
use crate::arena::{Arena, Shape};
use crate::contender::Contender;
use crate::iomill::Iomill;
use crate::workload::Workload;

static NEVER: AtomicBool = AtomicBool::new(false);

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// A future that another thread wakes `times` times. Each wake comes during or after the poll that waits for it.
fn woken_by_another_thread(times: usize) -> Boxed<usize> {
    let mut left = times;
    Box::pin(poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(times);
        }
        left -= 1;
        let waker = context.waker().clone();
        thread::spawn(move || waker.wake());
        Poll::Pending
    }))
}

#[test]
fn futures_resolve_whichever_thread_wakes_them() {
    let mut outputs = block_on_all((0..40).map(woken_by_another_thread).collect());
    outputs.sort_unstable();
    assert_eq!(outputs, (0..40).collect::<Vec<_>>());
    assert!(block_on_all::<Boxed<()>>(Vec::new()).is_empty());
}

#[test]
fn only_what_was_woken_is_polled_and_once_for_many_wakes() {
    let polls: Arc<Vec<AtomicUsize>> = Arc::new((0..3).map(|_| AtomicUsize::new(0)).collect());
    let wakers: Arc<Inbox<Waker>> = Arc::new(Inbox::new(Vec::new()));
    let of = |index: usize| -> Boxed<()> {
        let (polls, wakers) = (Arc::clone(&polls), Arc::clone(&wakers));
        Box::pin(poll_fn(move |context| {
            let polled = polls[index].fetch_add(1, Ordering::Relaxed);
            if index == 0 {
                // The first future wakes the others in its second poll, several times each.
                let mut there = Vec::new();
                if polled == 1 {
                    wakers.take(&mut there);
                    there.iter().for_each(|waker| (0..5).for_each(|_| waker.wake_by_ref()));
                }
                context.waker().wake_by_ref();
                return if polled == 1 { Poll::Ready(()) } else { Poll::Pending };
            }
            wakers.push(context.waker().clone());
            if polled == 1 { Poll::Ready(()) } else { Poll::Pending }
        }))
    };
    block_on_all((0..3).map(of).collect());
    assert!(polls.iter().all(|polls| polls.load(Ordering::Relaxed) == 2), "{polls:?}");
}

/// An array with a file of pattern, on the real disk.
fn setting() -> (tempfile::TempDir, Arena) {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
    arena.fill(&Shape { len_bytes: 2 << 20, layout: iomill::FileOptions::new() }, &NEVER, &mut |_, _| ()).unwrap();
    (dir, arena)
}

fn slice(verify: bool) -> Slice<'static> {
    Slice { threads: 2, duration: Duration::from_millis(60), verify, cancel: &NEVER }
}

#[test]
fn every_flyer_reads_and_writes_what_is_right() {
    let (_dir, arena) = setting();
    // Slices with writes leave other bytes behind, with the right stamps.
    for (read_percent, verify) in [(100, true), (100, false), (50, false), (50, true)] {
        for flyer in Flyer::all().into_iter().chain([Flyer::plain()]) {
            let mut contender = Iomill::flying(&flyer, &arena, &ArrayOptions::new()).unwrap();
            assert_eq!(Contender::<Workload>::name(&contender), flyer.name());
            let workload = Workload { read_percent, block_bytes: 8192, ..Workload::RANDOM_READ };
            assert_eq!(contender.prepare(&workload).unwrap(), None);
            let sample = contender.run(&slice(verify)).unwrap();
            assert!(sample.ops > 0 && sample.bytes == 8192 * sample.ops, "{}: {}", flyer.name(), sample.ops);
            assert!(!sample.latency_ns.is_empty(), "{}: {}", flyer.name(), sample.ops);
            let in_flight = flyer.name().rsplit('-').next().unwrap();
            assert!(contender.notes()[0].starts_with(&format!("{in_flight} in flight")), "{:?}", contender.notes());
        }
    }
}

#[test]
fn every_flyer_writes_the_stamps_of_its_own_seed() {
    let (_dir, arena) = setting();
    let array = ArrayOptions::new().open_at(arena.drives()).unwrap();
    let file = array.open_file(arena.file_name()).unwrap();
    let load = Load { array: &array, file: &file, op_bytes: 4096, seed: crate::arena::SEED + 1, writes: true };
    let of_lane = |lane: usize, _| -> Result<Ops> {
        let op = move |write| Op { offset: lane as u64 * 4096, write };
        Ok(Box::new([true, false].into_iter().map(op)))
    };
    for flyer in Flyer::all().into_iter().chain([Flyer::plain()]) {
        let long = Slice { threads: 1, duration: Duration::from_secs(600), ..slice(true) };
        let sample = flyer.run(&long, &load, |_| Ok(()), of_lane, || ()).unwrap();
        assert_eq!(sample.ops, 2 * flyer.in_flight as u64, "{}", flyer.name());
    }
    file.close().unwrap();
    array.close().unwrap();
}

#[test]
fn every_flyer_ends_at_a_wrong_byte() {
    let (_dir, arena) = setting();
    let array = ArrayOptions::new().open_at(arena.drives()).unwrap();
    let file = array.open_file(arena.file_name()).unwrap();
    file.write_at(&vec![7; 2 << 20], 0).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    for flyer in Flyer::all().into_iter().chain([Flyer::plain()]) {
        let mut contender = Iomill::flying(&flyer, &arena, &ArrayOptions::new()).unwrap();
        contender.prepare(&Workload::RANDOM_READ).unwrap();
        // The error must end the slice, which is longer than any test.
        let long = Slice { duration: Duration::from_secs(600), ..slice(true) };
        let error = contender.run(&long).unwrap_err().to_string();
        assert!(error.contains("not what was written"), "{}: {error}", flyer.name());
        assert!(contender.run(&slice(false)).unwrap().ops > 0, "nothing is checked: {}", flyer.name());
    }
}
