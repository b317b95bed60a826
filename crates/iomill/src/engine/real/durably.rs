//! [`DurableWriter`]: durable writes to several files at the same time.
//!
//! Goals: the writes and fsyncs of several drives overlap, and need no thread if io_uring may be used. Non-goals:
//! thousands of writes. The log has up to three copies, and an opening writes a note on each drive.
//!
//! One operation both writes and syncs (`RWF_DSYNC`). The caller itself does the first file's, and io_uring those of
//! the others at the same time. For three files on one disk this takes about 85 us with direct I/O; the page cache and
//! `fdatasync` take 115 us. Without io_uring, the other files are written one after the other, or from four on by
//! short-lived threads.
//!
//! After a kill a write of the ring may still be in flight, and reach its drive when the descriptors of the process are
//! closed. Until then the ring holds the directory of that drive, and so its lock. So no other process opens the array
//! before the write has ended. The writes of threads end before the process does.

use std::io;
use std::thread;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::engine::platform::DurableWrite;
use crate::error::passes;
use crate::sys::descriptor::made_above;
use crate::sys::sync::{Mutex, give_way, lock};

/// The most files that the ring, or threads, write at a time. Others are written afterwards.
const CAPACITY: u32 = 32;
/// The fewest files that get threads where there is no ring. A thread costs about a tenth of an fsync.
const FOR_THREADS: usize = 4;
/// The number of tries of a system call that fails because the kernel lacks memory.
const SUBMIT_TRIES: u32 = 1000;

/// See the module.
#[derive(Default)]
pub struct DurableWriter {
    ring: Mutex<Ring>,
}

#[derive(Default)]
enum Ring {
    /// Not made yet: the first write that needs it makes it.
    #[default]
    Unasked,
    Ready(Box<ReadyRing>),
    /// io_uring is forbidden, or has failed.
    Refused,
}

struct ReadyRing {
    ring: IoUring,
    /// Whether it has a table of `CAPACITY` files, for the directories of the writes in flight.
    holds: bool,
}

impl DurableWriter {
    /// See [`crate::engine::platform::Platform::write_and_sync`].
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

/// Writes durably without the ring: few files one after the other, many by a thread each. If a
/// thread cannot start, the calling thread writes its file.
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

/// The result of a durable write. `written` is the kernel's answer. If the kernel refuses this kind of operation, it
/// has written nothing, and a write and an fsync follow instead.
fn end_of(write: &DurableWrite<'_>, written: io::Result<usize>) -> io::Result<()> {
    match written {
        Ok(bytes) if bytes == write.bytes.len() => Ok(()),
        Ok(bytes) => Err(io::Error::other(format!("only {bytes} bytes of {} were written", write.bytes.len()))),
        Err(error) if is_refused(&error) => {
            write.fs.write_at(write.handle, write.bytes, write.offset)?;
            write.fs.sync_data(write.handle)
        }
        // Interrupted before anything was done, as some file systems can be.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => write_here(write),
        Err(error) => {
            // The kernel does not say whether it was the write or the fsync that failed.
            write.fs.fsync_failures().note(error.raw_os_error());
            Err(error)
        }
    }
}

/// Whether the kernel does not know the operation, or forbids it.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EOPNOTSUPP))
}

/// Makes a ring, and tries it out: a filter of system calls may allow making a ring but not entering it.
fn working_ring() -> io::Result<ReadyRing> {
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
    // A list of empty entries, as kernels before 5.19 need it. A limit of open files may forbid the table.
    let holds = ring.submitter().register_files(&[-1; CAPACITY as usize]).is_ok();
    Ok(ReadyRing { ring, holds })
}

