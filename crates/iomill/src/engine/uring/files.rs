//! The table of files that a ring has registered, so that the kernel need not look up each request's descriptor.
//!
//! Goals: at most one cheap look-up per request, however many files there are. Non-goals: registering every file. A
//! file without a place uses its plain descriptor, which always works and is a little slower.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;

use io_uring::Submitter;

use crate::engine::FileRef;
use crate::sys::fs::Handle;

/// Places in the table.
pub(super) const TABLE_FILES: u32 = 256;

/// A file keeps its place for at least this many requests after its last use. So work on more files than places does
/// not change the table, by a system call, for every request.
const KEEP_REQUESTS: u64 = 4096;

/// How a request names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A place in the table.
    Fixed(u32),
    /// The descriptor.
    Plain(i32),
}

/// What is at one place of the table.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The file, or `None` for a free place. `by_key` maps exactly this key to this place.
    key: Option<u64>,
    /// The number of the request that used it last.
    used: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FileTable {
    by_key: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    /// The places behind those of the `hold` handles, which are never given up.
    places: Vec<Place>,
    /// Places with nothing in them, as indices into `places`.
    free: Vec<u32>,
    /// The number of places for `hold` handles.
    held: u32,
    /// The file of the last look-up: most batches stay with one file.
    last: Option<(u64, u32)>,
    /// Requests so far.
    requests: u64,
    /// No further change is tried before this request, since the kernel refused the last change.
    retry_at: u64,
}

impl FileTable {
    /// Registers an empty table, and `hold` in its first places. If the limits allow no table, there is none. That is
    /// an error only if `hold` is not empty.
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
            places: vec![Place { key: None, used: 0 }; count as usize],
            free: (0..count).rev().collect(),
            held,
            last: None,
            requests: 0,
            retry_at: 0,
        })
    }

    /// How a request for `file` names it. `None` if the queued requests must reach the kernel first, since one of them
    /// may use the place that is to be given up.
    pub(super) fn resolve(&mut self, submitter: &Submitter<'_>, file: FileRef, queued: bool) -> Option<Target> {
        self.requests += 1;
        let known = match self.last {
            Some((key, place)) if key == file.key => Some(place),
            _ => self.by_key.get(&file.key).copied(),
        };
        if let Some(place) = known {
            self.last = Some((file.key, place));
            self.places[place as usize].used = self.requests;
            return Some(Target::Fixed(self.held + place));
        }
        if self.requests < self.retry_at {
            return Some(Target::Plain(file.handle.0));
        }
        self.admit(submitter, file, queued)
    }

    /// Finds a place for a file that has no place.
    fn admit(&mut self, submitter: &Submitter<'_>, file: FileRef, queued: bool) -> Option<Target> {
        let plain = Some(Target::Plain(file.handle.0));
        let place = match self.free.last() {
            Some(place) => *place,
            None => {
                let oldest = (0..).zip(&self.places).min_by_key(|(_, place)| place.used);
                let Some((place, used)) = oldest.map(|(place, oldest)| (place, oldest.used)) else { return plain };
                let idle_at = used.saturating_add(KEEP_REQUESTS);
                if self.requests < idle_at {
                    self.retry_at = idle_at.min(self.requests + KEEP_REQUESTS / 16);
                    return plain;
                }
                if queued {
                    return None;
                }
                place
            }
        };
        // Requests in flight on the old file keep it open: the kernel counts its users.
        match submitter.register_files_update(self.held + place, &[file.handle.0]) {
            Ok(_) => {}
            Err(_) => {
                // Whatever the reason, the request gets its true result by the plain descriptor.
                self.retry_at = self.requests + KEEP_REQUESTS;
                return plain;
            }
        }
        if self.free.last() == Some(&place) {
            self.free.pop();
        } else if let Some(old) = self.places[place as usize].key {
            self.by_key.remove(&old);
        }
        self.places[place as usize] = Place { key: Some(file.key), used: self.requests };
        self.by_key.insert(file.key, place);
        self.last = Some((file.key, place));
        Some(Target::Fixed(self.held + place))
    }

    /// Gives up a file's place, and with it the kernel's hold on the file.
    pub(super) fn forget(&mut self, submitter: &Submitter<'_>, key: u64) {
        let Some(place) = self.by_key.remove(&key) else { return };
        self.last = self.last.filter(|(last, _)| *last != key);
        self.places[place as usize] = Place { key: None, used: u64::MAX };
        // A place that the kernel does not clear is never used again: `u64::MAX` keeps it from being the oldest.
        if submitter.register_files_update(self.held + place, &[-1]).is_ok() {
            self.free.push(place);
        }
    }
}

/// Makes a table without files. Kernels before 5.19 need a list of empty places.
fn register_empty(submitter: &Submitter<'_>, count: u32) -> io::Result<()> {
    match submitter.register_files_sparse(count) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => submitter.register_files(&vec![-1; count as usize]),
        result => result,
    }
}

/// Keys are small unique numbers, so one multiplication spreads them.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let spread = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
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
        // There is nothing to test on machines that forbid io_uring; the fallback has its own tests.
        let Ok(ring) = IoUring::new(8) else { return };
        let submitter = ring.submitter();
        let file = File::open("/proc/self/exe").unwrap();
        let handle = Handle(file.as_raw_fd());
        let mut table = FileTable::new(&submitter, &[handle]).unwrap();
        // Less, where few files may be open.
        let count = table.places.len();
        assert!(count > 1 && count <= TABLE_FILES as usize);
        let mut resolve = |key, queued| table.resolve(&submitter, FileRef { handle, key }, queued);
        let mut places = Vec::new();
        for key in 0..count as u64 {
            let Some(Target::Fixed(place)) = resolve(key, true) else { panic!("no place for {key}") };
            assert!(place > 0, "the first place is held");
            places.push(place);
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count, "every file has a place of its own");
        assert_eq!(resolve(1000, true), Some(Target::Plain(handle.0)), "all others were used a moment ago");
        for _ in 0..KEEP_REQUESTS {
            assert!(matches!(resolve(1, true), Some(Target::Fixed(_))));
        }
        assert_eq!(resolve(1000, true), None, "an idle place is there, but requests are queued");
        let Some(Target::Fixed(place)) = resolve(1000, false) else { panic!("an idle place should have been taken") };
        assert_eq!(resolve(1000, true), Some(Target::Fixed(place)));
        table.forget(&submitter, 1000);
        let again = table.resolve(&submitter, FileRef { handle, key: 1001 }, true);
        assert_eq!(again, Some(Target::Fixed(place)), "a forgotten file's place is free");
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
