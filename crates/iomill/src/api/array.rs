//! [`Array`]: its drives, its catalog, and what its files share. Non-goals: choosing engines and CPUs (`setup`), and calls on files
//! (`file`).

use std::any::Any;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::child::{Again, of_process};
use super::file::{File, Origin};
use super::info::{ArrayInfo, FileStat};
use super::options::{ArrayOptions, Layout};
use super::setup;
use crate::catalog::Catalog;
use crate::counters::{Counters, Meter};
use crate::drive::regions::Regions;
use crate::error::{Error, Result};
use crate::exec::pools::check_may_block;
use crate::exec::roles::NodeRoles;
use crate::exec::{self, Exec};
use crate::pager::{OpenFiles, Pager};

/// A set of drives used together, with one catalog of files.
///
/// Clones share the array. Dropping the last clone and the last file closes it; [`Array::close`] also reports errors.
///
/// An array that is open for writing is open in one process. In a forked child every call on it is an error ([`Error::Forked`]), and closing
/// and dropping do nothing: the child must open the array itself. An array that is open for reading, and its files, are opened again in
/// the child by themselves, with a cache of the parent's size divided by the number of CPUs. There `stat`, `list` and `open_file` work,
/// and the other calls are errors. Pins from before the fork keep their bytes.
#[derive(Clone, Debug)]
pub struct Array {
    /// Taken out when this is dropped.
    pub(super) inner: ManuallyDrop<Arc<ArrayInner>>,
}

impl Drop for Array {
    /// Runs on any thread. In a callback another thread closes the array, because closing waits for callbacks.
    fn drop(&mut self) {
        if !self.inner.exec.home.is_here() {
            // Rule 3 of the fork (`exec`).
            return;
        }
        // SAFETY: only this takes it, once, and `self` is gone after this.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        exec::drop_where_it_may_wait(inner, |inner| &inner.exec);
    }
}

/// What all handles of an array share.
pub(crate) struct ArrayInner {
    pub options: ArrayOptions,
    pub catalog: Arc<Catalog>,
    /// Which nodes cache, and which own drives.
    pub roles: Arc<NodeRoles>,
    pub exec: Arc<Exec>,
    /// The page cache, unless it is switched off.
    pub pager: Option<Arc<Pager>>,
    pub files: OpenFiles,
    /// What a forked child uses in the place of this.
    pub(super) again: Again<Array>,
}

impl std::fmt::Debug for ArrayInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayInner").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

impl Array {
    /// Makes directories into the drives of a new array: [`ArrayOptions::create`] with the defaults.
    pub fn create<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Array> {
        ArrayOptions::new().create(drives)
    }

    /// Opens the array that a drive belongs to: [`ArrayOptions::open`] with the defaults.
    pub fn open(drive: impl AsRef<Path>) -> Result<Array> {
        ArrayOptions::new().open(drive)
    }

    pub(crate) fn create_with(options: ArrayOptions, drives: Vec<PathBuf>) -> Result<Array> {
        let weights = match &options.weights {
            Some(weights) => weights.clone(),
            None => vec![1; drives.len()],
        };
        if options.read_only {
            return Err(Error::invalid("a new array for reading only", "it is empty; create it for writing"));
        }
        check_may_block("create")?;
        // Before anything is on the drives: files there would make a second try fail.
        setup::check(&options, &vec![options.depth_of(None); drives.len()], true)?;
        let catalog = Catalog::create(&options.platform, &drives, &weights)?;
        Array::start(options, catalog)
    }

    pub(crate) fn open_with(options: ArrayOptions, starts: Vec<PathBuf>) -> Result<Array> {
        check_may_block("open")?;
        let mode = if options.read_only { crate::catalog::OpenMode::Reader } else { crate::catalog::OpenMode::Writer };
        let catalog = Catalog::open(&options.platform, &starts, mode)?;
        Array::start(options, catalog)
    }

