//! [`Flusher`]: durable writes to several files at the same time.
//!
//! Goals: the writes and flushes of several drives overlap, without a thread of the library where io_uring may be used. Non-goals: thousands of
//! writes. The log has up to three copies, and an opening writes a note on each drive.
//!
//! One operation writes and flushes (`RWF_DSYNC`). io_uring does those of all files but the first, which the caller does meanwhile. On one
//! disk that takes about 85 us for three files with direct I/O. By the page cache and `fdatasync` it takes 115 us. Where io_uring or such
//! writes are forbidden, up to four files are written and flushed in turn, and more of them by threads that live as long as that.

use std::io;
use std::thread;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::engine::platform::DurableWrite;
use crate::error::passes;
use crate::sys::descriptor::made_above;
use crate::sys::sync::{Mutex, give_way, lock};

/// How many files the ring writes at a time, or threads. Others are written afterwards.
const CAPACITY: u32 = 32;
/// From so many files on, threads write them where the ring does not. A thread costs about as much as a tenth of a flush.
const FOR_THREADS: usize = 4;
/// How often the kernel is asked again where it lacks memory.
const SUBMIT_TRIES: u32 = 1000;

/// See the module.
#[derive(Default)]
pub struct Flusher {
    ring: Mutex<Ring>,
}

#[derive(Default)]
enum Ring {
    /// It is made when it is first needed.
    #[default]
    Unasked,
    Ready(Box<IoUring>),
    /// io_uring is forbidden, or has failed.
    Refused,
}

impl Flusher {
    /// See [`crate::engine::platform::Platform::write_durably`].
    pub fn write(&self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        let Some((own, others)) = writes.split_first() else { return Vec::new() };
        if others.is_empty() {
            return vec![write_here(own)];
        }
        let mut ring = lock(&self.ring);
        let (by_ring, in_turn) = others.split_at(ring.hand(others));
        let mut results = vec![write_here(own)];
        let late = in_turn.chunks(CAPACITY as usize).flat_map(write_all_here).collect::<Vec<_>>();
        results.extend(ring.collect(by_ring));
        results.extend(late);
        results
    }
}

/// Writes durably in this thread.
fn write_here(write: &DurableWrite<'_>) -> io::Result<()> {
    let bytes = libc::iovec { iov_base: write.bytes.as_ptr().cast_mut().cast(), iov_len: write.bytes.len() };
    // SAFETY: the kernel only reads the memory, which is borrowed for the call. The caller keeps the file open.
    let written = unsafe { libc::pwritev2(write.handle.0, &bytes, 1, write.offset as i64, libc::RWF_DSYNC) };
    end_of(write, if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) })
}

/// Writes durably without the ring, at the same time if they are many. A file for which no thread can be started is written in this thread.
fn write_all_here(writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
    if writes.len() < FOR_THREADS {
        return writes.iter().map(write_here).collect();
    }
    thread::scope(|scope| {
        let start = |write| thread::Builder::new().spawn_scoped(scope, move || write_here(write));
        let started: Vec<_> = writes.iter().map(start).collect();
        let ends = writes.iter().zip(started).map(|(write, started)| match started {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that wrote it has panicked")))
            }
            Err(_) => write_here(write),
        });
        ends.collect()
    })
}

/// What the end of a durable write means. One that was refused as a kind of operation has written nothing, and is done in two steps.
fn end_of(write: &DurableWrite<'_>, written: io::Result<usize>) -> io::Result<()> {
    match written {
        Ok(bytes) if bytes == write.bytes.len() => Ok(()),
        Ok(bytes) => Err(io::Error::other(format!("only {bytes} bytes of {} were written", write.bytes.len()))),
        Err(error) if is_refused(&error) => {
            write.fs.write_at(write.handle, write.bytes, write.offset)?;
            write.fs.sync_data(write.handle)
        }
        // Some file systems can be interrupted, before they have done anything.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => write_here(write),
        Err(error) => Err(error),
    }
}

/// The kernel does not know such an operation, or forbids it.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EOPNOTSUPP))
}

/// A ring that the kernel serves. A filter of system calls may let it be made, and not be used.
fn working_ring() -> io::Result<IoUring> {
    let mut ring = made_above(|| IoUring::new(CAPACITY))?;
    // SAFETY: the entry points to nothing.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    while ring.completion().next().is_none() {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(ring)
}

