//! A copy by two threads: the calling one moves bytes to or from the array, another one from the source or to the
//! destination, so that both sides work at once. Between them a few large buffers go round.
//!
//! Rules:
//! 1. There are `BUFFERS` buffers, and each channel has room for all of them: sending never waits.
//! 2. The calling thread, when it waits, looks for signals now and then. The other one may block in the kernel for ever
//!    (a pipe that nobody feeds); after a failure it is left behind, and ends with the process.
//! 3. The other thread ends by returning its result; a closed channel tells the calling one to fetch it.

use std::fs;
use std::io::Write;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iomill::{Array, Buffer, Error, File};

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::source::Source;

/// Size of a buffer in bytes: many blocks for each drive at once.
const BUFFER_BYTES: usize = 4 << 20;

/// How many go round: one at each side, and one waiting for each.
const BUFFERS: usize = 4;

/// How long to wait before a look for signals.
const LOOK: Duration = Duration::from_millis(100);

/// The bytes at the start of a buffer.
struct Chunk {
    buffer: Buffer,
    len: usize,
}

/// Copies a source into a file, from its start; how many bytes that were.
pub fn fill(array: &Array, file: &File, source: Source, progress: &mut Progress, interrupt: &Interrupt) -> Result<u64> {
    let (give_free, take_free) = sync_channel(BUFFERS);
    let (give_full, take_full) = sync_channel(BUFFERS);
    hand_out(array, &give_free)?;
    let reader = start("source", move || read_source(source, &take_free, &give_full))?;
    let mut offset = 0;
    while let Some(Chunk { buffer, len }) = wait(&take_full, interrupt)? {
        file.write_at(&buffer[..len], offset)?;
        offset += len as u64;
        progress.advance(len as u64);
        give(&give_free, buffer);
    }
    join(reader)?;
    Ok(offset)
}

/// Copies a file to a sink that is called `place` in messages; how many bytes that were.
pub fn drain(
    array: &Array,
    file: &File,
    (sink, place): (fs::File, String),
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<u64> {
    let (give_free, take_free) = sync_channel(BUFFERS);
    let (give_full, take_full) = sync_channel(BUFFERS);
    hand_out(array, &give_free)?;
    let writer = start("destination", move || write_sink(sink, place, &take_full, &give_free))?;
    let mut offset = 0;
    while let Some(mut buffer) = wait(&take_free, interrupt)? {
        let len = file.read_at(&mut buffer, offset)?;
        if len == 0 {
            break;
        }
        offset += len as u64;
        give(&give_full, Chunk { buffer, len });
        progress.advance(len as u64);
    }
    drop(give_full);
    while wait(&take_free, interrupt)?.is_some() {}
    join(writer)?;
    Ok(offset)
}

fn hand_out(array: &Array, free: &SyncSender<Buffer>) -> Result<()> {
    for _ in 0..BUFFERS {
        give(free, array.buffer(BUFFER_BYTES)?);
    }
    Ok(())
}

fn read_source(mut source: Source, free: &Receiver<Buffer>, full: &SyncSender<Chunk>) -> Result<()> {
    while let Ok(mut buffer) = free.recv() {
        match source.read_full(&mut buffer)? {
            0 => break,
            len => give(full, Chunk { buffer, len }),
        }
    }
    Ok(())
}

fn write_sink(mut sink: fs::File, place: String, full: &Receiver<Chunk>, free: &SyncSender<Buffer>) -> Result<()> {
    let mut offset = 0;
    while let Ok(Chunk { buffer, len }) = full.recv() {
        if let Err(source) = sink.write_all(&buffer[..len]) {
            if source.kind() == std::io::ErrorKind::BrokenPipe {
                return Err(Failure::BrokenPipe);
            }
            return Err(Failure::Local { action: "write to", place, source });
        }
        // Has the kernel begin to write to the disk now, beside our reading, and not all at once when the file is synced.
        // A pipe has no such thing, and does not need it.
        let _ = rustix::fs::fadvise(&sink, offset, NonZeroU64::new(len as u64), rustix::fs::Advice::DontNeed);
        offset += len as u64;
        give(free, buffer);
    }
    Ok(())
}

/// A channel whose other end is closed belongs to a thread that has ended; its result tells why (rule 3).
fn give<T>(channel: &SyncSender<T>, value: T) {
    let _ = channel.send(value);
}

/// The next of a channel; `None` when the other thread has ended.
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

fn start(name: &str, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<JoinHandle<Result<()>>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| machine(name, &error.to_string()))
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    let name = thread.thread().name().unwrap_or("copying").to_owned();
    thread.join().unwrap_or_else(|_| Err(machine(&name, "it panicked")))
}

fn machine(name: &str, why: &str) -> Failure {
    Error::Machine { what: format!("the thread for the {name}"), why: why.to_owned() }.into()
}
