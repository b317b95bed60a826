//! Futures that own a buffer: the allowed kinds of memory, and its return with the outcome.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use iomill::{Array, Error, Failed, File, IoBuffer, IoBytes, block_on};

use super::PAGE;
use super::abandoned::site;

fn run<F: Future>(future: F) -> F::Output {
    block_on(future).unwrap()
}

/// Reads and writes with any buffer, of pages in the cache and of pages outside it.
fn round<B: IoBuffer + std::ops::DerefMut<Target = [u8]>>(file: &File, make: impl Fn(usize) -> B) {
    let page = PAGE as u64;
    let mut buffer = make(100);
    let place = buffer.as_ptr();
    buffer.fill(77);
    // Across two pages, so that both have old bytes around the new ones.
    let buffer = run(file.write_at_async(buffer, 2 * page - 50)).unwrap();
    assert_eq!(buffer.as_ptr(), place, "the same memory comes back");
    let (buffer, read) = run(file.read_at_async(buffer, 2 * page - 60)).unwrap();
    assert_eq!((&buffer[..10], &buffer[10..], read), (&[1; 10][..], &[77; 90][..], 100));
    for _ in 0..2 {
        let (buffer, read) = run(file.read_at_async(make(100), 9 * page + 7)).unwrap();
        assert_eq!((&buffer[..], read), (&[9; 100][..], 100), "within a page, missing and then there");
    }
    let offsets = [5 * page, 3 * page - 20, 5 * page];
    let many = run(file.read_many_async(make(90), &offsets, 30)).unwrap();
    assert_eq!([&many[..30], &many[30..50], &many[50..60], &many[60..]], [&[5; 30][..], &[2; 20], &[3; 10], &[5; 30]]);
    let ranges = run(file.read_ranges_async(make(12), &[(8 * page, 5), (7 * page, 7)])).unwrap();
    assert_eq!([&ranges[..5], &ranges[5..]], [&[8; 5][..], &[7; 7]]);
    let gathered = run(file.gather_async(&[(8 * page, 5), (7 * page, 0), (9 * page - 3, 6)])).unwrap();
    assert_eq!([&gathered[..5], &gathered[5..8], &gathered[8..]], [&[8; 5][..], &[8; 3], &[9; 3]]);
    let rows = run(file.read_rows_async(make(2 * PAGE), &[11u32, 10], PAGE, 0)).unwrap();
    assert_eq!((rows[0], rows[PAGE]), (11, 10));
    let mut records = make(6);
    records.copy_from_slice(&[1, 1, 1, 2, 2, 2]);
    let records = run(file.write_many_async(records, &[20 * page, 21 * page + 9], 3)).unwrap();
    let records = run(file.write_ranges_async(records, &[(22 * page, 2), (23 * page, 4)])).unwrap();
    assert_eq!(&records[..], [1, 1, 1, 2, 2, 2]);
    let read = run(file.read_ranges_async(records, &[(21 * page + 9, 3), (23 * page, 3)])).unwrap();
    assert_eq!(&read[..], [2, 2, 2, 1, 2, 2]);
}

#[test]
fn every_kind_of_buffer_is_read_and_written() {
    let fresh = |rounds: &dyn Fn(&Array, &File)| {
        let (_root, array, file) = site();
        rounds(&array, &file);
        drop(file);
        array.close().unwrap();
    };
    fresh(&|_, file| round(file, |len| vec![0; len]));
    fresh(&|_, file| round(file, |len| vec![0; len].into_boxed_slice()));
    fresh(&|_, file| round(file, BytesMut::zeroed));
    fresh(&|array, file| round(file, |len| array.buffer(len).unwrap()));
    fresh(&|_, file| round(file, Own::new));
}

