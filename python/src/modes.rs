//! Reopening an array for writing or for reading: [`change`]. Its files stay open. Non-goals: the moment, which the
//! Python half chooses.
//!
//! The library opens an array in one mode, so this closes the array and opens it again. Between the two another process
//! may open or change it. Handles identify their files by number, so none gets a file with another content. If the other
//! process keeps this one out, the array is [`Slot::Away`] until [`come_back`].

use std::path::PathBuf;
use std::sync::{Arc, RwLockWriteGuard, Weak};
use std::thread;
use std::time::Duration;

use iomill::{Array, ArrayOptions, Error, File, Listed};
use pyo3::prelude::*;

use crate::errors::{away, busy, exception};
use crate::handle::{Handle, State};

/// The number of times that a change looks for running calls, and the time between two looks.
const WAITS: u32 = 10_000;
const WAIT: Duration = Duration::from_millis(1);

/// An array, and its mode.
pub struct Opened {
    pub array: Array,
    pub writable: bool,
}

/// The array of a Python object.
pub enum Slot {
    /// It is open.
    Open(Opened),
    /// It could not be opened again, usually because another process has opened it.
    Away(Away),
    /// It was closed.
    Closed,
}

/// What is needed to open an array again, with its files.
pub struct Away {
    drives: Vec<PathBuf>,
    id: String,
    /// The handles that have files, with their names.
    handles: Vec<(Weak<Handle>, String)>,
}

impl Away {
    fn open(&self, writable: bool, options: &ArrayOptions) -> iomill::Result<Opened> {
        let array = options.clone().read_only(!writable).open_at(&self.drives)?;
        if array.info()?.id != self.id {
            return Err(Error::invalid("the set of drives", "other drives were put in the place of its drives"));
        }
        Ok(Opened { array, writable })
    }
}

/// A handle that is locked against calls, with its file and the file's present name.
struct Moved<'a> {
    handle: &'a Arc<Handle>,
    state: RwLockWriteGuard<'a, State>,
    file: Arc<File>,
    name: String,
}

/// Reopens an array. If a file without a name is open, the array stays as it is, because that file would be lost. Then
/// this returns the file's handle. After an error the array is open as before, unless another process has opened it.
/// Then it is away. For reading that is no error, because nothing is lost.
pub fn change(
    slot: &mut Slot,
    handles: &[Arc<Handle>],
    writable: bool,
    options: &ArrayOptions,
) -> PyResult<Option<Weak<Handle>>> {
    let old = match slot {
        Slot::Open(old) => old,
        Slot::Away(_) => return Err(away()),
        Slot::Closed => return Err(exception(Error::Closed)),
    };
    if old.writable == writable {
        return Ok(None);
    }
    let info = old.array.info().map_err(exception)?;
    let mut moved = match keep_calls_out(&old.array, handles)? {
        Ok(moved) => moved,
        Err(nameless) => return Ok(Some(Arc::downgrade(nameless))),
    };
    wait_for_calls(&moved)?;
    let away = Away {
        drives: info.drives.iter().map(|drive| drive.path.clone()).collect(),
        id: info.id,
        handles: moved.iter().map(|moved| (Arc::downgrade(moved.handle), moved.name.clone())).collect(),
    };
    let was_writable = old.writable;
    let closed = match std::mem::replace(slot, Slot::Closed) {
        Slot::Open(old) => old.array.close(),
        Slot::Away(_) | Slot::Closed => Ok(()),
    };
    let (now, mut failed) = match away.open(writable, options) {
        Ok(now) => (Some(now), None),
        Err(error) => (away.open(was_writable, options).ok(), Some(error)),
    };
    for moved in &mut moved {
        *moved.state = match &now {
            Some(now) => moved.handle.again(now.array.open_version(&moved.name, moved.handle.version)),
            None => State::Away,
        };
    }
    *slot = match now {
        Some(now) => Slot::Open(now),
        None => {
            if !writable {
                failed = None;
            }
            Slot::Away(away)
        }
    };
    // A failed close comes first, because writes may be lost.
    match closed.err().or(failed) {
        Some(error) => Err(exception(error)),
        None => Ok(None),
    }
}

/// Opens an array that is away, with its files. Otherwise it does nothing.
pub fn come_back(slot: &mut Slot, writable: bool, options: &ArrayOptions) -> PyResult<()> {
    let Slot::Away(away) = slot else { return Ok(()) };
    let opened = away.open(writable, options).map_err(exception)?;
    for (handle, name) in &away.handles {
        let Some(handle) = handle.upgrade() else { continue };
        let mut state = handle.write();
        if let State::Away = *state {
            // The other process may have renamed, replaced or deleted the file.
            *state = match name_of(&opened.array, name, handle.version) {
                Ok(Some(name)) => handle.again(opened.array.open_version(&name, handle.version)),
                Ok(None) | Err(_) => State::Lost,
            };
        }
    }
    *slot = Slot::Open(opened);
    Ok(())
}

/// Locks all handles that have files. The inner error is a handle with a file without a name.
fn keep_calls_out<'a>(
    array: &Array,
    handles: &'a [Arc<Handle>],
) -> PyResult<std::result::Result<Vec<Moved<'a>>, &'a Arc<Handle>>> {
    let mut moved = Vec::with_capacity(handles.len());
    for handle in handles {
        let state = handle.write();
        let State::Open(file) = &*state else { continue };
        let file = Arc::clone(file);
        let name = name_of(array, file.name(), handle.version).map_err(exception)?;
        let Some(name) = name else { return Ok(Err(handle)) };
        moved.push(Moved { handle, state, file, name });
    }
    Ok(Ok(moved))
}

/// The present name of the file with this number.
fn name_of(array: &Array, name: &str, version: u64) -> iomill::Result<Option<String>> {
    match array.stat(name) {
        Ok(stat) if stat.version == version => return Ok(Some(stat.name)),
        Ok(_) | Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    // It was renamed or deleted.
    for entry in array.list("") {
        if let Listed::File(file) = entry?
            && file.version == version
        {
            return Ok(Some(file.name));
        }
    }
    Ok(None)
}

/// Waits until only the handles hold their files.
fn wait_for_calls(moved: &[Moved<'_>]) -> PyResult<()> {
    // Each handle holds one reference, and `moved` another.
    let runs = |moved: &Moved<'_>| Arc::strong_count(&moved.file) > 2;
    for _ in 0..WAITS {
        if !moved.iter().any(runs) {
            return Ok(());
        }
        thread::sleep(WAIT);
    }
    Err(busy(
        "calls of this process on files of the drives have run for 10 s; open them for writing after they have ended",
    ))
}
