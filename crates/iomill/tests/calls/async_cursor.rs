//! Files by the asynchronous traits of tokio. The code that the cursor shares with the traits of `futures` is tested
//! here.

use std::future::Future;
use std::io::{ErrorKind, SeekFrom};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use iomill::Advice;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::PAGE;
use super::abandoned::site;
use crate::executor::block_on;

fn pages(range: std::ops::Range<u8>) -> Vec<u8> {
    range.flat_map(|n| [n; PAGE]).collect()
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_file_is_read_to_its_end_cold_and_warm() {
    let (_root, _array, file) = site();
    for _ in ["cold", "warm"] {
        let mut bytes = Vec::new();
        assert_eq!(block_on(file.async_cursor().read_to_end(&mut bytes)).unwrap(), 64 * PAGE);
        assert!(bytes == pages(0..64));
    }
}

/// A page in the middle is missing: the bytes before it come at once, and the rest after it.
#[test]
fn a_read_gives_what_is_there_and_then_the_rest() {
    let (_root, _array, file) = site();
    let mut there = vec![0; 3 * PAGE];
    file.read_at(&mut there, 0).unwrap();
    let mut cursor = file.async_cursor();
    block_on(async {
        assert_eq!(cursor.seek(SeekFrom::Start(PAGE as u64 + 100)).await.unwrap(), PAGE as u64 + 100);
        let mut bytes = vec![0; 8 * PAGE];
        assert_eq!(cursor.read(&mut bytes).await.unwrap(), 2 * PAGE - 100);
        cursor.read_exact(&mut bytes[..5 * PAGE]).await.unwrap();
        assert!(bytes[..5 * PAGE] == pages(3..8));
        // Past the end there is nothing.
        cursor.seek(SeekFrom::End(-3)).await.unwrap();
        assert_eq!(cursor.read(&mut bytes).await.unwrap(), 3);
        assert_eq!(cursor.read(&mut bytes).await.unwrap(), 0);
        cursor.seek(SeekFrom::End(10)).await.unwrap();
        assert_eq!(cursor.read(&mut bytes).await.unwrap(), 0);
        assert_eq!(cursor.read(&mut []).await.unwrap(), 0);
    });
}

/// A dropped future of a read loses no byte: the next read returns it.
#[test]
fn a_read_that_is_dropped_loses_no_byte() {
    let (_root, _array, file) = site();
    let mut cursor = file.async_cursor();
    let mut bytes = vec![0; 2 * PAGE];
    // A quick drive may answer at once.
    let given = match poll_once(cursor.read(&mut bytes)) {
        Poll::Ready(read) => read.unwrap(),
        Poll::Pending => 0,
    };
    block_on(async {
        let mut small = [0; 100];
        for at in (given..2 * PAGE).step_by(100) {
            let len = small.len().min(2 * PAGE - at);
            cursor.read_exact(&mut small[..len]).await.unwrap();
            assert!(small[..len] == pages(0..2)[at..at + len]);
        }
        // A seek leaves a read alone that has begun.
        file.advise(.., Advice::DontNeed).unwrap();
        let _ = poll_once(cursor.read(&mut bytes));
        cursor.seek(SeekFrom::Start(9 * PAGE as u64)).await.unwrap();
        cursor.read_exact(&mut bytes).await.unwrap();
        assert!(bytes == pages(9..11));
    });
}

#[test]
fn writes_extend_the_file_and_come_before_what_follows() {
    let (_root, array, file) = site();
    block_on(async {
        let mut cursor = file.async_cursor();
        cursor.seek(SeekFrom::End(0)).await.unwrap();
        let bytes = pages(100..200);
        for part in bytes.chunks(1000) {
            cursor.write_all(part).await.unwrap();
        }
        assert_eq!(cursor.seek(SeekFrom::End(0)).await.unwrap(), 164 * PAGE as u64);
        // Larger than one operation.
        let large = vec![7; 1 << 20];
        assert!(cursor.write(&large).await.unwrap() < large.len());
        cursor.write_all(&large).await.unwrap();
        assert_eq!(cursor.write(&[]).await.unwrap(), 0);
        cursor.sync_async().await.unwrap();
        cursor.seek(SeekFrom::Start(64 * PAGE as u64)).await.unwrap();
        let mut got = vec![0; bytes.len()];
        cursor.read_exact(&mut got).await.unwrap();
        assert!(got == bytes);
        cursor.shutdown().await.unwrap();
    });
    drop(file);
    array.close().unwrap();
}

#[test]
fn errors_come_once_and_move_nothing() {
    let (_root, array, file) = site();
    block_on(async {
        let mut cursor = file.async_cursor();
        cursor.seek(SeekFrom::Start(10)).await.unwrap();
        let error = cursor.seek(SeekFrom::Current(-11)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(cursor.stream_position().await.unwrap(), 10);
        cursor.seek(SeekFrom::Start(u64::MAX - 5)).await.unwrap();
        let error = cursor.write_all(&[1; 20]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        cursor.flush().await.unwrap();
        assert_eq!(cursor.read(&mut [0; 9]).await.unwrap(), 0);
        // Its bytes are in the cache, but the array is closed.
        let mut byte = [0];
        cursor.seek(SeekFrom::Start(0)).await.unwrap();
        cursor.read_exact(&mut byte).await.unwrap();
        array.close().unwrap();
        assert!(cursor.read(&mut byte).await.is_err());
        assert!(cursor.write_all(&byte).await.is_err());
    });
}
