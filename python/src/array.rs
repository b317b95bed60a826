//! Sets of drives, which are arrays of the library: the classes [`NativeArray`] and [`NativeDraft`].

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use iomill::{Array, ArrayOptions, Draft, DriveInfo, FileOptions, Ground, Layout, Listed, PutOptions, When};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, away, closed};
use crate::file::NativeFile;
use crate::handle::Handle;
use crate::modes::{Opened, Slot, change, come_back};
use crate::words::words;

/// An array of drives. Calls hold its lock for reading, so a change of the mode waits for them.
#[pyclass(frozen, module = "iomill._iomill", name = "Drives")]
pub struct NativeArray {
    slot: RwLock<Slot>,
    /// The handles of its files.
    handles: Mutex<Handles>,
    cache_bytes: Option<u64>,
}

/// The handles of an array's files. Its lock is held for moments, by threads with the interpreter or by a change of the
/// mode. So no thread holds it at a fork.
#[derive(Default)]
struct Handles {
    all: Vec<Weak<Handle>>,
    /// Dropped ones are removed when the list has this length.
    most: usize,
    /// The number of times the array was reopened.
    changes: u64,
    /// The handle with a file without a name that the last change to reading has found.
    nameless: Weak<Handle>,
}

impl NativeArray {
    fn new(array: Array, writable: bool, cache_bytes: Option<u64>) -> NativeArray {
        let slot = RwLock::new(Slot::Open(Opened { array, writable }));
        NativeArray { slot, handles: Mutex::default(), cache_bytes }
    }

    fn slot(&self) -> RwLockReadGuard<'_, Slot> {
        self.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot_to_change(&self) -> RwLockWriteGuard<'_, Slot> {
        self.slot.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call without the interpreter (rule 1 of [`crate::handle`]).
    fn with<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&Array) -> iomill::Result<T> + Send) -> PyResult<T> {
        py.detach(|| match &*self.slot() {
            Slot::Open(opened) => call(&opened.array).or_raise(),
            Slot::Away(_) => Err(away()),
            Slot::Closed => Err(iomill::Error::Closed).or_raise(),
        })
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file by a call that also returns the file's version.
    fn hold(
        &self,
        py: Python<'_>,
        writable: bool,
        open: impl Fn(&Array) -> iomill::Result<(iomill::File, u64)> + Send + Sync,
    ) -> PyResult<NativeFile> {
        loop {
            let changes = self.handles().changes;
            let (file, version) = self.with(py, &open)?;
            let held = NativeFile::new(file, version, writable);
            let mut handles = self.handles();
            if handles.changes != changes {
                // The file is of an earlier opening.
                continue;
            }
            if handles.all.len() >= handles.most {
                handles.all.retain(|handle| handle.strong_count() > 0);
                handles.most = 2 * handles.all.len() + 64;
            }
            handles.all.push(Arc::downgrade(held.handle()));
            return Ok(held);
        }
    }
}

fn options(cache_bytes: Option<u64>) -> ArrayOptions {
    let options = ArrayOptions::new();
    match cache_bytes {
        Some(bytes) => options.cache_bytes(bytes),
        None => options,
    }
}

/// Opens the array that a drive belongs to. Without a size its cache is the default one, divided by `share`.
#[pyfunction]
#[pyo3(signature = (drive, writable=false, cache_bytes=None, share=1))]
pub fn open_drives(
    py: Python<'_>,
    drive: PathBuf,
    writable: bool,
    cache_bytes: Option<u64>,
    share: u64,
) -> PyResult<NativeArray> {
    let opened = py.detach(|| {
        let array = options(cache_bytes).read_only(!writable).open(drive)?;
        divide(array, cache_bytes, share)
    });
    let (array, cache_bytes) = opened.or_raise()?;
    Ok(NativeArray::new(array, writable, cache_bytes))
}

