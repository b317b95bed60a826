//! A forked child of a process that held each lock of the cache at the fork.

#![allow(unsafe_code)]

use std::path::Path;
use std::process::Command;

use futures_executor::block_on;

use super::*;
use crate::identity::{ObjectId, Version};
use crate::pages::whole;

const GRANULE: usize = 16 << 10;
const ALONE: &str = "IOMILL_ORIGIN_ALONE";

/// Runs a test again in a process of its own, where no other test holds a lock while it forks. `true`: it has run.
fn has_run_alone() -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let test = Command::new(std::env::current_exe().unwrap()).args([&name, "--exact"]).env(ALONE, "1").output();
    let test = test.unwrap();
    let (out, errors) = (String::from_utf8_lossy(&test.stdout), String::from_utf8_lossy(&test.stderr));
    assert!(test.status.success() && out.contains("1 passed"), "{out}{errors}");
    true
}

fn opened(dir: &Path) -> Cache {
    let options = Options::new().bytes(8 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir);
    Cache::open([dir], options.on_root(true).read_within(Duration::from_secs(600))).unwrap()
}

fn id(n: u64) -> GranuleId {
    ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1 << 40).granule(n)
}

fn fills_and_reads(cache: &Cache, n: u64) -> bool {
    let inner = cache.here().unwrap();
    inner.offer(Fill { id: id(n), bytes: vec![n as u8; GRANULE].into(), claim: None, is_ahead: false }, false);
    let is_written = cache.flush_within(Duration::MAX);
    cache.wait_until_loaded();
    block_on(inner.timer.after(Duration::from_millis(1)));
    let read = |n| block_on(whole(inner, &inner.drives[0], id(n))).is_some_and(|bytes| bytes == vec![n as u8; GRANULE]);
    is_written && read(0) && read(n) && cache.counters().filled == 1 && cache.notices().is_empty()
}

/// No thread of the child releases these locks, so a child that took one would wait for ever.
#[test]
fn a_child_takes_no_lock_of_its_parent() {
    if has_run_alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = opened(dir.path());
    assert!(fills_and_reads(&cache, 0));
    let inner = cache.here().unwrap();
    let locks = (
        inner.fillers[0].locked(),
        inner.timer.locked(),
        inner.flights.locked(),
        inner.notices.locked(),
        inner.shares.write().unwrap(),
    );
    // SAFETY: the child runs no code of other threads, because it has none of them. The data of this test that it uses
    // are idle, except for the locks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal that ends the child, and nothing else.
        unsafe { libc::alarm(60) };
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fills_and_reads(&cache, 1)));
        // SAFETY: it ends the child at once. The kernel frees the child's resources.
        unsafe { libc::_exit(if right.unwrap_or(false) { 0 } else { 1 }) };
    }
    drop(locks);
    let mut status = -1;
    // SAFETY: the call writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "14: it waited until it was ended");
    let read = block_on(whole(inner, &inner.drives[0], id(1)));
    assert_eq!(read.unwrap(), vec![1; GRANULE], "what the child has written");
}
