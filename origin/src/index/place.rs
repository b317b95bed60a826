//! The file of an [`Index`]: found, or made as a whole. Non-goals: filling it from the drive (`load`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::{Index, READY, Shape};
use crate::error::{Error, Result};
use crate::label::Label;
use crate::mapping::Mapping;

impl Index {
    /// The index of a drive. The caller holds the drive's lock, so that one process makes it. An index of another boot,
    /// drive or shape is replaced: after a crash of the machine, none of its memory is trusted.
    pub fn open(dir: &Path, label: &Label) -> Result<Index> {
        let path = dir.join(format!("iomill-origin-{:032x}-{:032x}", label.cache, label.drive));
        let shape = Shape::new(label.geometry);
        let failed = |source| Error::Index { path: path.clone(), len_bytes: shape.words as u64 * 8, source };
        let boot = boot_id().map_err(failed)?;
        match found(&path, shape) {
            Ok(Some(index)) if index.is_of(label, boot) => return Ok(index),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        made(&path, shape, label, boot).map_err(failed)
    }

    fn of(words: Mapping, shape: Shape) -> Index {
        Index {
            words,
            shape,
            #[cfg(test)]
            death: Default::default(),
        }
    }

    fn is_of(&self, label: &Label, boot: u128) -> bool {
        let head = self.shape.head(label, boot);
        // Acquire: pairs with the Release in `made`.
        self.word(READY).load(Acquire) == 1
            && head.iter().enumerate().all(|(n, word)| self.word(n).load(Relaxed) == *word)
    }
}

/// `None` if a file exists, and is no index of this shape.
fn found(path: &Path, shape: Shape) -> io::Result<Option<Index>> {
    let open = OpenOptions::new().read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
    let file = open?;
    let metadata = file.metadata()?;
    // The directory may be open to all users. The file of another user may change or be cut under this process.
    let mine = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0;
    if !mine {
        let why = "it belongs to another user; remove it, or choose another directory";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if !metadata.is_file() || metadata.len() != shape.words as u64 * 8 || metadata.blocks() * 512 < metadata.len() {
        return Ok(None);
    }
    Ok(Some(Index::of(Mapping::new(&file, shape.words)?, shape)))
}

fn made(path: &Path, shape: Shape, label: &Label, boot: u128) -> io::Result<Index> {
    // No other process has this name, because this one holds the drive's lock.
    let staged = path.with_extension("new");
    match fs::remove_file(&staged) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let make = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file: File = options.open(&staged)?;
        // Blocks for all of it: on a full file system a touch of a page without a block would end the process.
        fallocate(&file, FallocateFlags::empty(), 0, shape.words as u64 * 8)?;
        let index = Index::of(Mapping::new(&file, shape.words)?, shape);
        shape.head(label, boot).into_iter().enumerate().for_each(|(n, word)| index.word(n).store(word, Relaxed));
        // Release: a process that finds the index ready finds its head.
        index.word(READY).store(1, Release);
        fs::rename(&staged, path)?;
        Ok(index)
    };
    make().inspect_err(|_| drop(fs::remove_file(&staged)))
}

/// What distinguishes this run of the kernel from others. A guessed number would replace the index of other processes.
fn boot_id() -> io::Result<u128> {
    let text = match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        // Without procfs all runs count as one. Pages prove the summaries of another run.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        read => read?,
    };
    let id = u128::from_str_radix(&text.trim().replace('-', ""), 16);
    id.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's boot_id: {e}")))
}
