//! The table of a ring's registered files. With it the kernel need not look up each request's descriptor.
//!
//! Goals: at most one cheap lookup per request, however many files there are. Non-goals: registering every file. A
//! file without an entry uses its plain descriptor, which always works and is a little slower. So does each sync.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io;

use io_uring::Submitter;

use crate::engine::FileRef;
use crate::sys::fs::Handle;
use crate::sys::hash::NumberHasher;

/// Entries in the table.
pub(super) const TABLE_FILES: u32 = 256;

/// A file keeps its entry for at least this many requests after its last use. Each change of the table is a system
/// call. So work on more files than there are entries must not change the table for every request.
const KEEP_REQUESTS: u64 = 4096;

/// How a request names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// An entry in the table.
    Fixed(u32),
    /// The descriptor.
    Plain(i32),
}

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// The key of the file, or `None` for a free entry. `by_key` maps exactly this key to this entry.
    key: Option<u64>,
    /// The number of the last request that used it. `u64::MAX` for an entry that is never used again.
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FileTable {
    by_key: HashMap<u64, u32, BuildHasherDefault<NumberHasher>>,
    /// The entries that change. In the kernel's table they come after the `held` entries.
    entries: Vec<TableEntry>,
    /// Free entries, as indices into `entries`.
    free: Vec<u32>,
    /// The number of entries for `hold` handles. These entries never change.
    held: u32,
    /// The key and index of the last lookup: most batches stay with one file.
    last: Option<(u64, u32)>,
    /// Requests so far.
    requests: u64,
    /// The number of the request from which on the table may change again. Set when all entries were in use, or when
    /// the kernel refused a change.
    retry_at: u64,
}

impl FileTable {
    /// Registers a table with `hold` in its first entries, and the others empty. If the limits allow no table, there is
    /// none. That is an error only if `hold` is not empty.
    pub(super) fn new(submitter: &Submitter<'_>, hold: &[Handle]) -> io::Result<FileTable> {
        let held = u32::try_from(hold.len()).ok().filter(|held| *held <= TABLE_FILES);
        let held = held.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "too many files to hold"))?;
        let mut size = TABLE_FILES + held;
        let registered = loop {
            match register_empty(submitter, size) {
                Ok(()) => break size,
                // A table counts against the limit of open files.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && size > held.max(1) => {
                    size = (size / 2).max(held);
                }
                Err(error) if held > 0 => return Err(error),
                Err(_) => break 0,
            }
        };
        if held > 0 {
            let descriptors: Vec<i32> = hold.iter().map(|handle| handle.0).collect();
            submitter.register_files_update(0, &descriptors)?;
        }
        let count = registered - held;
        Ok(FileTable {
            by_key: HashMap::with_capacity_and_hasher(count as usize * 2, BuildHasherDefault::default()),
            entries: vec![TableEntry { key: None, used: 0 }; count as usize],
            free: (0..count).rev().collect(),
            held,
            last: None,
            requests: 0,
            retry_at: 0,
        })
    }

    /// How a request names `file`. `None` if the `queued` requests must be submitted first, because one of them may use
    /// the entry that `file` would take.
    pub(super) fn resolve(&mut self, submitter: &Submitter<'_>, file: FileRef, queued: bool) -> Option<Target> {
        if file.is_by_descriptor() {
            return Some(Target::Plain(file.handle.0));
        }
        self.requests += 1;
        let known = match self.last {
            Some((key, index)) if key == file.key => Some(index),
            _ => self.by_key.get(&file.key).copied(),
        };
        if let Some(index) = known {
            self.last = Some((file.key, index));
            self.entries[index as usize].used = self.requests;
            return Some(Target::Fixed(self.held + index));
        }
        if self.requests < self.retry_at {
            return Some(Target::Plain(file.handle.0));
        }
        self.admit(submitter, file, queued)
    }

    /// Gives a file an entry: a free one, or the entry that was idle longest.
    fn admit(&mut self, submitter: &Submitter<'_>, file: FileRef, queued: bool) -> Option<Target> {
        let plain = Some(Target::Plain(file.handle.0));
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                let oldest = (0..).zip(&self.entries).min_by_key(|(_, entry)| entry.used);
                let Some((index, used)) = oldest.map(|(index, oldest)| (index, oldest.used)) else { return plain };
                let idle_at = used.saturating_add(KEEP_REQUESTS);
                if self.requests < idle_at {
                    self.retry_at = idle_at.min(self.requests + KEEP_REQUESTS / 16);
                    return plain;
                }
                if queued {
                    return None;
                }
                index
            }
        };
        // Reads and writes in flight have found the old file at their submission, and keep it open.
        match submitter.register_files_update(self.held + index, &[file.handle.0]) {
            Ok(_) => {}
            Err(_) => {
                // Whatever the reason, the request gets its true result by the plain descriptor.
                self.retry_at = self.requests + KEEP_REQUESTS;
                return plain;
            }
        }
        if self.free.last() == Some(&index) {
            self.free.pop();
        } else if let Some(old) = self.entries[index as usize].key {
            self.by_key.remove(&old);
        }
        self.entries[index as usize] = TableEntry { key: Some(file.key), used: self.requests };
        self.by_key.insert(file.key, index);
        self.last = Some((file.key, index));
        Some(Target::Fixed(self.held + index))
    }

    /// Gives up a file's entry, and with it the kernel's hold on the file.
    pub(super) fn forget(&mut self, submitter: &Submitter<'_>, key: u64) {
        let Some(index) = self.by_key.remove(&key) else { return };
        self.last = self.last.filter(|(last, _)| *last != key);
        self.entries[index as usize] = TableEntry { key: None, used: u64::MAX };
        // If the kernel does not clear the entry, it is never used again: with `u64::MAX` it is never the oldest.
        if submitter.register_files_update(self.held + index, &[-1]).is_ok() {
            self.free.push(index);
        }
    }
}

