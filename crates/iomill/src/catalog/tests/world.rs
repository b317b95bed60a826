//! Drives in memory, for the catalog's tests. They distinguish what is synced from what is not. Any operation can be
//! made to fail, and the power can be cut.

mod platform;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub use super::disk::Disk;
use super::disk::{Dir, Inode, split};
use crate::engine::platform::Platform;
use crate::sys::fs::{Access, Alignment, DriveFs, Ground, Handle, Holder, Identity, Lock};
use crate::sys::fsyncs::FsyncFailures;
use crate::sys::hash::xxh3_64_with_seed;

/// What goes wrong, and at which operation, counted over all drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// One operation fails. With `done`, it fails after it has taken effect.
    Once { at: u64, done: bool },
    /// One operation and all later ones fail: the machine is dead.
    Crash { at: u64 },
    /// All operations on one disk fail from here on.
    Dead { at: u64, disk: usize },
}

/// What is left after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process was killed: everything is still in the kernel's memory.
    Kill,
    /// Everything that was not synced is lost.
    Power,
    /// Each unsynced piece by itself is there or not; the number is the seed.
    Mix(u64),
}

#[derive(Clone, Debug)]
struct Open {
    disk: usize,
    inode: u64,
    write: bool,
    lock: Option<Lock>,
}

#[derive(Clone, Debug, Default)]
pub struct Inner {
    pub disks: Vec<Disk>,
    pub places: BTreeMap<PathBuf, usize>,
    pub ops: u64,
    pub fault: Fault,
    /// Whether there may be threads.
    pub threads: bool,
    /// Syncs of files with this in their names do not end.
    pub held: Option<&'static str>,
    /// The number of pauses for which a process that has ended keeps all locks.
    pub ending: u32,
    /// The same for the locks of directories.
    pub ending_directories: u32,
    /// How many syncs are held back now.
    pub waits_held: usize,
    /// What calls that need a descriptor of their own answer.
    pub no_descriptors: Option<i32>,
    /// The calls that still find a descriptor, and the calls after them that find none.
    pub lacks_after: (u64, u64),
    /// How many writes to the log find no memory, and which disk they go to, if it matters.
    pub no_memory: (u32, Option<usize>),
    /// A disk, and the range of offsets at which no file on it can be read.
    pub unreadable: Option<(usize, Range<u64>)>,
    open: BTreeMap<i32, Open>,
    next: u64,
}

