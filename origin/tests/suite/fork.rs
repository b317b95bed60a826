//! Forked children use the cache of their parent: they open it for themselves.

#![allow(unsafe_code)]

use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_executor::block_on;
use iomill_origin::{Cache, Cost, Revalidate};

use super::drives::{Hung, bounds};
use super::object_store::ObjectStore;
use super::object_store::memory::InMemory;
use super::{Act, Rig, expected, random, rows};

const LEN: usize = 1 << 20;

/// Runs a test again in a process of its own, where no other test has a lock while it forks. `true`: it has run.
pub fn has_run_alone() -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let test =
        Command::new(std::env::current_exe().unwrap()).args([&name, "--exact"]).env(ALONE, "1").output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&test.stdout), String::from_utf8_lossy(&test.stderr));
    assert!(test.status.success() && out.contains("1 passed"), "{out}{errors}");
    true
}

/// The environment variable of such a process.
const ALONE: &str = "IOMILL_ORIGIN_ALONE";

/// The exit status of a child that runs a function. The child ends itself if that takes too long.
fn in_child(run: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs no code of other threads, because it has none of them. The data of this test that it uses
    // were made for it, or are idle.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal that ends the child, and nothing else.
        unsafe { libc::alarm(300) };
        // The harness would keep the text of a panic, and lose it.
        std::panic::set_hook(Box::new(|why| drop(std::fs::write("/proc/self/fd/2", format!("in a child: {why}\n")))));
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: it ends the child at once. The kernel frees the child's resources.
        unsafe { libc::_exit(if right.unwrap_or(false) { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the call writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

/// The child reads granules that its parent has fetched, and fetches more, which the parent finds. Neither ends the
/// other.
#[test]
fn a_forked_child_reads_and_fills() {
    if has_run_alone() {
        return;
    }
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    block_on(rig.behind("a", bytes.clone()));
    let (half, all) = (rows(LEN as u64 / 2), rows(LEN as u64));
    assert_eq!(block_on(rig.ranges("a", &half)).unwrap(), expected(&bytes, &half));
    rig.cache.flush();
    let status = in_child(|| {
        let right = block_on(rig.ranges("a", &all)).unwrap() == expected(&bytes, &all);
        rig.cache.flush();
        let counters = rig.cache.counters();
        // The end of the last clone in the child stops no thread of its parent, and waits for none.
        let (store, cache) = (rig.store.clone(), rig.cache.clone());
        drop((store, cache));
        right && counters.hits >= half.len() as u64 && counters.filled > 0 && rig.cache.notices().is_empty()
    });
    assert_eq!(status, 0);
    let before = rig.cache.counters();
    assert_eq!(block_on(rig.ranges("a", &all)).unwrap(), expected(&bytes, &all));
    assert_eq!(rig.since(&before).gets, 0, "what the child has fetched is on the drives");
    rig.cache.flush();
}

/// A call that waits for an unpolled call continues after some seconds. That takes a timer.
#[test]
fn timers_run_in_a_forked_child() {
    if has_run_alone() {
        return;
    }
    let rig = Rig::with(|options| {
        let mut one = Cost::default();
        one.in_flight = 1;
        options.cost(one).revalidate("", Revalidate::Never)
    });
    let bytes = random(LEN, 1);
    block_on(rig.behind("a", bytes.clone()));
    block_on(rig.ranges("a", &[0..5])).unwrap();
    let status = in_child(|| {
        rig.scripted.script(|ask| if ask.nth == 1 { Act::Stall } else { Act::Pass });
        let far = [600_000..600_100];
        let mut asleep = Box::pin(rig.ranges("a", &far));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let begun = asleep.as_mut().poll(&mut context).is_pending();
        begun && block_on(rig.ranges("a", &far)).unwrap() == expected(&bytes, &far)
    });
    assert_eq!(status, 0);
}

/// A child opens the drives at its first call, and continues without a hanging one. Seen to fail without a bound: an
/// alarm ended the child.
#[test]
fn a_forked_child_goes_on_without_a_drive_that_hangs() {
    if has_run_alone() {
        return;
    }
    assert!(bounds().any(goes_on_without_a_drive_that_hangs));
}

/// `false`: the bound is too short for the other drive.
fn goes_on_without_a_drive_that_hangs(within: Duration) -> bool {
    let (dir, memory) = (super::scratch(), Arc::new(InMemory::new()));
    let given = super::options(&dir).revalidate("", Revalidate::Never).open_within(within);
    let Ok(cache) = Cache::open(super::drives(&dir), given) else { return false };
    if !cache.notices().is_empty() {
        return false;
    }
    let scripted = Arc::new(super::Scripted::new(memory.clone()));
    let store = cache.over(scripted.clone() as Arc<dyn ObjectStore>, "memory://");
    let rig = Rig { store, cache, scripted, memory, dir };
    let bytes = random(LEN, 1);
    block_on(rig.behind("a", bytes.clone()));
    let all = rows(LEN as u64);
    block_on(rig.ranges("a", &all)).unwrap();
    rig.cache.flush();
    let (hung, both_are_late) = (Hung::new(&super::drives(&rig.dir)[0], "label"), rig.dir.path().join("late"));
    let status = in_child(|| match (block_on(rig.ranges("a", &all)), rig.cache.notices().len()) {
        (Ok(_), 0) => false,
        (Ok(got), 1) => got == expected(&bytes, &all),
        // The error of a cache without drives, or its notices.
        late => std::fs::write(&both_are_late, format!("{late:?}")).is_ok(),
    });
    hung.answer();
    assert_eq!(status, 0);
    assert_eq!(block_on(rig.ranges("a", &all)).unwrap(), expected(&bytes, &all));
    !both_are_late.exists()
}
