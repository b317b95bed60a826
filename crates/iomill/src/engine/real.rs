//! The real platform: this machine's drives, engines, clock and randomness.
//!
//! Goals: the fastest engine that a drive and the machine's rules allow, and a plain line if it is not the first
//! choice. Non-goals: measuring which engine is faster.

mod durably;

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use iomill_platform::mounts;
use iomill_platform::tree::Tree;

use self::durably::DurableWriter;
use super::aio::AioEngine;
use super::mmap::{self, MappedParts, MmapEngine};
use super::null::NullEngine;
use super::platform::{Choice, DurableWrite, Footing, PlainPlace, Platform};
use super::posix::PosixEngine;
use super::uring::UringEngine;
use super::{Engine, EngineConfig, EngineKind};
use crate::counters;
use crate::sys::clock::{Clock, MonotonicClock};
use crate::sys::fs::{Access, DriveFile, DriveFs, Handle};
use crate::sys::memory::{PageBuf, page_bytes};
use crate::sys::neighbours::neighbours;
use crate::sys::plain_fs::{Opened, PlainFs};
use crate::sys::real_fs::RealFs;
use crate::sys::versions::IN_MEMORY;

/// The capacity of engines that are made only to test whether the kernel serves them.
const PROBE_CAPACITY: u32 = 64;

/// The pauses between tries to make a ring while locked memory is short.
const RING_PAUSES_MS: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// See the module.
#[derive(Debug, Default)]
pub struct RealPlatform {
    clock: Arc<MonotonicClock>,
    /// The mapped parts of all mmap engines, made with the first such engine.
    mapped: OnceLock<Arc<MappedParts>>,
    writer: DurableWriter,
}

impl Platform for RealPlatform {
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>> {
        Ok(Arc::new(RealFs::attach(path, create)?))
    }

    fn footing(&self, path: &Path) -> io::Result<Footing> {
        let found = fs::metadata(path)?;
        Ok(if found.dev() == fs::metadata("/")?.dev() { Footing::Root } else { Footing::Drive })
    }

    fn plain(&self, path: &Path, access: Access) -> io::Result<PlainPlace> {
        Ok(match PlainFs::open(path, access)? {
            Opened::InDrive(drive) => PlainPlace::OfArray(drive),
            Opened::File(fs) => {
                let handle = fs.handle();
                PlainPlace::File(DriveFile::of_plain(Arc::new(fs), handle))
            }
        })
    }

    fn neighbours(&self, near: &Path) -> Vec<PathBuf> {
        // Without /proc the siblings are still known.
        neighbours(near, mounts::all(&Tree::machine()))
    }

    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        let direct = drive.alignment(probe)?.is_direct();
        match wish {
            None => choose(probe, direct),
            Some(kind) => grant(kind, probe, direct),
        }
    }

    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        Ok(match kind {
            EngineKind::Uring => {
                let made = patiently(|| UringEngine::new(config));
                Box::new(made.map_err(|error| explained(&error, why_no_uring))?)
            }
            EngineKind::Aio => Box::new(AioEngine::new(config).map_err(|error| explained(&error, why_no_aio))?),
            EngineKind::Posix => Box::new(PosixEngine::new(config)?),
            EngineKind::Mmap => {
                Box::new(MmapEngine::new(config, Arc::clone(self.mapped.get_or_init(MappedParts::new)))?)
            }
            EngineKind::Null => Box::new(NullEngine::new(config)),
            EngineKind::Simulated => return Err(no_simulation()),
        })
    }

    fn forget(&self, key: u64) {
        if let Some(mapped) = self.mapped.get() {
            mapped.forget(key);
        }
    }

    fn write_and_sync(&self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        self.writer.write(writes)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let flags = rustix::rand::GetRandomFlags::empty();
            let count = rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut *rest, flags))?;
            rest = &mut rest[count..];
        }
        Ok(())
    }

    fn counter_directories(&self) -> Vec<PathBuf> {
        counters::directories()
    }

    fn threads(&self) -> bool {
        true
    }
}

/// The best engine for the drive that `probe` is open on.
fn choose(probe: Handle, direct: bool) -> io::Result<Choice> {
    let no_uring = match hands_to_threads(probe)? {
        Some(where_) => format!("io_uring would hand every request to worker threads {where_}"),
        None => match try_uring() {
            Ok(()) => return Ok(Choice { kind: EngineKind::Uring, why: None }),
            Err(error) => why_no_uring(&error),
        },
    };
    // On buffered files, and in memory, `io_submit` finishes each request before it takes the next.
    if !direct || is_in_memory(probe)? {
        return Ok(Choice { kind: EngineKind::Posix, why: Some(format!("{no_uring}, using posix")) });
    }
    match try_aio() {
        Ok(()) => Ok(Choice { kind: EngineKind::Aio, why: Some(format!("{no_uring}, using libaio")) }),
        Err(error) => {
            let why = format!("{no_uring}, and {}, using posix", why_no_aio(&error));
            Ok(Choice { kind: EngineKind::Posix, why: Some(why) })
        }
    }
}

