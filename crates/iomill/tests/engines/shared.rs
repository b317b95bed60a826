//! Shared engines, which any thread may use.

use super::*;

/// A shared engine's descriptor is readable while completions wait, and not for ever after they were taken.
#[test]
fn a_shared_engine_tells_of_ends_by_its_descriptor() {
    fn is_readable(fd: std::os::fd::RawFd, timeout_ms: i32) -> bool {
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives until the call returns.
        unsafe { libc::poll(&raw mut polled, 1, timeout_ms) == 1 }
    }
    let dir = scratch();
    for (name, mut engine) in engines(&EngineConfig { shared: true, ..config(8) }) {
        if name.contains("polling") {
            continue;
        }
        let descriptor = engine.descriptor().unwrap_or_else(|| panic!("{name} has no descriptor"));
        let file = paged_file(&dir, "shared", 8, 3);
        let mut memory = PageBuf::new(8 * PAGE).unwrap();
        for round in 0..100 {
            let page = |slot: u32| u64::from((slot + round) % 8) * PAGE as u64;
            let reads: Vec<_> =
                (0..8).map(|slot| request(slot, Op::Read, named(&file, 1), page(slot), &mut memory)).collect();
            // SAFETY: memory and file are there until all have ended.
            unsafe { engine.push(&reads) };
            let mut done = Vec::new();
            engine.wait(0, Some(Duration::ZERO), &mut done).unwrap();
            while done.len() < reads.len() {
                assert!(is_readable(descriptor, LONG.as_millis() as i32), "{name}: it does not tell");
                engine.wait(0, Some(Duration::ZERO), &mut done).unwrap();
            }
            assert!(done.iter().all(|end| end.result == PAGE as i32), "{name}: {done:?}");
            // The kernel may signal a completion that was taken already. Each look drains that signal.
            let looks = (0..=reads.len()).take_while(|_| {
                let tells = is_readable(descriptor, 0);
                engine.wait(0, Some(Duration::ZERO), &mut done).unwrap();
                tells
            });
            assert!(looks.count() <= reads.len(), "{name}: it tells again and again");
        }
    }
}