/// Divides the cache of an array, unless its size was given.
fn divide(array: Array, cache_bytes: Option<u64>, share: u64) -> iomill::Result<(Array, Option<u64>)> {
    if cache_bytes.is_some() || share <= 1 {
        return Ok((array, cache_bytes));
    }
    let bytes = array.counters().cache_bytes / share;
    array.resize_cache(bytes)?;
    Ok((array, Some(bytes)))
}

/// Refuses an invalid name.
#[pyfunction]
pub fn check_name(name: &str) -> PyResult<()> {
    iomill::check_name(name).or_raise()
}

/// Makes a new array of directories.
#[pyfunction]
#[pyo3(signature = (drives, cache_bytes=None, share=1))]
pub fn create_drives(
    py: Python<'_>,
    drives: Vec<PathBuf>,
    cache_bytes: Option<u64>,
    share: u64,
) -> PyResult<NativeArray> {
    let created = py.detach(|| divide(options(cache_bytes).create(drives)?, cache_bytes, share));
    let (array, cache_bytes) = created.or_raise()?;
    Ok(NativeArray::new(array, true, cache_bytes))
}

/// A file without a name. `None` after it was published or discarded.
#[pyclass(frozen, module = "iomill._iomill", name = "Draft")]
pub struct NativeDraft(Mutex<Option<Draft>>);

impl NativeDraft {
    fn take(&self) -> Option<Draft> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl NativeDraft {
    /// The handle does not follow the array into another opening: a writer keeps the array open for writing.
    fn file(&self) -> PyResult<NativeFile> {
        let draft = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(NativeFile::new(draft.as_ref().ok_or_else(closed)?.file().clone(), 0, true))
    }

    /// Sets an attribute of the file, or removes it.
    #[pyo3(signature = (key, value))]
    fn set_attribute(&self, py: Python<'_>, key: &str, value: Option<&str>) -> PyResult<()> {
        let draft = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let draft = draft.as_ref().ok_or_else(closed)?;
        py.detach(|| draft.set_attribute(key, value)).or_raise()
    }

    /// Syncs, and publishes the file. After an error the draft is discarded.
    fn publish(&self, py: Python<'_>, name: &str, replace: bool) -> PyResult<()> {
        let draft = self.take().ok_or_else(closed)?;
        py.detach(|| draft.publish(name, when(replace))).or_raise().map(drop)
    }

    /// Discards the file, unless it was published.
    fn close(&self, py: Python<'_>) {
        let draft = self.take();
        py.detach(|| drop(draft));
    }
}

fn when(replace: bool) -> When {
    if replace { When::Always } else { When::Absent }
}

/// Options of a file by the name of its layout, its size of blocks, and whether pages have checksums.
fn file_options(layout: Option<&str>, block_bytes: Option<u32>, checksums: bool) -> PyResult<FileOptions> {
    const LAYOUTS: [Layout; 3] = [Layout::Striping, Layout::Rotated, Layout::Hash];
    let options = match layout {
        None => FileOptions::new(),
        Some(name) => {
            FileOptions::new().layout(LAYOUTS.into_iter().find(|layout| layout.name() == name).ok_or_else(|| {
                let names = LAYOUTS.map(Layout::name).join(", ");
                PyValueError::new_err(format!("no layout named {name:?}; there are: {names}"))
            })?)
        }
    };
    let options = options.checksums(checksums);
    Ok(match block_bytes {
        Some(bytes) => options.block_bytes(bytes),
        None => options,
    })
}

/// Opens a file, and returns its version, too.
fn versioned(array: &Array, name: &str) -> iomill::Result<(iomill::File, u64)> {
    loop {
        let version = array.stat(name)?.version;
        match array.open_version(name, version) {
            // Another thread has replaced the file of the name.
            Err(iomill::Error::Conflict { .. }) => {}
            opened => return Ok((opened?, version)),
        }
    }
}

/// The file systems of the drives, each once.
fn grounds(drives: Vec<DriveInfo>) -> Vec<Ground> {
    let mut grounds: Vec<Ground> = drives.into_iter().map(|drive| drive.ground).collect();
    grounds.sort_by_key(|ground| ground.device_id);
    grounds.dedup_by_key(|ground| ground.device_id);
    grounds
}

#[pymethods]
impl NativeArray {
    /// The mode of the opening: `r` or `r+`. `away` if it could not be opened again, `None` if it is closed.
    #[getter]
    fn mode(&self, py: Python<'_>) -> Option<&'static str> {
        py.detach(|| match &*self.slot() {
            Slot::Open(opened) => Some(if opened.writable { "r+" } else { "r" }),
            Slot::Away(_) => Some("away"),
            Slot::Closed => None,
        })
    }

    fn open(&self, py: Python<'_>, name: &str, writable: bool) -> PyResult<NativeFile> {
        self.hold(py, writable, |array| versioned(array, name))
    }

    #[pyo3(signature = (name, layout=None, block_bytes=None, checksums=false))]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        layout: Option<&str>,
        block_bytes: Option<u32>,
        checksums: bool,
    ) -> PyResult<NativeFile> {
        let options = file_options(layout, block_bytes, checksums)?;
        self.with(py, |array| array.create_file(name, &options).map(drop))?;
        self.hold(py, true, |array| versioned(array, name))
    }

