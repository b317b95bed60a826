//! [`Faults`] of a drive in tests: the death of its process at any step of an append, failing writes, and writes that a
//! crash of the machine loses. Non-goals: hanging drives, which have flags of their own (`drive`).

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use crate::notices::locked;

/// The death of a process after a number of steps: writes to drives, and stores to indexes. No thread of the process
/// gets past its end.
#[derive(Debug, Default)]
pub struct Death {
    left: AtomicI64,
}

/// The payload of a thread that ends by a [`Death`].
pub struct Killed;

impl Death {
    pub fn after(steps: u32) -> Arc<Death> {
        Arc::new(Death { left: AtomicI64::new(steps.into()) })
    }

    /// Ends the thread, without a message, if the process is dead.
    pub fn step(&self) {
        if self.comes() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// The process is dead from now on.
    pub fn now(&self) {
        self.left.store(0, Relaxed);
    }

    fn comes(&self) -> bool {
        self.left.fetch_sub(1, Relaxed) <= 0
    }
}

/// Panics again if a thread has panicked for another reason.
pub fn only_killed(ended: Result<(), Box<dyn Any + Send>>) {
    match ended {
        Err(payload) if !payload.is::<Killed>() && !std::thread::panicking() => resume_unwind(payload),
        _ => {}
    }
}

/// A page before a write, of all drives of a cache.
#[derive(Debug)]
pub struct Overwritten {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// The pages that a crash of the machine may bring back.
pub type Unsynced = Arc<Mutex<Vec<Overwritten>>>;

/// The most pages that a crash brings back.
const UNSYNCED_MOST: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Faults {
    pub death: Mutex<Option<Arc<Death>>>,
    /// The pages of a killed write that were written nevertheless.
    pub torn: Mutex<usize>,
    /// The error of the next writes, and their number.
    pub failing: Mutex<Option<(Errno, u32)>>,
    /// The file system gives blocks only to writes.
    pub allocates_nothing: AtomicBool,
    pub unsynced: Mutex<Option<Unsynced>>,
    /// Other threads run between the lookup of a granule and its mark.
    pub marks_slowly: AtomicBool,
}

impl Faults {
    /// Is called before a write.
    pub fn before_write(&self, file: &File, path: PathBuf, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some((errno, left)) = locked(&self.failing).as_mut().filter(|(_, left)| *left > 0) {
            *left -= 1;
            return Err((*errno).into());
        }
        if let Some(unsynced) = &*locked(&self.unsynced) {
            note(unsynced, &path, bytes.len(), offset);
        }
        if let Some(death) = &*locked(&self.death)
            && death.comes()
        {
            // The buffer is aligned for direct I/O, and so is a part of it that is whole pages.
            let torn = (*locked(&self.torn) * 4096).min(bytes.len());
            let _dead = file.write_all_at(&bytes[..torn], offset);
            resume_unwind(Box::new(Killed));
        }
        Ok(())
    }

    pub fn between_lookup_and_mark(&self) {
        if self.marks_slowly.load(Relaxed) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Whether an allocation is refused.
    pub fn allocation(&self) -> Result<(), Errno> {
        if self.allocates_nothing.load(Relaxed) { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}

fn note(unsynced: &Unsynced, path: &Path, len: usize, offset: u64) {
    // A test may have cut the file, or taken it away.
    let file = File::open(path).ok();
    let mut pages = locked(unsynced);
    for at in (offset..offset + len as u64).step_by(4096) {
        let mut bytes = vec![0; 4096];
        let _cut = file.as_ref().map(|file| file.read_exact_at(&mut bytes, at));
        pages.push(Overwritten { path: path.to_owned(), offset: at, bytes });
    }
    let extra = pages.len().saturating_sub(UNSYNCED_MOST);
    pages.drain(..extra);
}
