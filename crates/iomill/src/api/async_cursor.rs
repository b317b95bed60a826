//! [`AsyncCursor`]: a position in a file, for the asynchronous traits of tokio and of `futures`. Non-goals: the
//! blocking form (`cursor`), and records at many offsets (`future`).

use std::io::{self, SeekFrom};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::cursor::sought;
use super::file::File;
use super::transfer::Transfer;
use crate::drive::PAGE_BYTES;
use crate::pager::{Failed, Span};

/// The most bytes of one operation. A larger call moves fewer bytes than it asks for, as the traits allow.
const OPERATION_BYTES_MAX: usize = 256 * 1024;

/// Reads and writes a file sequentially, by the features `tokio` (`AsyncRead`, `AsyncWrite`, `AsyncSeek` of tokio) and
/// `futures-io` (those of `futures`).
///
/// - A read copies cached bytes at once. Otherwise it begins an operation with a buffer of its own, of at most 256 KiB.
///   If the future of the read is dropped, the next read returns those bytes.
/// - A write call returns when the write has begun, and counts its bytes as written. The next call of the cursor waits
///   for the end of the write and reports its error, so flush before you drop the cursor. Bytes are durable after
///   [`AsyncCursor::sync_async`].
/// - For records at many offsets [`File::read_many_async`] is faster: all of them are in flight at once.
#[derive(Debug)]
pub struct AsyncCursor {
    file: File,
    /// The offset of the next read or write.
    position: u64,
    doing: Doing,
    buffer: Vec<u8>,
    /// The part of `buffer` that no call has returned yet. Its first byte is the one at `position`.
    unread: Range<usize>,
    /// The position after a seek of tokio, until `poll_complete`.
    #[cfg(feature = "tokio")]
    seek: Option<SeekFrom>,
}

/// The operation that has the buffer.
#[derive(Debug)]
enum Doing {
    Nothing,
    /// A read that begins at the position.
    Reading(Transfer<Vec<u8>, (Vec<u8>, usize)>),
    /// A write that ends at the position.
    Writing(Transfer<Vec<u8>>),
}

impl File {
    /// A cursor at the start of the file, for the asynchronous traits of the features `tokio` and `futures-io`.
    pub fn async_cursor(&self) -> AsyncCursor {
        let file = self.clone();
        AsyncCursor {
            file,
            position: 0,
            doing: Doing::Nothing,
            buffer: Vec::new(),
            unread: 0..0,
            #[cfg(feature = "tokio")]
            seek: None,
        }
    }

    /// Reads cached bytes at an offset, up to the first page that is not cached. Returns the number of bytes.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and nothing else uses them.
    unsafe fn read_there(&self, to: *mut u8, len: usize, offset: u64) -> usize {
        if !self.state.exec().is_open() {
            return 0;
        }
        let len = (len as u64).min(self.len().saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = at as usize % PAGE_BYTES;
            let part = (PAGE_BYTES - within).min(len - done);
            // SAFETY: `done` is less than `len`.
            let buf = unsafe { to.add(done) };
            let span = Span { page: at / PAGE_BYTES as u64, within: within as u16, len: part as u16, buf };
            // SAFETY: the caller's promise; the part is within the memory.
            if unsafe { self.read_page(buf, part, at).is_none() && !self.state.read_in_set(span) } {
                break;
            }
            done += part;
        }
        if done > 0 {
            self.passed(offset, done);
        }
        done
    }
}

