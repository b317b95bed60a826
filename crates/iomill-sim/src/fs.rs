//! A simulated drive's directory, for the catalog and for opening parts.
//!
//! Goals: the meaning of each system call, with its errnos. Non-goals: the outcome of a crash (`disk` and `tree`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iomill::sys::fs::{Access, Alignment, DriveFs, Ground, Handle, Identity, Lock, Stamp};
use iomill::sys::fsyncs::FsyncFailures;

use crate::errno;
use crate::fault::{Death, Kind, Met, Verdict, misplaced};
use crate::image::PAGE_BYTES;
use crate::memory::is_misaligned;
use crate::state::{Open, State};
use crate::trace::digest;
use crate::world::World;

/// The capacity that a drive without a limit reports.
const ENDLESS_BYTES: u64 = 1 << 50;

/// One attachment to a drive.
#[derive(Debug)]
pub(crate) struct SimFs {
    world: World,
    drive: usize,
    location: PathBuf,
    boot: u64,
    fsync_failures: Arc<FsyncFailures>,
}

impl Verdict {
    /// The result for an operation that has no effect when it fails.
    pub(crate) fn go(self) -> io::Result<()> {
        match self {
            Verdict::Fail(code) => Err(errno(code)),
            _ => Ok(()),
        }
    }
}

impl SimFs {
    pub fn new(world: World, drive: usize, location: PathBuf, boot: u64) -> SimFs {
        let fsync_failures = Arc::clone(&world.state().drives[drive].fsync_failures);
        SimFs { world, drive, location, boot, fsync_failures }
    }

    /// Does an operation on a path.
    fn on_path<R>(
        &self,
        kind: Kind,
        path: &str,
        body: impl FnOnce(&mut State, Verdict) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.world.state();
        let verdict = state.enter(self.boot, self.drive, kind, path)?;
        body(&mut state, verdict)
    }

    /// Does an operation on an open file. The operation gets the file's number.
    fn on_file<R>(
        &self,
        kind: Kind,
        handle: Handle,
        body: impl FnOnce(&mut State, Verdict, u64) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        let open = state.opened(self.drive, handle)?;
        let (file, path) = (open.file, open.path.clone());
        let verdict = state.enter(self.boot, self.drive, kind, &path)?;
        body(&mut state, verdict, file)
    }

    /// Refuses a transfer that does not meet an open file's alignment.
    fn check_aligned(&self, state: &State, handle: Handle, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let alignment = state.opened(self.drive, handle)?.alignment;
        check_end(offset, bytes.len() as u64)?;
        let misaligned = is_misaligned(alignment, offset, bytes.len() as u64, bytes.as_ptr().addr());
        if misaligned { Err(errno(libc::EINVAL)) } else { Ok(()) }
    }

    /// Refuses a change of a file that is not open for writing.
    fn check_writable(&self, state: &State, handle: Handle) -> io::Result<()> {
        if state.opened(self.drive, handle)?.access.write { Ok(()) } else { Err(errno(libc::EBADF)) }
    }
}

fn check_end(offset: u64, len: u64) -> io::Result<u64> {
    offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or_else(|| errno(libc::EINVAL))
}

impl DriveFs for SimFs {
    fn location(&self) -> &Path {
        &self.location
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.on_path(Kind::MakeDir, dir, |state, verdict| {
            verdict.go()?;
            if state.drives[self.drive].disk.tree.make_dir(dir)? { state.effect() } else { Ok(()) }
        })
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.on_path(Kind::List, dir, |state, verdict| {
            verdict.go()?;
            let mut names = state.drives[self.drive].disk.tree.list(dir)?;
            state.chance.order.shuffle(&mut names);
            Ok(names)
        })
    }

    fn open(&self, path: &str, access: Access) -> io::Result<Handle> {
        let kind = if access.create { Kind::Create } else { Kind::Open };
        self.on_path(kind, path, |state, verdict| {
            verdict.go()?;
            let disk = &mut state.drives[self.drive].disk;
            let file = if access.create {
                let file = disk.create(path)?;
                state.effect()?;
                file
            } else {
                disk.tree.find_file(path)?
            };
            let direct = state.drives[self.drive].model.alignment;
            let alignment = if access.direct { direct } else { Alignment::NONE };
            Ok(state.open(Open::new(self.drive, file, path, access, alignment)))
        })
    }

