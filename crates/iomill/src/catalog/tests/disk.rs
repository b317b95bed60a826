//! One drive in memory: its directories and files, and what of them is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::world::errno;

#[derive(Clone, Debug, Default)]
pub struct Dir {
    pub live: BTreeMap<String, u64>,
    pub durable: BTreeMap<String, u64>,
    pub exists_durably: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Inode {
    pub live: Vec<u8>,
    pub durable: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Empty if the disk has no `iomill`.
    pub dirs: BTreeMap<String, Dir>,
    pub inodes: BTreeMap<u64, Inode>,
    pub capacity_bytes: Option<u64>,
    pub read_only: bool,
}

pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Disk {
    pub fn lookup(&self, path: &str) -> Option<u64> {
        let (dir, name) = split(path);
        self.dirs.get(dir)?.live.get(name).copied()
    }

    pub fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| (inode.live.len() as u64).next_multiple_of(4096)).sum()
    }

    /// Changes the length of a file, if there is room.
    pub fn resize(&mut self, inode: u64, len: u64) -> io::Result<()> {
        let old = self.inodes[&inode].live.len() as u64;
        let after = self.used_bytes() - old.next_multiple_of(4096) + len.next_multiple_of(4096);
        if len > old && self.capacity_bytes.is_some_and(|capacity| after > capacity) {
            return Err(errno(libc::ENOSPC));
        }
        self.inodes.get_mut(&inode).unwrap().live.resize(len as usize, 0);
        Ok(())
    }

    /// Frees files that have neither a name nor an opener.
    pub fn collect(&mut self, open: &BTreeSet<u64>) {
        let mut used = open.clone();
        for dir in self.dirs.values() {
            used.extend(dir.live.values().chain(dir.durable.values()));
        }
        self.inodes.retain(|inode, _| used.contains(inode));
    }

    /// Keeps each unsynced piece for which `keep` says yes.
    pub fn lose(&mut self, keep: &mut impl FnMut(usize) -> bool) {
        self.dirs.retain(|name, dir| name.is_empty() || dir.exists_durably || keep(0));
        for dir in self.dirs.values_mut() {
            let names: BTreeSet<String> = dir.live.keys().chain(dir.durable.keys()).cloned().collect();
            for name in names {
                let (live, durable) = (dir.live.get(&name).copied(), dir.durable.get(&name).copied());
                let kept = if live == durable || keep(0) { live } else { durable };
                match kept {
                    Some(inode) => dir.live.insert(name, inode),
                    None => dir.live.remove(&name),
                };
            }
            dir.durable = dir.live.clone();
            dir.exists_durably = true;
        }
        for inode in self.inodes.values_mut() {
            if inode.live != inode.durable {
                // Stricter than real drives, which tear writes between sectors.
                let len = if keep(0) { inode.live.len() } else { inode.durable.len() };
                let mut after = inode.durable.clone();
                after.resize(len, 0);
                for start in (0..len).step_by(16) {
                    let end = (start + 16).min(len).min(inode.live.len());
                    if start < end && keep(0) {
                        after[start..end].copy_from_slice(&inode.live[start..end]);
                    }
                }
                inode.live = after.clone();
                inode.durable = after;
            }
        }
        self.collect(&BTreeSet::new());
    }
}
