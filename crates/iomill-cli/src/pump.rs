//! A copy by two threads, so that both sides work at once. The calling thread moves bytes to or from the array. The
//! other thread moves them from the source or to the destination. A few large buffers circulate between them.
//!
//! Rules:
//! 1. There are `BUFFERS` buffers, and each channel has room for all of them: sending never waits.
//! 2. While the calling thread waits, it checks for signals regularly. The other thread may block in the kernel for
//!    ever, on a pipe without a writer. After a failure it is not joined, and ends with the process.
//! 3. The other thread ends by returning its result. A closed channel tells the calling thread to join it.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iomill::{Array, Buffer, Error, File};

use crate::destination::Destination;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::source::Source;

/// Size of a buffer in bytes. It spans many blocks of each drive.
const BUFFER_BYTES: usize = 4 << 20;

/// How many buffers circulate: one at each side, and one that waits for each side.
const BUFFERS: usize = 4;

/// Longest wait between two checks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// A buffer, how many bytes at its start are filled, and where they belong.
struct Chunk {
    buffer: Buffer,
    len: usize,
    offset: u64,
}

/// Copies a source into a file, from its start. Returns the number of bytes.
pub fn fill(array: &Array, file: &File, source: Source, progress: &mut Progress, interrupt: &Interrupt) -> Result<u64> {
    let (give_free, take_free) = sync_channel(BUFFERS);
    let (give_full, take_full) = sync_channel(BUFFERS);
    hand_out(array, &give_free)?;
    let reader = start("source", move || read_source(source, &take_free, &give_full))?;
    let mut end = 0;
    while let Some(Chunk { buffer, len, offset }) = wait(&take_full, interrupt)? {
        file.write_at(&buffer[..len], offset)?;
        progress.advance(offset + len as u64 - end);
        end = offset + len as u64;
        give(&give_free, buffer);
    }
    let len = join(reader)?;
    if len != file.len() {
        // The source ends with a hole, or has become shorter.
        file.set_len(len)?;
    }
    progress.advance(len.saturating_sub(end));
    Ok(len)
}

/// Copies a file to its destination. Returns the number of bytes.
pub fn drain(
    array: &Array,
    file: &File,
    destination: &Destination,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<u64> {
    let len = file.len();
    // Where the holes of the file stay holes.
    let sparse_from = match destination.start() {
        Some(start) if len > 0 && file.next_data(0, len)? != Some(0..len) => Some(start),
        _ => None,
    };
    if sparse_from.is_none() {
        destination.reserve(len)?;
    }
    let (sink, place) = destination.sink()?;
    let (give_free, take_free) = sync_channel(BUFFERS);
    let (give_full, take_full) = sync_channel(BUFFERS);
    hand_out(array, &give_free)?;
    let writer = start("destination", move || write_sink(sink, place, sparse_from, &take_full, &give_free))?;
    let mut offset = 0;
    while let Some(mut buffer) = wait(&take_free, interrupt)? {
        let most = buffer.len();
        let data = match sparse_from {
            Some(_) => file.next_data(offset, most as u64)?,
            None => Some(offset..offset + most as u64),
        };
        let Some(data) = data else { break };
        let read = file.read_at(&mut buffer[..(data.end - data.start) as usize], data.start)?;
        if read == 0 {
            break;
        }
        give(&give_full, Chunk { buffer, len: read, offset: data.start });
        progress.advance(data.start + read as u64 - offset);
        offset = data.start + read as u64;
    }
    drop(give_full);
    while wait(&take_free, interrupt)?.is_some() {}
    join(writer)?;
    if let Some(start) = sparse_from {
        destination.end_at(start + len)?;
        progress.advance(len - offset);
        offset = len;
    }
    Ok(offset)
}

fn hand_out(array: &Array, free: &SyncSender<Buffer>) -> Result<()> {
    for _ in 0..BUFFERS {
        give(free, array.buffer(BUFFER_BYTES)?);
    }
    Ok(())
}

/// Returns where the source ends.
fn read_source(mut source: Source, free: &Receiver<Buffer>, full: &SyncSender<Chunk>) -> Result<u64> {
    while let Ok(mut buffer) = free.recv() {
        match source.read_next(&mut buffer)? {
            None => break,
            Some((offset, len)) => give(full, Chunk { buffer, len, offset }),
        }
    }
    source.end()
}

/// Writes each chunk at its offset behind `sparse_from`, or one after the other.
fn write_sink(
    mut sink: fs::File,
    place: String,
    sparse_from: Option<u64>,
    full: &Receiver<Chunk>,
    free: &SyncSender<Buffer>,
) -> Result<()> {
    while let Ok(Chunk { buffer, len, offset }) = full.recv() {
        let sought = sparse_from.map_or(Ok(0), |start| sink.seek(SeekFrom::Start(start + offset)));
        if let Err(source) = sought.and_then(|_| sink.write_all(&buffer[..len])) {
            return Err(Failure::write(place, source));
        }
        // Makes the kernel start writing to the disk now, beside our reads, instead of all at once during the sync.
        // A pipe refuses this and does not need it.
        let _ = rustix::fs::fadvise(&sink, offset, NonZeroU64::new(len as u64), rustix::fs::Advice::DontNeed);
        give(free, buffer);
    }
    Ok(())
}

/// Sends. If the channel is closed, the other thread has ended, and its result says why (rule 3).
fn give<T>(channel: &SyncSender<T>, value: T) {
    let _ = channel.send(value);
}

/// Receives the next value, or `None` when the other thread has ended.
fn wait<T>(channel: &Receiver<T>, interrupt: &Interrupt) -> Result<Option<T>> {
    loop {
        interrupt.check()?;
        match channel.recv_timeout(LOOK) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Result<T>>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| machine(name, &error.to_string()))
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    let name = thread.thread().name().unwrap_or("copying").to_owned();
    thread.join().unwrap_or_else(|_| Err(machine(&name, "it panicked")))
}

fn machine(name: &str, why: &str) -> Failure {
    Error::Tool { what: format!("the thread for the {name}"), why: why.to_owned() }.into()
}
