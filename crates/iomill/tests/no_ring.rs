//! A thread that gets no engine: its calls fail, and nothing else does. A test of its own process, whose limit of open files it changes.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::thread;

use iomill::{ArrayOptions, Error, File, Layout};

/// Calls `sync` on a new thread while no more files can be opened.
fn sync_without_files(file: &File) -> Error {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    let set = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, ..before };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            set(0);
            let result = file.sync();
            set(before.rlim_cur);
            result
        });
        syncing.join().unwrap().unwrap_err()
    })
}

/// What could not be begun has not failed: no page is lost by it, no file poisoned, and no other call told of it.
#[test]
fn a_sync_that_could_not_be_begun_is_tried_again() {
    for cache_bytes in [0, 1 << 20] {
        let place = tempfile::tempdir().unwrap();
        let array = ArrayOptions::new().cache_bytes(cache_bytes).create([place.path()]).unwrap();
        let file = array.create_file("file", Layout::default()).unwrap();
        file.write_at(&[7; 100_000], 0).unwrap();
        let other = file.clone();
        let error = sync_without_files(&file);
        assert!(matches!(&error, Error::Machine { what, .. } if what.contains("engine")), "{error}");
        file.sync().unwrap();
        other.sync().unwrap();
        file.write_at(&[8; 10], 50).unwrap();
        drop((file, other));
        array.close().unwrap();
        let array = ArrayOptions::new().open(place.path()).unwrap();
        let mut bytes = vec![0; 100_000];
        assert_eq!(array.open_file("file").unwrap().read_at(&mut bytes, 0).unwrap(), 100_000);
        assert!(bytes[60..].iter().all(|&byte| byte == 7) && bytes[50] == 8);
    }
}