impl Ring {
    /// Starts the first writes, and returns how many.
    fn hand(&mut self, writes: &[DurableWrite<'_>]) -> usize {
        if let Ring::Unasked = self {
            *self = match working_ring() {
                Ok(ring) => Ring::Ready(Box::new(ring)),
                // The next write asks again.
                Err(error) if error.raw_os_error().is_some_and(passes) => Ring::Unasked,
                Err(_) => Ring::Refused,
            };
        }
        let Ring::Ready(ring) = self else { return 0 };
        let mut handed = 0;
        let mut queue = ring.submission();
        for write in writes {
            let operation = opcode::Write::new(Fd(write.handle.0), write.bytes.as_ptr(), write.bytes.len() as u32);
            let operation = operation.offset(write.offset).rw_flags(libc::RWF_DSYNC).build();
            // SAFETY: the kernel only reads the memory. `collect` waits for the end of the operation, and the caller keeps memory and file
            // until then. If the ring fails meanwhile, the kernel may read the memory later. Then wrong bytes may come to a file of which
            // the write has failed.
            if unsafe { queue.push(&operation.user_data(handed as u64)) }.is_err() {
                break;
            }
            handed += 1;
        }
        drop(queue);
        // What the kernel does not take now, it takes in `collect`, or `collect` reports it.
        let _ = ring.submit();
        handed
    }

    /// Waits for the writes that were handed over. A write of which no end is known has failed, and is not tried again.
    fn collect(&mut self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        let mut ends: Vec<Option<io::Result<usize>>> = writes.iter().map(|_| None).collect();
        let Ring::Ready(ring) = self else { return Vec::new() };
        let mut missing = writes.len();
        let mut failure = None;
        let mut tries = SUBMIT_TRIES;
        while missing > 0 && failure.is_none() {
            match ring.submit_and_wait(missing) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel lacks memory for a write at this moment.
                Err(error) if tries > 0 && error.raw_os_error().is_some_and(passes) => {
                    tries -= 1;
                    give_way();
                }
                waited => failure = waited.err(),
            }
            for completion in ring.completion() {
                let result = completion.result();
                let end = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                if let Some(place) = ends.get_mut(completion.user_data() as usize) {
                    missing -= usize::from(place.replace(end).is_none());
                }
            }
        }
        if failure.is_some() {
            // Its queues may hold writes of this call.
            *self = Ring::Refused;
        }
        let unknown = || {
            let why = failure.as_ref().map_or_else(String::new, ToString::to_string);
            Err(io::Error::other(format!("io_uring did not say how the write ended: {why}")))
        };
        let known = |(write, end)| match end {
            Some(end) => end_of(write, end),
            None => unknown(),
        };
        writes.iter().zip(ends).map(known).collect()
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flusher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::sys::fs::Handle;
    use crate::sys::real_fs::RealFs;

    fn flushers() -> [Flusher; 2] {
        [Flusher::default(), Flusher { ring: Mutex::new(Ring::Refused) }]
    }

    fn write_to<'a>(fs: &'a RealFs, file: &File, bytes: &'a [u8]) -> DurableWrite<'a> {
        DurableWrite { fs, handle: Handle(file.as_raw_fd()), bytes, offset: 5 }
    }

    #[test]
    fn all_files_are_written_and_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        // More than the ring takes, too.
        for count in [0, 1, 2, 3, CAPACITY as usize + 3] {
            for flusher in flushers() {
                let path = |at: usize| dir.path().join(at.to_string());
                let files: Vec<File> = (0..count).map(|at| File::create(path(at)).unwrap()).collect();
                for round in 1..20u8 {
                    let bytes: Vec<_> = (0..count).map(|at| vec![round.wrapping_mul(at as u8); 9000]).collect();
                    let writes: Vec<_> =
                        files.iter().zip(&bytes).map(|(file, bytes)| write_to(&fs, file, bytes)).collect();
                    let results = flusher.write(&writes);
                    assert_eq!(results.len(), count);
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                }
                for at in 0..count {
                    assert_eq!(std::fs::read(path(at)).unwrap()[5..], vec![19u8.wrapping_mul(at as u8); 9000]);
                }
            }
        }
    }

    /// Each file has its own result: one that is full, and one that takes no write, in any place.
    #[test]
    fn failures_are_those_of_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        let good = File::create(dir.path().join("good")).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let unwritten = File::open("/dev/null").unwrap();
        let kinds = [(&good, None), (&full, Some(libc::ENOSPC)), (&unwritten, Some(libc::EBADF))];
        for flusher in flushers() {
            for order in [[0, 1, 2], [1, 0, 2], [1, 1, 0], [2, 2, 0], [0, 2, 1], [2, 1, 1], [2, 2, 2]] {
                let writes = order.map(|at: usize| write_to(&fs, kinds[at].0, b"bytes"));
                let found: Vec<_> = flusher.write(&writes).into_iter().map(|result| errno_of(&result)).collect();
                assert_eq!(found, order.map(|at| kinds[at].1), "{order:?}");
            }
        }
    }

    fn errno_of(result: &io::Result<()>) -> Option<i32> {
        result.as_ref().err().map(|error| error.raw_os_error().unwrap_or(-1))
    }

    /// A ring that is lost in the middle fails what it was asked for. Later files are flushed in turn.
    #[test]
    fn a_ring_that_fails_costs_its_flushes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        let files: Vec<File> = (0..3).map(|at| File::create(dir.path().join(at.to_string())).unwrap()).collect();
        let writes: Vec<_> = files.iter().map(|file| write_to(&fs, file, b"bytes")).collect();
        let Ok(ring) = IoUring::new(CAPACITY) else { return };
        // The ring's descriptor now is that of another file.
        let other = File::open("/dev/null").unwrap();
        // SAFETY: both descriptors are open. The ring stays the owner of its number.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), ring.as_raw_fd()) } >= 0);
        let flusher = Flusher { ring: Mutex::new(Ring::Ready(Box::new(ring))) };
        let failed: Vec<bool> = flusher.write(&writes).iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, true]);
        assert!(flusher.write(&writes).iter().all(Result::is_ok));
    }
}