impl ReadyRing {
    /// Holds the directories of these writes.
    fn hold(&self, writes: &[DurableWrite<'_>]) {
        let directories: Vec<i32> =
            writes.iter().map(|write| write.fs.directory().map_or(-1, |directory| directory.0)).collect();
        if self.holds && directories.iter().any(|directory| *directory >= 0) {
            // The writes are as good without it.
            let _kept_if_there_is_room = self.ring.submitter().register_files_update(0, &directories);
        }
    }

    /// Lets the directories of this number of writes go. `false` if the ring may still hold some.
    fn let_go(&self, count: usize) -> bool {
        !self.holds || self.ring.submitter().register_files_update(0, &[-1; CAPACITY as usize][..count]).is_ok()
    }
}

impl Ring {
    /// Starts the first writes, up to the room in the ring. Returns their number.
    fn hand(&mut self, writes: &[DurableWrite<'_>]) -> usize {
        if let Ring::Unasked = self {
            *self = match working_ring() {
                Ok(ring) => Ring::Ready(Box::new(ring)),
                // The next write asks again.
                Err(error) if error.raw_os_error().is_some_and(passes) => Ring::Unasked,
                Err(_) => Ring::Refused,
            };
        }
        let Ring::Ready(ready) = self else { return 0 };
        let mut handed = 0;
        let mut queue = ready.ring.submission();
        for write in writes {
            let operation = opcode::Write::new(Fd(write.handle.0), write.bytes.as_ptr(), write.bytes.len() as u32);
            let operation = operation.offset(write.offset).rw_flags(libc::RWF_DSYNC).build();
            // SAFETY: the kernel only reads the memory. `collect` waits for the end of the operation, and the caller
            // keeps memory and file until then. If the ring fails meanwhile, the kernel may still read the memory
            // later, and put wrong bytes where a write was reported as failed.
            if unsafe { queue.push(&operation.user_data(handed as u64)) }.is_err() {
                break;
            }
            handed += 1;
        }
        drop(queue);
        ready.hold(&writes[..handed]);
        // Writes that the kernel does not take now, it takes in `collect`, or `collect` reports why not.
        let _ = ready.ring.submit();
        handed
    }

    /// Waits for the started writes. A write without a known end counts as failed, and is not tried again.
    fn collect(&mut self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        let mut ends: Vec<Option<io::Result<usize>>> = writes.iter().map(|_| None).collect();
        let Ring::Ready(ready) = self else { return Vec::new() };
        let ring = &mut ready.ring;
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
            // Never used again: its queues may hold writes of this call.
            *self = Ring::Refused;
        } else if !writes.is_empty() && !ready.let_go(writes.len()) {
            // Closed, because no directory may stay locked.
            *self = Ring::Unasked;
        }
        let unknown = |write: &DurableWrite<'_>| {
            // Its fsync may have failed.
            write.fs.fsync_failures().note(None);
            let why = failure.as_ref().map_or_else(String::new, ToString::to_string);
            Err(io::Error::other(format!("io_uring did not say how the write ended: {why}")))
        };
        let known = |(write, end)| match end {
            Some(end) => end_of(write, end),
            None => unknown(write),
        };
        writes.iter().zip(ends).map(known).collect()
    }
}

