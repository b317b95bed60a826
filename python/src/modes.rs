//! An array that is opened again for writing, or for reading: [`change`]. Its files go with it. Non-goals: when that is done, which is
//! Python's side.
//!
//! The library opens an array for one or the other, so this closes it and opens it again. Between the two another process may take it,
//! or change it. Handles know their files by number, so none gets a file that has another content.

use std::path::PathBuf;
use std::sync::{Arc, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use iomill::{Array, ArrayOptions, Error, File, Listed};
use pyo3::prelude::*;

use crate::errors::{busy, exception};
use crate::handle::{Handle, State};

/// How often a change waits for calls that run, and how long each time.
const WAITS: u32 = 10_000;
const WAIT: Duration = Duration::from_millis(1);

/// An array, and what it is open for.
pub struct Opened {
    pub array: Array,
    pub writable: bool,
}

/// A handle that calls are kept out of, with its file and the name that the file has now.
struct Moved<'a> {
    handle: &'a Handle,
    state: RwLockWriteGuard<'a, State>,
    file: Arc<File>,
    name: String,
}

/// Opens an array again. False if a file without a name is open: it would be lost. After an error it is open as before, unless another
/// process has taken it. Then nothing is left in `opened`.
pub fn change(
    opened: &mut Option<Opened>,
    handles: &[Arc<Handle>],
    writable: bool,
    options: &ArrayOptions,
) -> PyResult<bool> {
    let Some(old) = opened.as_ref() else { return Err(exception(Error::Closed)) };
    if old.writable == writable {
        return Ok(true);
    }
    let info = old.array.info().map_err(exception)?;
    let drives: Vec<PathBuf> = info.drives.iter().map(|drive| drive.path.clone()).collect();
    let Some(mut moved) = keep_calls_out(&old.array, handles)? else { return Ok(false) };
    wait_for_calls(&moved)?;
    let was_writable = old.writable;
    let closed = match opened.take() {
        Some(old) => old.array.close(),
        None => Ok(()),
    };
    let open = |writable: bool| -> iomill::Result<Opened> {
        let array = options.clone().read_only(!writable).open_at(&drives)?;
        if array.info()?.id != info.id {
            return Err(Error::invalid("the array", "other drives were put in the place of its drives"));
        }
        Ok(Opened { array, writable })
    };
    let (now, failed) = match open(writable) {
        Ok(now) => (Some(now), None),
        Err(error) => (open(was_writable).ok(), Some(error)),
    };
    for moved in &mut moved {
        *moved.state = match &now {
            Some(now) => moved.handle.again(now.array.open_version(&moved.name, moved.handle.version)),
            None => State::Lost,
        };
    }
    *opened = now;
    match failed.or(closed.err()) {
        Some(error) => Err(exception(error)),
        None => Ok(true),
    }
}

/// Locks all handles that have files. `None` if one of these has lost its name.
fn keep_calls_out<'a>(array: &Array, handles: &'a [Arc<Handle>]) -> PyResult<Option<Vec<Moved<'a>>>> {
    let mut moved = Vec::with_capacity(handles.len());
    for handle in handles {
        let state = handle.write();
        let State::Open(file) = &*state else { continue };
        let file = Arc::clone(file);
        let Some(name) = name_of(array, file.name(), handle.version).map_err(exception)? else { return Ok(None) };
        moved.push(Moved { handle, state, file, name });
    }
    Ok(Some(moved))
}

/// The name that the file with this number has now.
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

/// Waits until only the handles have their files.
fn wait_for_calls(moved: &[Moved<'_>]) -> PyResult<()> {
    // Each handle has one, and `moved` another.
    let runs = |moved: &Moved<'_>| Arc::strong_count(&moved.file) > 2;
    for _ in 0..WAITS {
        if !moved.iter().any(runs) {
            return Ok(());
        }
        thread::sleep(WAIT);
    }
    Err(busy(
        "calls of this process on files of the array have run for 10 s; open it for writing after they have ended",
    ))
}