/// The world, which is also the platform.
#[derive(Clone, Debug, Default)]
pub struct World(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct MemFs {
    world: World,
    location: PathBuf,
    disk: usize,
    fsync_failures: Arc<FsyncFailures>,
}

pub fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl World {
    /// A world with empty disks at `/d0`, `/d1`, ...
    pub fn new(disks: usize) -> World {
        let world = World::default();
        for disk in 0..disks {
            world.inner().disks.push(Disk::default());
            world.inner().places.insert(PathBuf::from(format!("/d{disk}")), disk);
        }
        world
    }

    /// Another world like this one, but with no open files.
    pub fn fork(&self) -> World {
        let mut inner = self.inner().clone();
        inner.open.clear();
        World(Arc::new(Mutex::new(inner)))
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub fn platform(&self) -> Arc<dyn Platform> {
        Arc::new(self.clone())
    }

    /// Arms a fault, to strike at the `k`th operation from now.
    pub fn arm(&self, fault: impl FnOnce(u64) -> Fault, k: u64) {
        let mut inner = self.inner();
        inner.fault = fault(inner.ops + k);
    }

    /// Whether the armed fault has struck. Disarms it.
    pub fn disarm(&self) -> bool {
        let mut inner = self.inner();
        let struck = match inner.fault {
            Fault::None => false,
            Fault::Once { at, .. } | Fault::Crash { at } | Fault::Dead { at, .. } => inner.ops >= at,
        };
        inner.fault = Fault::None;
        struck
    }

    /// Ends all processes, and the machine too unless `loss` is [`Loss::Kill`].
    pub fn crash(&self, loss: Loss) {
        let mut inner = self.inner();
        inner.fault = Fault::None;
        inner.open.clear();
        match loss {
            Loss::Kill => {}
            Loss::Power => inner.disks.iter_mut().for_each(|disk| disk.lose(&mut |_| false)),
            Loss::Mix(seed) => {
                let mut draws = 0u64;
                let mut coin = |_: usize| {
                    draws += 1;
                    xxh3_64_with_seed(&draws.to_le_bytes(), seed) & 1 == 1
                };
                inner.disks.iter_mut().for_each(|disk| disk.lose(&mut coin));
            }
        }
    }

    pub fn move_disk(&self, from: &str, to: &str) {
        let disk = self.inner().places.remove(Path::new(from)).unwrap();
        self.inner().places.insert(PathBuf::from(to), disk);
    }

    /// Copies a disk, as `cp -a` would.
    pub fn copy_disk(&self, from: &str, to: &str) {
        let mut inner = self.inner();
        let copy = inner.disks[inner.places[Path::new(from)]].clone();
        inner.disks.push(copy);
        let disk = inner.disks.len() - 1;
        inner.places.insert(PathBuf::from(to), disk);
    }

    pub fn read(&self, disk: usize, path: &str) -> Option<Vec<u8>> {
        let inner = self.inner();
        let inode = inner.disks[disk].lookup(path)?;
        Some(inner.disks[disk].inodes[&inode].live.clone())
    }

    /// Puts a file on a disk, durably; `None` removes it.
    pub fn put(&self, disk: usize, path: &str, bytes: Option<&[u8]>) {
        let mut inner = self.inner();
        inner.next += 1;
        let inode = inner.next;
        let (dir, name) = split(path);
        let disk = &mut inner.disks[disk];
        let dir = disk.dirs.get_mut(dir).unwrap();
        match bytes {
            Some(bytes) => {
                dir.live.insert(name.to_owned(), inode);
                dir.durable.insert(name.to_owned(), inode);
                disk.inodes.insert(inode, Inode { live: bytes.to_vec(), durable: bytes.to_vec() });
            }
            None => {
                dir.live.remove(name);
                dir.durable.remove(name);
            }
        }
    }

    /// Puts a directory of a disk back to what it was in another world, durably; `None` for the whole disk.
    pub fn put_back(&self, disk: usize, dir: Option<&str>, from: &World) {
        let old = from.inner().disks[disk].clone();
        let Some(dir) = dir else {
            self.inner().disks[disk] = old;
            return;
        };
        self.names(disk, dir).iter().for_each(|name| self.put(disk, &join(dir, name), None));
        for (name, inode) in &old.dirs[dir].live {
            self.put(disk, &join(dir, name), Some(&old.inodes[inode].live));
        }
    }

    /// All that a disk holds: path and bytes.
    pub fn everything(&self, disk: usize) -> BTreeMap<String, Vec<u8>> {
        let inner = self.inner();
        let disk = &inner.disks[disk];
        let all =
            disk.dirs.iter().flat_map(|(dir, held)| held.live.iter().map(move |(name, inode)| (dir, name, inode)));
        all.map(|(dir, name, inode)| (join(dir, name), disk.inodes[inode].live.clone())).collect()
    }

    pub fn names(&self, disk: usize, dir: &str) -> Vec<String> {
        self.inner().disks[disk].dirs[dir].live.keys().cloned().collect()
    }

    /// Waits as long as syncs of this file are held back.
    fn wait_while_held(&self, disk: usize, handle: Handle) {
        let mut waits = false;
        let begun = std::time::Instant::now();
        loop {
            let mut inner = self.inner();
            let is_held = inner.held.is_some_and(|held| {
                let inode = inner.open.get(&handle.0).map(|open| open.inode);
                let mut names = inner.disks[disk].dirs.values().flat_map(|dir| &dir.live);
                names.any(|(name, of)| name.contains(held) && Some(*of) == inode && name.starts_with("tmp-"))
            });
            if !is_held {
                inner.waits_held -= usize::from(waits);
                return;
            }
            inner.waits_held += usize::from(!waits);
            waits = true;
            drop(inner);
            assert!(begun.elapsed() < Duration::from_secs(60), "what lets this sync end waits for it");
            std::thread::yield_now();
        }
    }

    /// How many files are open.
    pub fn open_files(&self) -> usize {
        self.inner().open.len()
    }
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

impl MemFs {
    /// Whether there are descriptors.
    fn check_descriptors(&self) -> io::Result<()> {
        let mut inner = self.world.inner();
        match &mut inner.lacks_after {
            (0, 0) => {}
            (0, lacks) => {
                *lacks -= 1;
                return Err(errno(libc::EMFILE));
            }
            (finds, _) => *finds -= 1,
        }
        inner.no_descriptors.map_or(Ok(()), |number| Err(errno(number)))
    }

    /// Counts an operation, and makes it fail if a fault is due.
    fn run<T>(&self, operation: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.world.inner();
        inner.ops += 1;
        let now = inner.ops;
        match inner.fault {
            Fault::Once { at, done } if now == at => {
                if done {
                    operation(&mut inner)?;
                }
                Err(errno(libc::EIO))
            }
            Fault::Crash { at } if now >= at => Err(errno(libc::EIO)),
            Fault::Dead { at, disk } if now >= at && disk == self.disk => Err(errno(libc::EIO)),
            _ => operation(&mut inner),
        }
    }

    fn write<T>(&self, operation: impl FnOnce(&mut Inner, &mut Disk) -> io::Result<T>) -> io::Result<T> {
        self.run(|inner| {
            let mut disk = std::mem::take(&mut inner.disks[self.disk]);
            let result = if disk.read_only { Err(errno(libc::EROFS)) } else { operation(inner, &mut disk) };
            let open = inner.open.values().filter(|open| open.disk == self.disk).map(|open| open.inode).collect();
            disk.collect(&open);
            inner.disks[self.disk] = disk;
            result
        })
    }
}

fn inode_of(inner: &Inner, handle: Handle, write: bool) -> io::Result<u64> {
    let open = inner.open.get(&handle.0).ok_or_else(|| errno(libc::EBADF))?;
    if write && !open.write { Err(errno(libc::EBADF)) } else { Ok(open.inode) }
}

impl DriveFs for MemFs {
    fn location(&self) -> &Path {
        &self.location
    }

    fn identity(&self) -> io::Result<Identity> {
        self.run(|_| Ok(Identity { device: 1, inode: self.disk as u64 }))
    }

    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.write(|inner, disk| {
            let inode = disk.inodes.get_mut(&inode_of(inner, handle, true)?).unwrap();
            inode.live[offset as usize..(offset + len) as usize].fill(0);
            Ok(())
        })
    }

    fn allocated(&self, handle: Handle) -> io::Result<u64> {
        self.len(handle)
    }

    fn fsync_failures(&self) -> &Arc<FsyncFailures> {
        &self.fsync_failures
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.check_descriptors()?;
        self.write(|_, disk| {
            disk.dirs.entry(dir.to_owned()).or_default();
            Ok(())
        })
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.check_descriptors()?;
        self.run(|inner| {
            let dirs = &inner.disks[self.disk].dirs;
            let found = dirs.get(dir).ok_or_else(|| errno(libc::ENOENT))?;
            let mut names: Vec<String> = found.live.keys().cloned().collect();
            if dir.is_empty() {
                names.extend(dirs.keys().filter(|name| !name.is_empty()).cloned());
            }
            Ok(names)
        })
    }

    fn open(&self, path: &str, access: Access) -> io::Result<Handle> {
        self.check_descriptors()?;
        let open = |inner: &mut Inner, inode: u64| {
            inner.next += 1;
            let handle = inner.next as i32;
            let write = access.write || access.create;
            inner.open.insert(handle, Open { disk: self.disk, inode, write, lock: None });
            Ok(Handle(handle))
        };
        if !access.create {
            return self.run(|inner| {
                let disk = &inner.disks[self.disk];
                let inode = disk.lookup(path).ok_or_else(|| errno(libc::ENOENT))?;
                if access.write && disk.read_only { Err(errno(libc::EROFS)) } else { open(inner, inode) }
            });
        }
        self.write(|inner, disk| {
            if disk.lookup(path).is_some() {
                return Err(errno(libc::EEXIST));
            }
            inner.next += 1;
            let inode = inner.next;
            let (dir, name) = split(path);
            let dir = disk.dirs.get_mut(dir).ok_or_else(|| errno(libc::ENOENT))?;
            dir.live.insert(name.to_owned(), inode);
            disk.inodes.insert(inode, Inode::default());
            open(inner, inode)
        })
    }

    fn close(&self, handle: Handle) {
        // After a crash the handles are gone.
        self.world.inner().open.remove(&handle.0);
    }

    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.run(|inner| {
            let inode = inode_of(inner, handle, false)?;
            let end = offset + buf.len() as u64;
            if inner
                .unreadable
                .as_ref()
                .is_some_and(|(disk, at)| *disk == self.disk && at.start < end && offset < at.end)
            {
                return Err(errno(libc::EIO));
            }
            let data = &inner.disks[self.disk].inodes[&inode].live;
            let data = data.get(offset as usize..).unwrap_or_default();
            let count = data.len().min(buf.len());
            buf[..count].copy_from_slice(&data[..count]);
            Ok(count)
        })
    }

    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(|inner, disk| {
            let inode = inode_of(inner, handle, true)?;
            let (times, of) = inner.no_memory;
            if times > 0 && of.is_none_or(|of| of == self.disk) {
                inner.no_memory.0 -= 1;
                return Err(errno(libc::ENOMEM));
            }
            let end = offset + bytes.len() as u64;
            if end > disk.inodes[&inode].live.len() as u64 {
                disk.resize(inode, end)?;
            }
            disk.inodes.get_mut(&inode).unwrap().live[offset as usize..end as usize].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn len(&self, handle: Handle) -> io::Result<u64> {
        self.run(|inner| Ok(inner.disks[self.disk].inodes[&inode_of(inner, handle, false)?].live.len() as u64))
    }

    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()> {
        self.write(|inner, disk| disk.resize(inode_of(inner, handle, true)?, len))
    }

    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.write(|inner, disk| {
            let inode = inode_of(inner, handle, true)?;
            let len = (offset + len).max(disk.inodes[&inode].live.len() as u64);
            disk.resize(inode, len)
        })
    }

    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(handle, &vec![0; len as usize], offset)
    }

    fn sync_data(&self, handle: Handle) -> io::Result<()> {
        self.world.wait_while_held(self.disk, handle);
        let synced = self.run(|inner| {
            let inode = inode_of(inner, handle, false)?;
            let inode = inner.disks[self.disk].inodes.get_mut(&inode).unwrap();
            inode.durable = inode.live.clone();
            Ok(())
        });
        self.fsync_failures.watch(synced)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.check_descriptors()?;
        self.run(|inner| {
            let dirs = &mut inner.disks[self.disk].dirs;
            let found = dirs.get_mut(dir).ok_or_else(|| errno(libc::ENOENT))?;
            found.durable = found.live.clone();
            if dir.is_empty() {
                dirs.values_mut().for_each(|dir| dir.exists_durably = true);
            }
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_descriptors()?;
        self.write(|_, disk| {
            let inode = disk.lookup(from).ok_or_else(|| errno(libc::ENOENT))?;
            let ((old_dir, old_name), (new_dir, new_name)) = (split(from), split(to));
            disk.dirs.get_mut(old_dir).unwrap().live.remove(old_name);
            disk.dirs.get_mut(new_dir).unwrap().live.insert(new_name.to_owned(), inode);
            Ok(())
        })
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.check_descriptors()?;
        self.write(|_, disk| {
            let (dir, name) = split(path);
            let dir = disk.dirs.get_mut(dir).ok_or_else(|| errno(libc::ENOENT))?;
            dir.live.remove(name).map(|_| ()).ok_or_else(|| errno(libc::ENOENT))
        })
    }

    fn lock(&self, handle: Handle, lock: Lock) -> io::Result<bool> {
        self.run(|inner| {
            let inode = inode_of(inner, handle, false)?;
            if inner.ending > 0 {
                return Ok(false);
            }
            let mut others = inner.open.iter().filter(|(other, open)| {
                **other != handle.0 && (open.disk, open.inode) == (self.disk, inode) && open.lock.is_some()
            });
            let free = others.all(|(_, other)| (other.lock, lock) == (Some(Lock::Shared), Lock::Shared));
            if free {
                inner.open.get_mut(&handle.0).unwrap().lock = Some(lock);
            }
            Ok(free)
        })
    }

    fn lock_holder(&self, _: Handle) -> Holder {
        if self.world.inner().ending > 0 { Holder::Ending } else { Holder::Unknown }
    }

    fn lock_directory(&self, _: Lock) -> io::Result<bool> {
        Ok(self.world.inner().ending_directories == 0)
    }

    fn directory_holder(&self) -> Holder {
        if self.world.inner().ending_directories > 0 { Holder::Ending } else { Holder::Unknown }
    }

    fn unlock(&self, handle: Handle) -> io::Result<()> {
        self.run(|inner| {
            inner.open.get_mut(&handle.0).ok_or_else(|| errno(libc::EBADF))?.lock = None;
            Ok(())
        })
    }

    fn alignment(&self, _: Handle) -> io::Result<Alignment> {
        Ok(Alignment::NONE)
    }

    fn ground(&self) -> io::Result<Ground> {
        Ok(Ground::default())
    }
}
