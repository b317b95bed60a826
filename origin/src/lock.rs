//! [`Lock`]: the right to append to a drive, which one thread of one process has at a time. Rule W1 of
//! `docs/origin.md`. Non-goals: the appended granules (`append`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;

/// See the module.
#[derive(Debug)]
pub struct Lock {
    /// Its `flock` is the right among processes. The kernel grants it again to a process that has it.
    file: File,
    /// The right among the threads of this process.
    here: Mutex<()>,
}

/// The right to append to a drive, as a witness. The kernel releases it if the process dies.
#[derive(Debug)]
pub struct Held<'a> {
    file: &'a File,
    /// Released after the right among processes.
    _here: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _unlocked = flock(self.file, FlockOperation::Unlock);
    }
}

/// The interval at which a waiting call tries to take the right.
const PAUSE: Duration = Duration::from_millis(1);

impl Lock {
    /// The file, which is made if it is missing.
    pub fn open(path: &Path) -> io::Result<Lock> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        Ok(Lock { file: options.open(path)?, here: Mutex::default() })
    }

    /// The right, if it is free now.
    pub fn try_take(&self) -> io::Result<Held<'_>> {
        let here = match self.here.try_lock() {
            Ok(here) => here,
            // The lock guards no data, so a panic left none half changed.
            Err(TryLockError::Poisoned(here)) => here.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        };
        retry_on_intr(|| flock(&self.file, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Held { file: &self.file, _here: here })
    }

    /// Waits within a bound. Another process appends its batch or opens the drive meanwhile. It may also be stopped.
    pub fn wait(&self, most: Duration) -> io::Result<Held<'_>> {
        let begun = Instant::now();
        loop {
            match self.try_take() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < most => thread::sleep(PAUSE),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let why = format!(
                        "another process has held it for {most:?}; end that process if it is stopped, and check the drive if it hangs"
                    );
                    return Err(io::Error::new(e.kind(), why));
                }
                taken => return taken,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel grants a lock to a process that has it. If this thread released it, another thread would lose it.
    #[test]
    fn one_thread_of_one_process_has_the_right() {
        let dir = tempfile::tempdir().unwrap();
        let (lock, other) =
            (Lock::open(&dir.path().join("lock")).unwrap(), Lock::open(&dir.path().join("lock")).unwrap());
        let held = lock.try_take().unwrap();
        for lock in [&lock, &other] {
            assert_eq!(lock.try_take().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        drop(held);
        let held = other.try_take().unwrap();
        assert!(lock.try_take().is_err());
        drop(held);
        lock.wait(Duration::ZERO).unwrap();
    }
}