impl AsyncCursor {
    /// Makes the file durable, with the writes of this cursor: [`File::sync_async`] after a flush.
    pub async fn sync_async(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_written(context)).await?;
        Ok(self.file.sync_async().await?)
    }

    /// Reads at the position. Returns the number of bytes: 0 only at the end of the file, or if `len` is 0.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and nothing else uses them.
    unsafe fn poll_read_to(&mut self, context: &mut Context<'_>, to: *mut u8, len: usize) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.unread.is_empty() {
            if matches!(self.doing, Doing::Nothing) {
                let file = self.file.here()?;
                if self.position >= file.len() {
                    return Poll::Ready(Ok(0));
                }
                // SAFETY: the caller's promise.
                let read = unsafe { file.read_there(to, len, self.position) };
                if read > 0 {
                    self.position += read as u64;
                    return Poll::Ready(Ok(read));
                }
                let mut buffer = std::mem::take(&mut self.buffer);
                buffer.resize(len.min(OPERATION_BYTES_MAX), 0);
                self.doing = Doing::Reading(file.read_at_async(buffer, self.position));
            }
            ready!(self.poll_reading(context))?;
        }
        let given = len.min(self.unread.len());
        let from = &self.buffer[self.unread.start..self.unread.start + given];
        // SAFETY: the caller's promise; the buffer is other memory.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), given) };
        self.unread.start += given;
        self.position += given as u64;
        Poll::Ready(Ok(given))
    }

    /// Waits for a read that has begun.
    fn poll_reading(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Doing::Reading(reading) = &mut self.doing else { return Poll::Ready(Ok(())) };
        let ended = ready!(Pin::new(reading).poll(context));
        self.doing = Doing::Nothing;
        let (buffer, read) = ended.map_err(|failed| self.keep_buffer(failed))?;
        self.buffer = buffer;
        self.unread = 0..read;
        Poll::Ready(Ok(()))
    }

    /// Begins to write at the position. Returns the number of bytes.
    fn poll_write_from(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        self.forget_read();
        let bytes = &bytes[..bytes.len().min(OPERATION_BYTES_MAX)];
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.doing = Doing::Writing(self.file.write_at_async(buffer, self.position));
        // Most writes end at once, in the cache.
        if let Poll::Ready(Err(error)) = self.poll_written(context) {
            return Poll::Ready(Err(error));
        }
        self.position += bytes.len() as u64;
        Poll::Ready(Ok(bytes.len()))
    }

    /// Waits for the write that has begun, and reports its error.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Doing::Writing(writing) = &mut self.doing else { return Poll::Ready(Ok(())) };
        let ended = ready!(Pin::new(writing).poll(context));
        self.doing = Doing::Nothing;
        self.buffer = ended.map_err(|failed| self.keep_buffer(failed))?;
        Poll::Ready(Ok(()))
    }

    fn poll_seek_to(&mut self, context: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        // The end of the file is known after the write.
        ready!(self.poll_written(context))?;
        let position = sought(&self.file, self.position, to)?;
        if position != self.position {
            self.forget_read();
            self.position = position;
        }
        Poll::Ready(Ok(position))
    }

    /// Discards the bytes that were read. A read in flight ends without its future.
    fn forget_read(&mut self) {
        self.unread = 0..0;
        if let Doing::Reading(_) = self.doing {
            self.doing = Doing::Nothing;
        }
    }

    fn keep_buffer(&mut self, failed: Failed<Vec<u8>>) -> io::Error {
        let (error, buffer) = failed.into_parts();
        self.buffer = buffer.unwrap_or_default();
        error.into()
    }
}

#[cfg(feature = "tokio")]
mod of_tokio {
    use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

    use super::*;

    impl AsyncRead for AsyncCursor {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            // SAFETY: bytes are only written there, so none becomes uninitialised.
            let room = unsafe { buf.unfilled_mut() };
            // SAFETY: the room is borrowed for the call.
            let read = ready!(unsafe { self.poll_read_to(context, room.as_mut_ptr().cast(), room.len()) })?;
            // SAFETY: that many bytes were written there.
            unsafe { buf.assume_init(read) };
            buf.advance(read);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for AsyncCursor {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_from(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(context)
        }
    }

    impl AsyncSeek for AsyncCursor {
        fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
            self.seek = Some(to);
            Ok(())
        }

        fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
            let Some(to) = self.seek else { return Poll::Ready(Ok(self.position)) };
            let sought = ready!(self.poll_seek_to(context, to));
            self.seek = None;
            Poll::Ready(sought)
        }
    }
}

#[cfg(feature = "futures-io")]
mod of_futures {
    use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};

    use super::*;

    impl AsyncRead for AsyncCursor {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            // SAFETY: the buffer is borrowed for the call.
            unsafe { self.poll_read_to(context, buf.as_mut_ptr(), buf.len()) }
        }
    }

    impl AsyncWrite for AsyncCursor {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_from(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(context)
        }

        fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_written(context)
        }
    }

    impl AsyncSeek for AsyncCursor {
        fn poll_seek(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
            self.poll_seek_to(context, to)
        }
    }
}