/// Makes a table without files. Kernels before 5.19 need a list of empty entries.
fn register_empty(submitter: &Submitter<'_>, count: u32) -> io::Result<()> {
    match submitter.register_files_sparse(count) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => submitter.register_files(&vec![-1; count as usize]),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use io_uring::IoUring;

    use super::*;

    #[test]
    fn a_full_table_keeps_what_is_in_use_and_gives_up_what_is_idle() {
        // Machines that forbid io_uring have nothing to test here.
        let Ok(ring) = IoUring::new(8) else { return };
        let submitter = ring.submitter();
        let file = File::open("/proc/self/exe").unwrap();
        let handle = Handle(file.as_raw_fd());
        let mut table = FileTable::new(&submitter, &[handle]).unwrap();
        // A low limit of open files allows fewer entries than requested.
        let count = table.entries.len();
        assert!(count > 1 && count <= TABLE_FILES as usize);
        let mut resolve = |key, queued| table.resolve(&submitter, FileRef { handle, key }, queued);
        let mut entries = Vec::new();
        for key in 0..count as u64 {
            let Some(Target::Fixed(index)) = resolve(key, true) else { panic!("no entry for {key}") };
            assert!(index > 0, "the first entry is held");
            entries.push(index);
        }
        entries.sort_unstable();
        entries.dedup();
        assert_eq!(entries.len(), count, "every file has an entry of its own");
        assert_eq!(resolve(1000, true), Some(Target::Plain(handle.0)), "all others were used a moment ago");
        for _ in 0..KEEP_REQUESTS {
            assert!(matches!(resolve(1, true), Some(Target::Fixed(_))));
        }
        assert_eq!(resolve(1000, true), None, "an idle entry is there, but requests are queued");
        let Some(Target::Fixed(index)) = resolve(1000, false) else { panic!("an idle entry should have been taken") };
        assert_eq!(resolve(1000, true), Some(Target::Fixed(index)));
        table.forget(&submitter, 1000);
        let again = table.resolve(&submitter, FileRef { handle, key: 1001 }, true);
        assert_eq!(again, Some(Target::Fixed(index)), "a forgotten file's entry is free");
    }

    #[test]
    fn a_refused_file_goes_by_its_descriptor() {
        let Ok(ring) = IoUring::new(8) else { return };
        let submitter = ring.submitter();
        let mut table = FileTable::new(&submitter, &[]).unwrap();
        let file = FileRef { handle: Handle(987_654), key: 5 };
        assert_eq!(table.resolve(&submitter, file, false), Some(Target::Plain(987_654)));
        assert!(FileTable::new(&submitter, &[Handle(987_654)]).is_err(), "a handle that cannot be held is an error");
    }
}