    fn start(options: ArrayOptions, catalog: Catalog) -> Result<Array> {
        let roles = Arc::new(setup::check(&options, &setup::depths(&options, &catalog), catalog.is_writer())?);
        let mut notices = catalog.notices();
        options.note_misfits(&catalog, &mut notices);
        let mut services = setup::services(&options, &catalog, &mut notices)?;
        let (board, clock) = (setup::board(&options, &catalog, &mut notices)?, options.platform.clock());
        for (drive, service) in services.iter_mut().enumerate() {
            service.meter = Some(Meter::new(&board, drive as u16, &clock));
        }
        let (regions, instance) = (Arc::<Regions>::default(), exec::next_instance());
        let pager = Pager::new(&options.pager(), &roles, instance, &regions, &board, &mut notices)?;
        let catalog = Arc::new(catalog);
        let exec = Arc::new(Exec::new(exec::Setup {
            platform: Arc::clone(&options.platform),
            most_drives: services.len(),
            services,
            may_change_engines: options.engine.is_none(),
            mode: options.mode_in_force(),
            is_apart: pager.is_some() && roles.are_apart(),
            cpus: setup::cpus_later(&options, &catalog, &roles),
            hold: catalog.lock_handles(),
            regions,
            board,
            notices,
            instance,
        }));
        let files = OpenFiles::new(&exec);
        let inner = Arc::new(ArrayInner { options, catalog, roles, exec, pager, files, again: Again::empty() });
        Ok(Array { inner: ManuallyDrop::new(inner) })
    }

    /// This array, or the one that a forked child has opened in its place.
    fn here(&self) -> Result<&Array> {
        if self.inner.exec.home.is_here() { Ok(self) } else { self.inner.in_child() }
    }

    /// The array's parts, after a check that the array is open.
    pub(super) fn open_inner(&self) -> Result<&Arc<ArrayInner>> {
        self.inner.exec.check_open()?;
        Ok(&self.inner)
    }

    /// Creates a file of length 0 and opens it. The creation is durable. An error if the name exists.
    pub fn create_file(&self, name: &str, layout: Layout) -> Result<File> {
        check_may_block("create_file")?;
        let array = self.open_inner()?;
        let spec = setup::file_spec(&array.options, &array.catalog, layout)?;
        array.files.with_names(|| array.catalog.create_file(name, &spec))?;
        array.open_file(name)
    }

    /// Opens a file. An error if there is none with this name.
    pub fn open_file(&self, name: &str) -> Result<File> {
        check_may_block("open_file")?;
        self.here()?.inner.open_file(name)
    }

    /// Deletes a file. It is an error ([`Error::Busy`]) if a handle has it open. Waits for operations in flight on the file, so callbacks
    /// cannot call it.
    pub fn delete(&self, name: &str) -> Result<()> {
        check_may_block("delete")?;
        self.inner.exec.check_home()?;
        let catalog = &self.inner.catalog;
        self.inner.files.with_closed(|| Ok(vec![catalog.record(name)?]), || catalog.delete(name))
    }

    /// Renames a file, and replaces the one at `to` if there is one. It is an error ([`Error::Busy`]) if a handle has one of them open.
    /// Waits as [`Array::delete`] does.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_may_block("rename")?;
        self.inner.exec.check_home()?;
        let catalog = &self.inner.catalog;
        let both = || {
            let mut records = vec![catalog.record(from)?];
            match catalog.record(to) {
                Ok(record) if from != to => records.push(record),
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(records)
        };
        self.inner.files.with_closed(both, || catalog.rename(from, to))
    }