impl std::fmt::Debug for DurableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DurableWriter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sys::fs::{DriveFs, Handle, Lock};
    use crate::sys::fsyncs::Since;
    use crate::sys::real_fs::RealFs;

    fn durable_writers() -> [DurableWriter; 2] {
        [DurableWriter::default(), DurableWriter { ring: Mutex::new(Ring::Refused) }]
    }

    fn write_to<'a>(fs: &'a RealFs, file: &File, bytes: &'a [u8]) -> DurableWrite<'a> {
        DurableWrite { fs, handle: Handle(file.as_raw_fd()), bytes, offset: 5 }
    }

    /// A durable write that fails may have failed in its fsync, which concerns all files of the drive.
    #[test]
    fn a_durable_write_that_fails_counts_as_a_failed_fsync() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap().as_own_device();
        let file = File::create(dir.path().join("f")).unwrap();
        let (write, since) = (write_to(&fs, &file, b"bytes"), Since::now());
        let fails = |errno| end_of(&write, Err(io::Error::from_raw_os_error(errno))).unwrap_err();
        assert_eq!(fails(libc::ENOSPC).raw_os_error(), Some(libc::ENOSPC));
        assert!(!fs.fsync_failures().any_since(since), "a full drive has lost nothing");
        assert_eq!(fails(libc::EIO).raw_os_error(), Some(libc::EIO));
        assert!(fs.fsync_failures().any_since(since));
    }

    #[test]
    fn all_files_are_written_and_synced() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        // The last count is more than the ring takes.
        for count in [0, 1, 2, 3, CAPACITY as usize + 3] {
            for writer in durable_writers() {
                let path = |at: usize| dir.path().join(at.to_string());
                let files: Vec<File> = (0..count).map(|at| File::create(path(at)).unwrap()).collect();
                for round in 1..20u8 {
                    let bytes: Vec<_> = (0..count).map(|at| vec![round.wrapping_mul(at as u8); 9000]).collect();
                    let writes: Vec<_> =
                        files.iter().zip(&bytes).map(|(file, bytes)| write_to(&fs, file, bytes)).collect();
                    let results = writer.write(&writes);
                    assert_eq!(results.len(), count);
                    assert!(results.iter().all(Result::is_ok), "{results:?}");
                }
                for at in 0..count {
                    assert_eq!(std::fs::read(path(at)).unwrap()[5..], vec![19u8.wrapping_mul(at as u8); 9000]);
                }
            }
        }
    }

    /// Each file has its own result: one is full, and one takes no write, at any place in the list.
    #[test]
    fn failures_are_those_of_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        let good = File::create(dir.path().join("good")).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let unwritten = File::open("/dev/null").unwrap();
        let kinds = [(&good, None), (&full, Some(libc::ENOSPC)), (&unwritten, Some(libc::EBADF))];
        for writer in durable_writers() {
            for order in [[0, 1, 2], [1, 0, 2], [1, 1, 0], [2, 2, 0], [0, 2, 1], [2, 1, 1], [2, 2, 2]] {
                let writes = order.map(|at: usize| write_to(&fs, kinds[at].0, b"bytes"));
                let found: Vec<_> = writer.write(&writes).into_iter().map(|result| errno_of(&result)).collect();
                assert_eq!(found, order.map(|at| kinds[at].1), "{order:?}");
            }
        }
    }

    /// The kernel ends a process before its writes in flight. Such a write reached the log of the next process.
    ///
    /// Seen to fail without the table of directories, which is the second case here.
    #[test]
    fn a_directory_stays_locked_while_a_write_is_in_flight() {
        const PIPE_BYTES: usize = 4096;
        for holds in [true, false] {
            let Ok(mut ready) = working_ring() else { return };
            ready.holds &= holds;
            let dir = tempfile::tempdir().unwrap();
            let fs = RealFs::attach(dir.path(), true).unwrap();
            assert!(fs.lock_directory(Lock::Exclusive).unwrap());
            let next = RealFs::attach(dir.path(), false).unwrap();
            let mut ends = [0; 2];
            // SAFETY: the call writes two descriptors, which become files here.
            let [mut out, mut full] = unsafe {
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                ends.map(|end| File::from_raw_fd(end))
            };
            // SAFETY: the call changes only the pipe.
            assert!(unsafe { libc::fcntl(ends[1], libc::F_SETPIPE_SZ, PIPE_BYTES) } >= 0);
            full.write_all(&[0; PIPE_BYTES]).unwrap();
            let mut ring = Ring::Ready(Box::new(ready));
            let writes = [write_to(&fs, &full, b"bytes")];
            assert_eq!(ring.hand(&writes), 1);
            // As at the end of the process: the number becomes that of another file, which closes the directory.
            let other = File::open("/dev/null").unwrap();
            // SAFETY: both descriptors are open. `fs` stays the owner of its number.
            assert!(unsafe { libc::dup2(other.as_raw_fd(), fs.directory().unwrap().0) } >= 0);
            assert_eq!(next.lock_directory(Lock::Exclusive).unwrap(), !holds);
            out.read_exact(&mut [0; PIPE_BYTES]).unwrap();
            assert!(ring.collect(&writes)[0].is_ok());
            // Old kernels let the files go a little later.
            let end = Instant::now() + Duration::from_secs(60);
            while !next.lock_directory(Lock::Exclusive).unwrap() {
                assert!(Instant::now() < end, "the write has ended");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn errno_of(result: &io::Result<()>) -> Option<i32> {
        result.as_ref().err().map(|error| error.raw_os_error().unwrap_or(-1))
    }

    /// A ring that fails in the middle fails the writes that it has. Later writes go without it.
    #[test]
    fn a_ring_that_fails_costs_its_fsyncs() {
        let dir = tempfile::tempdir().unwrap();
        let fs = RealFs::attach(dir.path(), true).unwrap().as_own_device();
        let files: Vec<File> = (0..3).map(|at| File::create(dir.path().join(at.to_string())).unwrap()).collect();
        let writes: Vec<_> = files.iter().map(|file| write_to(&fs, file, b"bytes")).collect();
        let Ok(ring) = IoUring::new(CAPACITY) else { return };
        // From here on the ring's descriptor is that of another file.
        let other = File::open("/dev/null").unwrap();
        // SAFETY: both descriptors are open. The ring stays the owner of its number.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), ring.as_raw_fd()) } >= 0);
        let ring = ReadyRing { ring, holds: false };
        let writer = DurableWriter { ring: Mutex::new(Ring::Ready(Box::new(ring))) };
        let failed: Vec<bool> = writer.write(&writes).iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, true]);
        assert!(writer.write(&writes).iter().all(Result::is_ok));
    }
}