/// The engine that the user named, or an error with the reason why it is not available.
fn grant(kind: EngineKind, probe: Handle, direct: bool) -> io::Result<Choice> {
    let why = match kind {
        EngineKind::Uring => {
            try_uring().map_err(|error| explained(&error, why_no_uring))?;
            hands_to_threads(probe)?
                .map(|where_| format!("io_uring hands every request to worker threads {where_}, as was asked for"))
        }
        EngineKind::Aio => {
            try_aio().map_err(|error| explained(&error, why_no_aio))?;
            let waits = !direct || is_in_memory(probe)?;
            waits.then(|| "libaio does one request at a time without direct I/O, as was asked for".to_owned())
        }
        EngineKind::Posix => Some("posix was asked for".to_owned()),
        EngineKind::Mmap => Some(mmap::examine(probe).map_err(|error| explained(&error, why_no_mmap))?.to_owned()),
        EngineKind::Null => Some("the null engine was asked for: nothing is read or written".to_owned()),
        EngineKind::Simulated => return Err(no_simulation()),
    };
    Ok(Choice { kind, why })
}

/// Makes a ring, and tries again while locked memory is short: the kernel frees the memory of dropped rings, such as
/// those of [`try_uring`], some time after the drop.
fn patiently<T>(make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for pause_ms in RING_PAUSES_MS {
        match make() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => thread::sleep(Duration::from_millis(pause_ms)),
            made => return made,
        }
    }
    make()
}

/// The configuration of an engine that is made only to test whether the kernel serves it.
fn probing() -> EngineConfig {
    EngineConfig { capacity: PROBE_CAPACITY, poll: false, hold: Vec::new(), shared: false }
}

fn try_uring() -> io::Result<()> {
    UringEngine::new(&probing())?.try_out()
}

fn try_aio() -> io::Result<()> {
    AioEngine::new(&probing())?.try_out()
}

fn no_simulation() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the simulated engine drives simulated drives only, not this machine's")
}

/// The kind of file system, in words, on which io_uring would serve this file by threads, because it cannot serve it
/// without blocking. `None` if it can.
fn hands_to_threads(probe: Handle) -> io::Result<Option<&'static str>> {
    if is_in_memory(probe)? {
        return Ok(Some("on a file system in memory"));
    }
    let mut page = PageBuf::new(page_bytes())?;
    let memory = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() };
    // SAFETY: the vector describes `page`, which outlives the call.
    let read = unsafe { libc::preadv2(probe.0, &raw const memory, 1, 0, libc::RWF_NOWAIT) };
    if read >= 0 {
        return Ok(None);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Ok(Some("on this file system, which has no reads that do not wait")),
        // The read would have waited, or the kernel does not know the flag. For the second case io_uring is tried out.
        Some(libc::EAGAIN | libc::EINTR | libc::ENOSYS | libc::EPERM) => Ok(None),
        // A page is too short a read where blocks are larger than pages. But the kernel has accepted the flag before.
        Some(libc::EINVAL) => Ok(None),
        _ => Err(error),
    }
}

fn is_in_memory(probe: Handle) -> io::Result<bool> {
    if probe.0 < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the caller's descriptor, not negative, used for this one call.
    let fd = unsafe { BorrowedFd::borrow_raw(probe.0) };
    Ok(IN_MEMORY.contains(&(rustix::fs::fstatfs(fd)?.f_type as u32)))
}

/// An error of the same kind, with the reason in words.
fn explained(error: &io::Error, why: fn(&io::Error) -> String) -> io::Error {
    io::Error::new(error.kind(), why(error))
}

fn why_no_uring(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match setting("kernel/io_uring_disabled") {
            Some(value) if value != "0" => format!("io_uring is forbidden here (kernel.io_uring_disabled = {value})"),
            _ => {
                "io_uring is forbidden here (by a seccomp filter or security policy, as in many containers)".to_owned()
            }
        },
        Some(libc::ENOSYS) => {
            "io_uring is not there (a kernel without it, or a seccomp filter that hides it)".to_owned()
        }
        Some(libc::ENOMEM) => "io_uring is refused here (memory lock limit, `ulimit -l`)".to_owned(),
        Some(libc::EMFILE) => "io_uring is refused here (limit of open files, `ulimit -n`)".to_owned(),
        _ => format!("io_uring cannot be used here ({error})"),
    }
}

fn why_no_aio(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => {
            let limit = setting("fs/aio-max-nr").map_or_else(String::new, |limit| format!(" = {limit}"));
            format!("libaio is refused here (all of fs.aio-max-nr{limit} is in use; a larger value helps)")
        }
        Some(libc::ENOSYS) => "libaio is not there (a kernel without it, or a seccomp filter that hides it)".to_owned(),
        Some(libc::EPERM | libc::EACCES) => "libaio is forbidden here (by a seccomp filter)".to_owned(),
        _ => format!("libaio cannot be used here ({error})"),
    }
}

fn why_no_mmap(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENODEV) => "files on it cannot be mapped".to_owned(),
        Some(libc::ENOMEM) => {
            "there is no address space to map its files (`ulimit -v`, or vm.max_map_count mappings)".to_owned()
        }
        _ => format!("its files cannot be mapped ({error})"),
    }
}

/// The value of a kernel setting, if it is readable.
fn setting(name: &str) -> Option<String> {
    Tree::machine().get(&format!("proc/sys/{name}"))
}

#[cfg(test)]
mod tests;