#[test]
fn bytes_that_are_shared_are_written() {
    let (_root, _array, file) = site();
    let (shared, bytes): (Arc<[u8]>, _) = (Arc::from([3; 10]), Bytes::from(vec![4; 10]));
    assert!(Arc::ptr_eq(&run(file.write_at_async(Arc::clone(&shared), 0)).unwrap(), &shared));
    assert_eq!(run(file.write_at_async(bytes.clone(), 10)).unwrap(), bytes);
    assert_eq!(run(file.write_at_async(&b"constant"[..], 20)).unwrap(), b"constant");
    assert_eq!(run(file.read_async(0, 28)).unwrap(), [&[3; 10][..], &[4; 10], b"constant"].concat());
}

/// A user's type: memory with a header before it.
struct Own(Vec<u8>);

impl Own {
    fn new(len: usize) -> Own {
        Own(vec![0xee; len + 3])
    }
}

impl std::ops::Deref for Own {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[3..]
    }
}

impl std::ops::DerefMut for Own {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[3..]
    }
}

// SAFETY: the bytes are on the heap, in a vector of constant length.
unsafe impl IoBytes for Own {
    fn bytes(&self) -> *const [u8] {
        &raw const self[..]
    }
}

// SAFETY: as above.
unsafe impl IoBuffer for Own {
    fn memory(&mut self) -> *mut [u8] {
        &raw mut self[..]
    }
}

#[test]
fn reads_are_short_at_the_end_only() {
    let (_root, _array, file) = site();
    let end = 64 * PAGE as u64;
    for (offset, len, wanted) in
        [(end - 10, 20, 10), (end - 5000, 6000, 5000), (end, 5, 0), (end + 7, 5000, 0), (0, 0, 0)]
    {
        let (buffer, read) = run(file.read_at_async(vec![0xee; len], offset)).unwrap();
        assert_eq!((buffer.len(), read), (len, wanted));
        assert!(buffer[wanted..].iter().all(|&byte| byte == 0xee), "bytes that were not read stay");
    }
}

fn failed<B>(outcome: Result<B, Failed<B>>, says: &str) -> B {
    let Err(failed) = outcome else { panic!("no error that says {says:?}") };
    assert!(failed.to_string().contains(says), "{failed}");
    failed.into_parts().1.unwrap()
}

#[test]
fn errors_give_the_buffer_back() {
    let (_root, array, file) = site();
    let buffer = vec![5; 10];
    let place = buffer.as_ptr();
    let buffer = failed(run(file.read_many_async(buffer, &[0, 0], 6)), "take 12 bytes");
    let buffer = failed(run(file.read_many_async(buffer, &[0, 64 * PAGE as u64], 5)), "row 1 at offset");
    let buffer = failed(run(file.read_rows_async(buffer, &[-1i64], 10, 0)), "row -1");
    let buffer = failed(run(file.write_at_async(buffer, u64::MAX - 3)), "offset");
    let buffer = failed(run(file.write_many_async(buffer, &[0], 11)), "take 11 bytes");
    let buffer = failed(run(file.write_ranges_async(buffer, &[(0, usize::MAX), (0, 11)])), "address space");
    array.close().unwrap();
    let buffer = failed(run(file.write_at_async(buffer, 0)), "closed");
    let buffer = failed(run(file.read_many_async(buffer, &[5], 10)), "closed");
    let Err(failed) = run(file.read_at_async(buffer, 0)) else { panic!("a read of a closed file") };
    assert!(matches!(failed.error(), Error::Closed));
    let buffer = failed.into_parts().1.unwrap();
    assert_eq!(buffer.as_ptr(), place);
    let as_error = || -> iomill::Result<Vec<u8>> { Ok(run(file.write_at_async(vec![1], 0))?) };
    assert!(matches!(as_error(), Err(Error::Closed)));
}