    /// The names that begin with `prefix`, sorted. Empty in a forked child if the array is open for writing.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        self.here().map_or_else(|_forked| Vec::new(), |array| array.inner.catalog.list(prefix))
    }

    /// What is known of a file without opening it.
    pub fn stat(&self, name: &str) -> Result<FileStat> {
        let array = self.here()?.open_inner()?;
        loop {
            let record = array.catalog.record(name)?;
            let len = match array.files.find(&record.id) {
                Some(open) => Ok(open.file.len()),
                None => array.catalog.length(&record),
            };
            match len {
                Ok(len) => return FileStat::new(&array.catalog, &record, len),
                Err(error) if array.catalog.record(name)?.id == record.id => return Err(error),
                // The file has just been deleted, and another file has the name now.
                Err(_) => {}
            }
        }
    }

    /// Sets an attribute of a file, durably. `None` removes it.
    pub fn set_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        check_may_block("set_attribute")?;
        self.open_inner()?.catalog.set_attribute(name, key, value)
    }

    /// The array and its drives as they are now.
    pub fn info(&self) -> Result<ArrayInfo> {
        self.inner.exec.check_home()?;
        let (array, notices) = (&self.inner, self.notices());
        let mut info =
            ArrayInfo::new(&array.catalog, &array.options, array.exec.services.iter(), &array.roles, notices)?;
        for (node, pages, sent_pages) in array.pager.iter().flat_map(|pager| pager.of_nodes(&array.roles)) {
            (info.nodes[node].pages, info.nodes[node].sent_pages) = (pages, sent_pages);
        }
        Ok(info)
    }

    /// What a user should know: fallbacks, repairs, errors of files that were dropped and not closed. Each notice is there once. The first
    /// 100 are kept.
    pub fn notices(&self) -> Vec<String> {
        if self.inner.exec.home.is_here() { self.inner.exec.notices.all() } else { Vec::new() }
    }

    /// What this process has done on the array since it was opened.
    pub fn counters(&self) -> Counters {
        let exec = &self.inner.exec;
        if exec.home.is_here() { exec.board.counters() } else { Counters::default() }
    }

    /// The counters as a page that Prometheus reads (text format 0.0.4). A program may serve it.
    pub fn metrics(&self) -> String {
        self.counters().metrics()
    }

    /// Advances an array without threads (a simulation) by one step.
    #[cfg(feature = "internals")]
    pub fn step(&self) {
        if self.inner.exec.home.is_here() {
            self.inner.exec.pause();
        }
    }

    /// Changes the size of the page cache, in bytes, while it is used. It goes step by step, and each step delays other calls for
    /// microseconds. [`Counters`](crate::Counters) show the size meanwhile. It returns when the size is reached.
    ///
    /// The cache can grow to [`ArrayOptions::cache_bytes_max`]. When it shrinks, pages that do not fit leave it. Dirty ones are written
    /// first, and an error of that leaves the cache at a size between. Memory goes back to the system in chunks: a 16th of the first size,
    /// and at least 2 MiB. A pinned page keeps its chunk until the next resize after the pin has ended. A chunk that is registered with
    /// an io_uring is free when that ring has been used again.
    pub fn resize_cache(&self, bytes: u64) -> Result<()> {
        check_may_block("resize_cache")?;
        let array = self.open_inner()?;
        let Some(pager) = &array.pager else {
            let why = "the array was opened without one; open it with `ArrayOptions::cache_bytes`";
            return Err(Error::invalid("resizing the cache", why));
        };
        pager.resize(&array.exec, bytes)
    }

    /// Closes the array: waits for I/O in flight, makes every open file durable and gives the lock back. Calls on remaining handles
    /// return [`Error::Closed`]. Returns the first error, after it has tried everything.
    pub fn close(self) -> Result<()> {
        check_may_block("close")?;
        self.inner.close()
    }
}

impl ArrayOptions {
    /// Makes directories into the drives of a new array, and opens it.
    pub fn create<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Array> {
        Array::create_with(self, drives.into_iter().map(|p| p.as_ref().to_owned()).collect())
    }

    /// Opens the array that a drive belongs to. The labels on the drive name the others.
    pub fn open(self, drive: impl AsRef<Path>) -> Result<Array> {
        self.open_at([drive])
    }

    /// Opens an array with drives that have moved: `drives` are the present directories of some or all of them.
    pub fn open_at<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Array> {
        let starts: Vec<PathBuf> = drives.into_iter().map(|p| p.as_ref().to_owned()).collect();
        Array::open_with(self, starts)
    }
}

impl Origin for Weak<ArrayInner> {
    fn open(&self, name: &str) -> Result<File> {
        self.upgrade().ok_or(Error::Forked)?.in_child()?.open_file(name)
    }
}

impl ArrayInner {
    /// The array that a forked child has opened in the place of this one.
    fn in_child(&self) -> Result<&Array> {
        if !self.options.read_only {
            return Err(Error::Forked);
        }
        of_process(&self.again, || {
            let drives = self.catalog.drives().iter().map(|drive| drive.fs.location().to_owned());
            self.options.in_child().open_at(drives)
        })
    }

    fn open_file(self: &Arc<Self>, name: &str) -> Result<File> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let file = self.files.open(&self.catalog, self.pager.as_ref(), name, &owner)?;
        let origin = self.options.read_only.then(|| Box::new(Arc::downgrade(self)) as Box<dyn Origin>);
        Ok(File::new(file, self.options.read_ahead_bytes, origin))
    }

    fn close(&self) -> Result<()> {
        self.files.close(self.pager.as_ref(), || self.catalog.close())
    }
}

impl Drop for ArrayInner {
    fn drop(&mut self) {
        if self.exec.is_open() {
            // No file is open any more, because each holds the array. So nothing can be lost that `close` would report.
            let _ = self.close();
        }
    }
}
