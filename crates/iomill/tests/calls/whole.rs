//! `Array::read` and its future: the whole content of one version of a file.

use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Answer, Array, ArrayOptions, Error, ErrorKind, FileOptions, PutOptions};

use super::small::drives;
use super::{places, random};
use crate::executor::block_on;

const LENS: [usize; 6] = [0, 1, 4096, 5000, 70_000, 1_000_003];

/// Both forms of the call.
fn both(array: &Array, name: &str) -> [iomill::Result<Vec<u8>>; 2] {
    [array.read(name), block_on(array.read_async(name))]
}

#[test]
fn a_put_is_read_back_whole() {
    for dir in places() {
        for cache_bytes in [0, 4 << 20] {
            let drive = dir.path().join(format!("of_{cache_bytes}"));
            std::fs::create_dir(&drive).unwrap();
            let array = ArrayOptions::new().cache_bytes(cache_bytes).create([&drive]).unwrap();
            for len in LENS {
                array.put(&format!("{len}"), &random(len, len as u64), &PutOptions::new()).unwrap();
            }
            array.close().unwrap();
            for read_only in [false, true] {
                let array = ArrayOptions::new().cache_bytes(cache_bytes).read_only(read_only).open(&drive).unwrap();
                // Twice: the first time no file is open, and nothing is cached.
                for len in LENS.into_iter().chain(LENS) {
                    for bytes in both(&array, &format!("{len}")) {
                        assert!(bytes.unwrap() == random(len, len as u64), "{len} bytes, cache {cache_bytes}");
                    }
                    let _open = array.open_file(&format!("{len}")).unwrap();
                    for bytes in both(&array, &format!("{len}")) {
                        assert!(bytes.unwrap() == random(len, len as u64), "{len} bytes, open");
                    }
                }
                for missing in both(&array, "none") {
                    assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
                }
                let closed = array.clone();
                array.close().unwrap();
                for closed in both(&closed, "1") {
                    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
                }
            }
        }
    }
}

/// Writes that are not synced are part of the content.
#[test]
fn unsynced_writes_are_read() {
    let (_dir, drives) = drives(2);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&random(50_000, 1), 10).unwrap();
    for bytes in both(&array, "f") {
        let bytes = bytes.unwrap();
        assert!(bytes.len() == 50_010 && bytes[..10] == [0; 10] && bytes[10..] == random(50_000, 1));
    }
}

/// Another thread replaces the file all the time. Each content is of one put: all bytes are its number, and the length
/// is that of the number.
#[test]
fn a_content_is_of_one_version() {
    let len_of = |number: u8| 3000 + usize::from(number % 5) * 40_000;
    for cache_bytes in [0, 1 << 20] {
        let (_dir, drives) = drives(2);
        let array = ArrayOptions::new().cache_bytes(cache_bytes).sync_changes(false).create(&drives).unwrap();
        let put = |number: u8| array.put("f", &vec![number; len_of(number)], &PutOptions::new()).unwrap();
        put(1);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..=200).for_each(|number| drop(put(number)));
                has_ended.store(true, Ordering::Relaxed);
            });
            while !has_ended.load(Ordering::Relaxed) {
                let early: Vec<Answer<Vec<u8>>> = (0..3).map(|_| array.read_async("f")).collect();
                for bytes in std::iter::once(array.read("f")).chain(early.into_iter().map(block_on)) {
                    let bytes = bytes.unwrap();
                    assert_eq!(bytes.len(), len_of(bytes[0]));
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "bytes of several versions");
                }
            }
        });
        array.close().unwrap();
    }
}

/// A content that is longer than memory is an error, and the process goes on.
#[test]
fn a_content_beyond_memory_is_an_error() {
    let (_dir, drives) = drives(1);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    for len in [1 << 42, 1 << 46] {
        // The file system may have a lower limit.
        if file.set_len(len).is_err() {
            continue;
        }
        for refused in both(&array, "f") {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Memory { len_bytes, .. } if len_bytes == len), "{error}");
            assert_eq!((error.kind(), error.to_string().contains("content of a file")), (ErrorKind::Resources, true));
        }
    }
    drop(file);
    assert!(array.read("f").is_err());
    array.delete("f").unwrap();
    array.close().unwrap();
}