#[test]
fn what_is_dropped_goes_on_and_what_has_ended_has_no_buffer() {
    let (_root, _array, file) = site();
    let mut context = Context::from_waker(Waker::noop());
    for page in 0..20 {
        let mut write = file.write_at_async(vec![99; 5000], page * 2 * PAGE as u64 + 5);
        let mut read = file.read_many_async(vec![0; 5000], &[(40 + page) * PAGE as u64], 5000);
        let _ = (Pin::new(&mut write).poll(&mut context), Pin::new(&mut read).poll(&mut context));
    }
    for page in 0..20 {
        assert_eq!(run(file.read_async(page * 2 * PAGE as u64 + 5, 5000)).unwrap(), [99; 5000]);
    }
    let mut hit = file.read_at_async(vec![0; 10], 7);
    assert!(matches!(Pin::new(&mut hit).poll(&mut context), Poll::Ready(Ok((_, 10)))));
    let Poll::Ready(Err(failed)) = Pin::new(&mut hit).poll(&mut context) else { panic!("it has ended") };
    assert!(failed.into_parts().1.is_none());
}

/// A buffer with a drop that panics.
struct Panics(Vec<u8>);

// SAFETY: as for the vector.
unsafe impl iomill::IoBytes for Panics {
    fn bytes(&self) -> *const [u8] {
        self.0.bytes()
    }
}

// SAFETY: as for the vector.
unsafe impl iomill::IoBuffer for Panics {
    fn memory(&mut self) -> *mut [u8] {
        self.0.memory()
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a test's own");
    }
}

/// A dropped future leaves its buffer to the operation, which drops it on any thread, beside the ends of others.
#[test]
fn a_buffer_with_a_drop_that_panics_harms_no_other_operation() {
    let (_root, array, file) = site();
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..20 {
        let at = |page: u64| (page * 3 + round % 5) * PAGE as u64;
        let reads: Vec<_> = (0..8).map(|page| file.read_async(at(page), 5000)).collect();
        let mut bad = file.read_at_async(Panics(vec![0; 5000]), at(9));
        let mut gather = file.read_many_async(Panics(vec![0; 5000]), &[at(10)], 5000);
        let mut write = file.write_at_async(Panics(vec![1; 5000]), at(11));
        // The first poll may return the buffer, which panics here.
        let quietly = |code: &mut dyn FnMut()| drop(catch_unwind(AssertUnwindSafe(code)));
        quietly(&mut || drop(Pin::new(&mut bad).poll(&mut context)));
        quietly(&mut || drop(Pin::new(&mut gather).poll(&mut context)));
        quietly(&mut || drop(Pin::new(&mut write).poll(&mut context)));
        let mut futures = (Some(bad), Some(gather), Some(write));
        quietly(&mut || drop(futures.0.take()));
        quietly(&mut || drop(futures.1.take()));
        quietly(&mut || drop(futures.2.take()));
        for read in reads {
            assert_eq!(run(read).unwrap().len(), 5000);
        }
    }
    drop(file);
    array.close().unwrap();
}

/// A gather into new memory refuses ranges past the end, before it asks for memory for them.
#[test]
fn a_gather_is_all_or_an_error() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = Array::create([dir.path()]).unwrap();
    array.put("file", &[7; 10_000], &iomill::PutOptions::new()).unwrap();
    let file = array.open_file("file").unwrap();
    assert_eq!(run(file.gather_async(&[])).unwrap(), []);
    assert_eq!(run(file.gather_async(&[(9_000, 1_000), (0, 1)])).unwrap(), [7; 1_001]);
    let long = isize::MAX as usize;
    for wrong in
        [&[(9_000, 1_001)][..], &[(0, 1), (10_001, 0)], &[(0, usize::MAX), (0, 1)], &[(0, usize::MAX)], &[(0, long)]]
    {
        let refused = run(file.gather_async(wrong)).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{wrong:?}: {refused}");
    }
    drop(file.gather_async(&[(0, 10_000)]));
    let late = file.gather_async(&[(5_000, 10)]);
    drop((file, array));
    assert_eq!(run(late).unwrap(), [7; 10]);
}