    #[pyo3(signature = (layout=None, block_bytes=None, checksums=false))]
    fn draft(
        &self,
        py: Python<'_>,
        layout: Option<&str>,
        block_bytes: Option<u32>,
        checksums: bool,
    ) -> PyResult<NativeDraft> {
        let options = file_options(layout, block_bytes, checksums)?;
        Ok(NativeDraft(Mutex::new(Some(self.with(py, |array| array.draft(&options))?))))
    }

    /// Writes a whole file, durably.
    #[pyo3(signature = (name, content, replace, layout=None, block_bytes=None, checksums=false))]
    #[expect(clippy::too_many_arguments, reason = "they are Python's")]
    fn put(
        &self,
        py: Python<'_>,
        name: &str,
        content: Vec<u8>,
        replace: bool,
        layout: Option<&str>,
        block_bytes: Option<u32>,
        checksums: bool,
    ) -> PyResult<()> {
        let options = PutOptions::new().when(when(replace)).file(file_options(layout, block_bytes, checksums)?);
        self.with(py, |array| array.put(name, &content, &options).map(drop))
    }

    fn copy(&self, py: Python<'_>, from: &str, to: &str, replace: bool) -> PyResult<()> {
        self.with(py, |array| array.copy(from, to, when(replace)).map(drop))
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |array| array.delete(name))
    }

    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.with(py, |array| array.rename(old, new))
    }

    #[pyo3(signature = (name, key, value))]
    fn set_attribute(&self, py: Python<'_>, name: &str, key: &str, value: Option<&str>) -> PyResult<()> {
        self.with(py, |array| array.set_attribute(name, key, value))
    }

    #[pyo3(signature = (prefix=""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        self.with(py, |array| array.list(prefix).names())
    }

    /// The number of files.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |array| Ok(array.info()?.files))
    }

    /// The files with a prefix: name, length, version, and the times of the creation and of the last change in
    /// nanoseconds. With a delimiter also the common prefixes: as names that end with it, with zeros.
    #[pyo3(signature = (prefix, delimiter=None))]
    fn entries(&self, py: Python<'_>, prefix: &str, delimiter: Option<char>) -> PyResult<Vec<Entry>> {
        self.with(py, |array| {
            let listing = array.list(prefix);
            let listing = match delimiter {
                Some(delimiter) => listing.delimiter(delimiter),
                None => listing,
            };
            let entry = |listed: Listed| match listed {
                Listed::File(file) => {
                    Some((file.name, file.len_bytes, file.version, ns(file.created), ns(file.modified)))
                }
                Listed::Prefix(prefix) => Some((prefix, 0, 0, 0, 0)),
                _ => None,
            };
            listing.filter_map(|listed| listed.map(entry).transpose()).collect()
        })
    }

    /// Whether a name begins with a prefix.
    fn has_prefix(&self, py: Python<'_>, prefix: &str) -> PyResult<bool> {
        self.with(py, |array| Ok(array.list(prefix).next().transpose()?.is_some()))
    }

    /// The metadata of a file, without opening it.
    fn stat<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        let stat = self.with(py, |array| array.stat(name))?;
        let said = PyDict::new(py);
        said.set_item("name", stat.name)?;
        said.set_item("size", stat.len_bytes)?;
        said.set_item("version", stat.version)?;
        said.set_item("created_ns", ns(stat.created))?;
        said.set_item("modified_ns", ns(stat.modified))?;
        said.set_item("layout", stat.layout.name())?;
        said.set_item("block_bytes", stat.block_bytes)?;
        said.set_item("checksums", stat.checksums)?;
        said.set_item("drives", stat.drives)?;
        said.set_item("attributes", stat.attributes)?;
        Ok(said)
    }

    /// The length of a file in bytes, without opening it.
    fn len_of(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        self.with(py, |array| Ok(array.stat(name)?.len_bytes))
    }

    /// The directories of the drives.
    fn drives(&self, py: Python<'_>) -> PyResult<Vec<PathBuf>> {
        self.with(py, |array| Ok(array.info()?.drives.into_iter().map(|drive| drive.path).collect()))
    }

    /// The bytes of all file systems of the drives, and how many of them are free. A file system with several drives
    /// counts once.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let grounds = grounds(self.with(py, |array| array.info())?.drives);
        let total = grounds.iter().map(|ground| ground.total_bytes).sum();
        let free = grounds.iter().map(|ground| ground.free_bytes).sum();
        Ok((total, free))
    }

    /// Hits, misses and the bytes of the cache.
    fn counters(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let counters = self.with(py, |array| Ok(array.counters()))?;
        Ok((counters.hits, counters.misses, counters.cache_bytes))
    }

    fn notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |array| Ok(array.notices().iter().map(|notice| words(notice)).collect()))
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |array| Ok(array.metrics()))
    }

    /// Makes all files durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |array| array.sync())
    }

    /// Closes the array, and makes every open file durable. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| match std::mem::replace(&mut *self.slot_to_change(), Slot::Closed) {
            Slot::Open(opened) => opened.array.close(),
            Slot::Away(_) | Slot::Closed => Ok(()),
        })
        .or_raise()
    }

    /// Reopens the array for writing or for reading. Its files stay open, except those that another process has changed
    /// in between. False if it must keep its mode, because a file without a name is open. After an error the array is
    /// open as before. If another process keeps this one out, the array is away, which is no error for reading.
    fn change_mode(&self, py: Python<'_>, writable: bool) -> PyResult<bool> {
        // A file never gets a name again, so the search for its name is not repeated.
        let nameless = self.handles().nameless.upgrade();
        if !writable && nameless.is_some_and(|handle| handle.is_open()) {
            return Ok(false);
        }
        py.detach(|| {
            let mut slot = self.slot_to_change();
            let handles = {
                let mut handles = self.handles();
                handles.changes += 1;
                handles.all.iter().filter_map(Weak::upgrade).collect::<Vec<Arc<Handle>>>()
            };
            let nameless = change(&mut slot, &handles, writable, &options(self.cache_bytes))?;
            let is_changed = nameless.is_none();
            self.handles().nameless = nameless.unwrap_or_default();
            Ok(is_changed)
        })
    }

    /// Opens an array that is away, with its files. Otherwise it does nothing.
    fn come_back(&self, py: Python<'_>, writable: bool) -> PyResult<()> {
        py.detach(|| come_back(&mut self.slot_to_change(), writable, &options(self.cache_bytes)))
    }
}

type Entry = (String, u64, u64, u64, u64);

/// Nanoseconds since the start of 1970 (UTC).
fn ns(time: std::time::SystemTime) -> u64 {
    time.duration_since(std::time::SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