    fn close(&self, handle: Handle) {
        let mut state = self.world.state();
        if state.check_boot(self.boot).is_ok() {
            state.close(handle);
        }
    }

    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.on_file(Kind::Read, handle, |state, verdict, file| {
            self.check_aligned(state, handle, offset, buf)?;
            match state.death(self.drive) {
                Some(Death::Empty) => return Ok(0),
                Some(Death::Error) => return Err(errno(libc::EIO)),
                None => verdict.go()?,
            }
            let read = state.file(self.drive, file)?.now.read(offset, buf);
            state.note(&format!("read {read} at {offset}: {:x}", digest(&buf[..read])));
            Ok(read)
        })
    }

    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.on_file(Kind::Write, handle, |state, verdict, file| {
            self.check_writable(state, handle)?;
            self.check_aligned(state, handle, offset, bytes)?;
            if let Verdict::Fail(code) = verdict {
                if code == libc::EIO {
                    state.damage(self.drive, file, offset, bytes);
                    state.effect()?;
                }
                return Err(errno(code));
            }
            if verdict == Verdict::Lost {
                return state.effect();
            }
            let offset = if verdict == Verdict::Misplaced { misplaced(offset) } else { offset };
            let fits = state.fitting(self.drive, file, offset, bytes.len());
            state.file(self.drive, file)?.write(offset, &bytes[..fits], false);
            state.note(&format!("write {fits} at {offset}: {:x}", digest(&bytes[..fits])));
            state.effect()?;
            if fits < bytes.len() { Err(errno(libc::ENOSPC)) } else { Ok(()) }
        })
    }

    fn len(&self, handle: Handle) -> io::Result<u64> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        let file = state.opened(self.drive, handle)?.file;
        Ok(state.file(self.drive, file)?.now.len())
    }

    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()> {
        self.on_file(Kind::SetLen, handle, |state, verdict, file| {
            self.check_writable(state, handle)?;
            check_end(len, 0)?;
            verdict.go()?;
            state.file(self.drive, file)?.set_len(len);
            state.effect()
        })
    }

    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.on_file(Kind::Allocate, handle, |state, verdict, file| {
            self.check_writable(state, handle)?;
            let end = check_end(offset, len)?;
            if len == 0 {
                return Err(errno(libc::EINVAL));
            }
            verdict.go()?;
            let (first, after) = (offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            let missing = state.file(self.drive, file)?.now.space().missing(first, after);
            if missing > state.free_pages(self.drive) {
                state.meet(Met::FULL);
                return Err(errno(libc::ENOSPC));
            }
            state.file(self.drive, file)?.allocate(offset, len);
            state.effect()
        })
    }

    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.on_file(Kind::Zero, handle, |state, verdict, file| {
            self.check_writable(state, handle)?;
            let end = check_end(offset, len)?.min(state.file(self.drive, file)?.now.len());
            verdict.go()?;
            if offset < end {
                let zeroes = vec![0; (end - offset) as usize];
                state.file(self.drive, file)?.write(offset, &zeroes, false);
            }
            state.effect()
        })
    }

    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.on_file(Kind::Zero, handle, |state, verdict, file| {
            self.check_writable(state, handle)?;
            check_end(offset, len)?;
            verdict.go()?;
            state.file(self.drive, file)?.punch(offset, len);
            state.effect()
        })
    }

    fn allocated(&self, handle: Handle) -> io::Result<u64> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        let file = state.opened(self.drive, handle)?.file;
        Ok(state.file(self.drive, file)?.now.space().pages() * PAGE_BYTES)
    }

    fn fsync_failures(&self) -> &Arc<FsyncFailures> {
        &self.fsync_failures
    }

    fn sync_data(&self, handle: Handle) -> io::Result<()> {
        let synced = self.on_file(Kind::Sync, handle, |state, verdict, file| {
            if let Verdict::Fail(code) = verdict {
                state.fail_sync(self.drive, file, code);
                return Err(errno(code));
            }
            state.effect()?;
            let file = state.file(self.drive, file)?;
            let mark = file.mark();
            file.sync(mark);
            Ok(())
        });
        self.fsync_failures.watch(synced)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let synced = self.on_path(Kind::SyncDir, dir, |state, verdict| {
            verdict.go()?;
            state.drives[self.drive].disk.tree.find_dir(dir)?;
            state.effect()?;
            state.drives[self.drive].disk.tree.sync_dir(dir)?;
            let open = state.open_files(self.drive);
            state.drives[self.drive].disk.collect(&open);
            Ok(())
        });
        self.fsync_failures.watch(synced)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.on_path(Kind::Rename, to, |state, verdict| {
            if !happens(state, verdict) {
                return verdict.go();
            }
            state.drives[self.drive].disk.tree.rename(from, to)?;
            state.effect()?;
            verdict.go()
        })
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.on_path(Kind::Unlink, path, |state, verdict| {
            if !happens(state, verdict) {
                return verdict.go();
            }
            state.drives[self.drive].disk.tree.unlink(path)?;
            state.effect()?;
            verdict.go()
        })
    }

    fn lock(&self, handle: Handle, lock: Lock) -> io::Result<bool> {
        self.on_file(Kind::Lock, handle, |state, verdict, file| {
            verdict.go()?;
            let id = state.open_id(handle)?;
            let held = state.opens.iter().any(|(other, open)| {
                let clash = open.lock == Some(Lock::Exclusive) || lock == Lock::Exclusive;
                *other != id && open.drive == self.drive && open.file == file && open.lock.is_some() && clash
            });
            if !held && let Some(open) = state.opens.get_mut(&id) {
                open.lock = Some(lock);
            }
            Ok(!held)
        })
    }

    fn unlock(&self, handle: Handle) -> io::Result<()> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        state.opened(self.drive, handle)?;
        let id = state.open_id(handle)?;
        if let Some(open) = state.opens.get_mut(&id) {
            open.lock = None;
        }
        Ok(())
    }

    /// A stamp without times, which proves nothing about a closed file.
    fn stamp(&self, handle: Handle) -> io::Result<Stamp> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        let file = state.opened(self.drive, handle)?.file;
        let identity = Identity { device: self.drive as u64, inode: file };
        let len = state.file(self.drive, file)?.now.len();
        let (modified_ns, changed_ns) = (0, 0);
        let (is_unique, is_settled, mount, drops) = (true, false, 0, None);
        Ok(Stamp { identity, is_unique, len, modified_ns, changed_ns, is_settled, mount, drops })
    }

    fn alignment(&self, handle: Handle) -> io::Result<Alignment> {
        let state = self.world.state();
        state.check_boot(self.boot)?;
        Ok(state.opened(self.drive, handle)?.alignment)
    }

    fn ground(&self) -> io::Result<Ground> {
        let state = self.world.state();
        state.check_boot(self.boot)?;
        if state.death(self.drive).is_some() {
            return Err(errno(libc::EIO));
        }
        let drive = &state.drives[self.drive];
        let total_bytes = drive.model.capacity_bytes.unwrap_or(ENDLESS_BYTES);
        let mut ground = Ground::default();
        ground.file_system = "simulated".to_owned();
        ground.device = format!("sim{}", self.drive);
        ground.device_id = self.drive as u64 + 1;
        ground.node = drive.model.node;
        ground.total_bytes = total_bytes;
        ground.free_bytes = total_bytes.saturating_sub(state.used_pages(self.drive) * PAGE_BYTES);
        Ok(ground)
    }
}

/// Whether a change of a name takes place. With EIO it may, by chance.
fn happens(state: &mut State, verdict: Verdict) -> bool {
    match verdict {
        Verdict::Fail(libc::EIO) => state.chance.fault.bool(),
        Verdict::Fail(_) => false,
        _ => true,
    }
}
