//! [`Array`]: its drives, its catalog, and the cache and engines that its files share. Non-goals: the choice of engines
//! and CPUs (`setup`), calls on files (`file`), and changes of names (`names`).

use std::any::Any;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::answer::{Answer, answer_later};
use super::child::{Again, of_process};
use super::file::{File, Origin};
use super::info::{ArrayInfo, FileStat};
use super::options::{ArrayOptions, CreateOptions};
use super::setup;
use crate::catalog::{self, Catalog, Drive, EMPTY_FILE, Id, Record};
use crate::counters::{Board, Counters, Meter};
use crate::drive::regions::Regions;
use crate::drive::service::Service;
use crate::error::{Error, Result};
use crate::exec::pools::Pool;
use crate::exec::roles::NodeRoles;
use crate::exec::users_code::check_may_block;
use crate::exec::{self, Exec, promise};
use crate::file::sums::SumsMemory;
use crate::pager::{OpenFiles, OpenRef, Pager};
use crate::sys::events;

/// A set of drives used together, with one catalog of files.
///
/// Clones share the array. Dropping the last clone and the last file closes it; [`Array::close`] also reports errors.
///
/// An array that is open for writing is open in one process. In a forked child every call on it is an error
/// ([`Error::Forked`]), and closing and dropping do nothing: the child must open the array itself. An array that is
/// open for reading opens again by itself in the child, and so do its files. The child's cache has the parent's size
/// divided by the number of CPUs. In the child `stat`, `list` and `open_file` work, and the other calls are errors.
/// Pins from before the fork keep their bytes.
#[derive(Clone)]
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

/// The state that all handles of an array share.
pub(crate) struct ArrayInner {
    pub options: ArrayOptions,
    pub catalog: Arc<Catalog>,
    /// The nodes that cache, and the nodes that own drives.
    pub roles: Arc<NodeRoles>,
    pub exec: Arc<Exec>,
    /// The page cache, unless it is switched off.
    pub pager: Option<Arc<Pager>>,
    pub files: OpenFiles,
    /// The array that a forked child opens in place of this one.
    pub(super) again: Again<Array>,
}

impl Array {
    /// Makes existing directories into the drives of a new array: [`ArrayOptions::create`] with the defaults, and its
    /// errors.
    pub fn create<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Array> {
        ArrayOptions::new().create(drives)
    }

    /// Opens the array that a drive belongs to, by one of its directories: [`ArrayOptions::open`] with the defaults, and
    /// its errors.
    pub fn open(drive: impl AsRef<Path>) -> Result<Array> {
        ArrayOptions::new().open(drive)
    }

    /// Opens the array of these drives, or makes it: [`ArrayOptions::open_or_create`] with the defaults.
    pub fn open_or_create<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Array> {
        ArrayOptions::new().open_or_create(drives)
    }

    fn create_with(options: ArrayOptions, drives: Vec<PathBuf>, new: &CreateOptions) -> Result<Array> {
        events::create(&drives).run(|| Array::create_inside(options, &drives, new))
    }

    fn create_inside(options: ArrayOptions, drives: &[PathBuf], new: &CreateOptions) -> Result<Array> {
        let weights = match &new.weights {
            Some(weights) => weights.clone(),
            None => vec![1; drives.len()],
        };
        if options.read_only {
            return Err(Error::invalid("a new array for reading only", "it is empty").advise("create it for writing"));
        }
        check_may_block("create")?;
        setup::check(&options, &vec![options.depth_of(None); drives.len()], true)?;
        // Prepared before the first write to the drives: files there would make a second try fail.
        let ready = |id: Id, drives: &[Drive]| Ready::new(&options, id, drives, EMPTY_FILE, true);
        let (catalog, ready) = Catalog::create_with(&options.platform, drives, &weights, new.copies, ready)?;
        Ok(Array::start(options, catalog, ready))
    }

    pub(crate) fn open_with(options: ArrayOptions, starts: Vec<PathBuf>) -> Result<Array> {
        events::open(&starts).run(|| Array::open_inside(options, &starts))
    }

    fn open_inside(options: ArrayOptions, starts: &[PathBuf]) -> Result<Array> {
        let mode = if options.read_only { crate::catalog::OpenMode::Reader } else { crate::catalog::OpenMode::Writer };
        let catalog = Catalog::open(&options.platform, starts, mode)?;
        let ready = Ready::new(&options, catalog.id(), catalog.drives(), setup::PROBED, catalog.is_writer())?;
        Ok(Array::start(options, catalog, ready))
    }

    fn start(options: ArrayOptions, mut catalog: Catalog, ready: Ready) -> Array {
        let mut notices = Vec::new();
        options.note_misfits(&catalog, &mut notices);
        notices.into_iter().chain(ready.notices).for_each(|notice| catalog.notices().push(notice));
        catalog.set_syncs_changes(options.sync_changes);
        let (catalog, roles, pager) = (Arc::new(catalog), ready.roles, ready.pager);
        let exec = Arc::new(Exec::new(exec::Setup {
            platform: Arc::clone(&options.platform),
            most_drives: ready.services.len(),
            services: ready.services,
            may_change_engines: options.engine.is_none(),
            has_drive_threads: options.drive_threads_in_force() || (pager.is_some() && roles.are_apart()),
            cpus: setup::cpus_later(&options, &catalog, &roles),
            hold: catalog.lock_handles(),
            regions: ready.regions,
            board: ready.board,
            notices: Arc::clone(catalog.notices()),
            instance: ready.instance,
        }));
        let cache_pages = pager.as_ref().map_or(0, |pager| pager.pages());
        let sums = options.tuning.sums_pages.map_or_else(|| SumsMemory::beside_cache(cache_pages), SumsMemory::new);
        let files = OpenFiles::new(&exec, sums);
        events::opened(catalog.drives().len(), catalog.count());
        let inner = Arc::new(ArrayInner { options, catalog, roles, exec, pager, files, again: Again::empty() });
        Array { inner: ManuallyDrop::new(inner) }
    }

    /// This array, or in a forked child the array opened in its place.
    pub(super) fn here(&self) -> Result<&Array> {
        if self.inner.exec.home.is_here() { Ok(self) } else { self.inner.in_child() }
    }

    /// The array's parts, after a check that the array is open.
    pub(super) fn open_inner(&self) -> Result<&Arc<ArrayInner>> {
        self.inner.exec.check_open()?;
        Ok(&self.inner)
    }

    /// Opens a file. [`Error::NotFound`] if no file has this name.
    pub fn open_file(&self, name: &str) -> Result<File> {
        check_may_block("open_file")?;
        self.here()?.inner.open_file(name)
    }

    /// [`Array::open_file`] as a future. It is ready at once if the file is open already, or if it is small and another
    /// file of its shared part was open before: then no system call is needed. In a forked child the first call opens
    /// the array.
    pub fn open_file_async(&self, name: &str) -> Answer<File> {
        let here = match self.here() {
            Ok(here) => here,
            Err(error) => return Answer::now(Err(error)),
        };
        match here.inner.open_at_once(name) {
            Ok(None) => {
                let name = name.to_owned();
                here.open_later(move |array| array.inner.open_file(&name))
            }
            Ok(Some(file)) => Answer::now(Ok(file)),
            Err(error) => Answer::now(Err(error)),
        }
    }

    /// Opens a file if its name has this version ([`FileStat`]), so that the result of an earlier [`Array::stat`] is
    /// true of the handle. [`Error::Conflict`] if the name has another version or no file.
    pub fn open_version(&self, name: &str, version: u64) -> Result<File> {
        check_may_block("open_version")?;
        self.here()?.inner.open_version(name, version)
    }

    /// [`Array::open_version`] as a future, like [`Array::open_file_async`].
    pub fn open_version_async(&self, name: &str, version: u64) -> Answer<File> {
        let here = match self.here() {
            Ok(here) => here,
            Err(error) => return Answer::now(Err(error)),
        };
        match here.inner.open_version_at_once(name, version) {
            Ok(None) => {
                let name = name.to_owned();
                here.open_later(move |array| array.inner.open_version(&name, version))
            }
            Ok(Some(file)) => Answer::now(Ok(file)),
            Err(error) => Answer::now(Err(error)),
        }
    }

    /// Whether a file has this name.
    pub fn exists(&self, name: &str) -> Result<bool> {
        match self.here()?.open_inner()?.catalog.number(name) {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The metadata of a file, without opening it.
    pub fn stat(&self, name: &str) -> Result<FileStat> {
        let array = self.here()?.open_inner()?;
        let record = array.catalog.record(name)?;
        let open = array.find(record.number);
        let len = open.map_or(record.length, |open| open.file.len());
        FileStat::new(&array.catalog, &record, len)
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

    /// Messages for users: fallbacks, repairs, and errors of files that were dropped and not closed. Equal messages are
    /// kept once, and at most the first 100.
    pub fn notices(&self) -> Vec<String> {
        if self.inner.exec.home.is_here() { self.inner.exec.notices.all() } else { Vec::new() }
    }

    /// The counters of this process for the array, since it was opened.
    pub fn counters(&self) -> Counters {
        let exec = &self.inner.exec;
        if exec.home.is_here() { exec.board.counters() } else { Counters::default() }
    }

    /// The counters as a page in the text format of Prometheus (0.0.4), for a program to serve.
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

    /// The number of used pages in shared parts that no record names. Open files own them. Less than 0 if two files own
    /// one page.
    #[cfg(feature = "internals")]
    pub fn unnamed_pages(&self) -> i64 {
        self.inner.catalog.unnamed_pages()
    }

    /// Changes the size of the page cache, in bytes, while it is in use. Returns when the cache has the size. The size
    /// changes in steps, and each step delays other calls for microseconds. [`Counters`](crate::Counters) have the
    /// present size.
    ///
    /// The cache can grow to [`CacheOptions::max_bytes`](super::CacheOptions::max_bytes). A cache that shrinks writes
    /// its dirty pages and evicts the pages that do not fit. If a write fails, the size is between the old and the new
    /// one. Memory is returned to the system in chunks of a 16th of the first size, and at least 2 MiB. A pinned page
    /// keeps its chunk until the first resize after the end of the pin. A chunk that is registered with an io_uring is
    /// returned when that ring is used next.
    pub fn resize_cache(&self, bytes: u64) -> Result<()> {
        check_may_block("resize_cache")?;
        let array = self.open_inner()?;
        let Some(pager) = &array.pager else {
            let error = Error::invalid("resizing the cache", "the array was opened without one");
            return Err(error.advise("open it with `ArrayOptions::cache_bytes`"));
        };
        pager.resize(&array.exec, bytes)
    }

    /// [`Array::resize_cache`] as a future.
    pub fn resize_cache_async(&self, bytes: u64) -> Answer<()> {
        self.answer_later(move |array| array.resize_cache(bytes))
    }

    /// Runs a call on a thread that may wait, unless the array is closed. Releases the array before the future
    /// resolves.
    pub(super) fn answer_later<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Array) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.answer_on(|exec| &exec.waits, call)
    }

    /// `answer_later` for a call that opens a file.
    fn open_later(&self, call: impl FnOnce(&Array) -> Result<File> + Send + 'static) -> Answer<File> {
        self.answer_on(|exec| &exec.opens, call)
    }

    fn answer_on<T: Send + 'static>(
        &self,
        pool: impl FnOnce(&Exec) -> &Pool,
        call: impl FnOnce(&Array) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let inner = match self.open_inner() {
            Ok(inner) => inner,
            Err(error) => return Answer::now(Err(error)),
        };
        let (array, queued) = (self.clone(), inner.exec.queue_call());
        answer_later(pool(&inner.exec), move |promise| {
            let result = call(&array);
            drop(queued);
            drop(array);
            promise.keep(result);
        })
    }

    /// Closes the array: waits for I/O in flight and for the calls of earlier futures, makes every open file durable,
    /// and releases the lock. Calls on remaining handles return [`Error::Closed`]. All steps are tried, and the first
    /// error is returned.
    pub fn close(self) -> Result<()> {
        check_may_block("close")?;
        self.inner.close()
    }

    /// [`Array::close`] as a future.
    pub fn close_async(self) -> Answer<()> {
        let exec = match self.open_inner() {
            Ok(inner) => Arc::clone(&inner.exec),
            Err(error) => return Answer::now(Err(error)),
        };
        let (promise, promised) = promise();
        let close = move || {
            let closed = self.inner.close();
            drop(self);
            promise.keep(closed);
        };
        if !exec.has_threads() {
            exec.closes.run(Box::new(close));
            return Answer::later(promised);
        }
        // Not a thread of `closes`: closing the array waits for the jobs there.
        let name = "iomill-close-array".to_owned();
        match std::thread::Builder::new().name(name.clone()).spawn(close) {
            Ok(_ends_by_itself) => Answer::later(promised),
            Err(source) => Answer::now(Err(Error::Thread { name, drive: None, source })),
        }
    }
}

/// The parts of an array besides its catalog. Making them can fail, so a new array makes them before it writes to its
/// drives.
struct Ready {
    roles: Arc<NodeRoles>,
    services: Vec<Service>,
    board: Arc<Board>,
    regions: Arc<Regions>,
    instance: u64,
    pager: Option<Arc<Pager>>,
    notices: Vec<String>,
}

impl Ready {
    /// `probed` is the name of a file on each drive.
    fn new(options: &ArrayOptions, array: Id, drives: &[Drive], probed: &str, writer: bool) -> Result<Ready> {
        let roles = Arc::new(setup::check(options, &setup::depths(options, drives), writer)?);
        let mut notices = Vec::new();
        let mut services = setup::services(options, drives, probed, &mut notices)?;
        let (board, clock) = (setup::board(options, array, drives, &mut notices)?, options.platform.clock());
        for (drive, service) in services.iter_mut().enumerate() {
            service.meter = Some(Meter::new(&board, drive as u16, &clock));
        }
        let (regions, instance) = (Arc::<Regions>::default(), exec::next_instance());
        let pager = Pager::new(&options.pager(), &roles, instance, &regions, &board, &mut notices)?;
        Ok(Ready { roles, services, board, regions, instance, pager, notices })
    }
}

impl ArrayOptions {
    /// Makes directories into the drives of a new array, and opens it for writing.
    ///
    /// The directories must exist, one on each drive; their order is the order of the drives. They need not be empty:
    /// the array keeps all its files in a new subdirectory `iomill` of each, and touches nothing else there. After an
    /// error they are no array, unless it is [`Error::OutcomeUnknown`].
    ///
    /// # Errors
    /// - [`Error::NoDirectory`]: a directory is missing.
    /// - [`Error::ArrayExists`]: a directory has a drive of an array; [`Error::Locked`] if that array is open.
    /// - [`Error::Drive`]: a directory is named twice, or holds another directory `iomill`.
    /// - [`Error::Invalid`]: options do not fit. [`Error::Io`]: the kernel refuses.
    pub fn create<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Array> {
        self.create_with(drives, &CreateOptions::new())
    }

    /// [`ArrayOptions::create`] with the options of a new array.
    pub fn create_with<P: AsRef<Path>>(
        self,
        drives: impl IntoIterator<Item = P>,
        options: &CreateOptions,
    ) -> Result<Array> {
        Array::create_with(self, drives.into_iter().map(|p| p.as_ref().to_owned()).collect(), options)
    }

    /// Opens the array of these drives, or makes a new one if none of them belongs to an array.
    ///
    /// A directory on the file system of `/` may be the mount point of a drive that is not mounted. So a new array is
    /// made only if no directory is on that file system. Otherwise [`Error::NoArray`] names the directory. On a machine
    /// with one disk [`ArrayOptions::on_root`] allows it. It is an error if some of the drives belong to an array and
    /// others do not.
    ///
    /// ```no_run
    /// # fn main() -> iomill::Result<()> {
    /// let array = iomill::Array::open_or_create(["/mnt/ssd0", "/mnt/ssd1"])?;
    ///
    /// // On the only disk of a laptop, below the present directory.
    /// std::fs::create_dir_all("drive")?;
    /// let array = iomill::ArrayOptions::new().on_root(true).open_or_create(["drive"])?;
    /// # Ok(()) }
    /// ```
    pub fn open_or_create<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Array> {
        self.open_or_create_with(drives, &CreateOptions::new())
    }

    /// [`ArrayOptions::open_or_create`] with the options of a new array. An existing array ignores them.
    pub fn open_or_create_with<P: AsRef<Path>>(
        self,
        drives: impl IntoIterator<Item = P>,
        options: &CreateOptions,
    ) -> Result<Array> {
        check_may_block("open_or_create")?;
        let drives: Vec<PathBuf> = drives.into_iter().map(|p| p.as_ref().to_owned()).collect();
        if Catalog::are_new(&*self.platform, &drives, self.on_root)? {
            match Array::create_with(self.clone(), drives.clone(), options) {
                // Another process has made it meanwhile.
                Err(Error::ArrayExists { .. }) => {}
                made => return made,
            }
        }
        Array::open_with(self, drives)
    }

    /// Opens the array that a drive belongs to. The drive's label names the other drives.
    ///
    /// A drive that is not where the label says is searched beside the others: where it would be if all drives had
    /// moved together, and in the neighbouring directories and mount points. So an array may be moved or renamed as a
    /// whole. An opening for writing then notes the new places in the labels of all drives ([`Array::notices`]). A
    /// drive that is not found is [`Error::DriveMissing`]; [`ArrayOptions::open_at`] takes the places of all drives.
    ///
    /// # Errors
    /// - [`Error::NoDirectory`], [`Error::NoArray`], [`Error::DriveMissing`]: the directory, the array or one of its
    ///   drives is not found.
    /// - [`Error::Locked`]: the array is open already, and one of the two openings is for writing.
    /// - [`Error::Drive`], [`Error::Corrupt`]: a drive is not as the others say, or is damaged.
    /// - [`Error::Invalid`]: options do not fit.
    pub fn open(self, drive: impl AsRef<Path>) -> Result<Array> {
        check_may_block("open")?;
        Array::open_with(self, vec![drive.as_ref().to_owned()])
    }

    /// Opens an array with drives that have moved: `drives` are the present directories of some or all of them.
    pub fn open_at<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Array> {
        check_may_block("open_at")?;
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
    /// The array that a forked child opens in place of this one.
    fn in_child(&self) -> Result<&Array> {
        if !self.options.read_only {
            return Err(Error::Forked);
        }
        of_process(&self.again, || self.options.in_child().open_at(self.locations()))
    }

    /// The directories of the drives.
    fn locations(&self) -> Vec<PathBuf> {
        self.catalog.drives().iter().map(|drive| drive.fs.location().to_owned()).collect()
    }

    fn open_file(self: &Arc<Self>, name: &str) -> Result<File> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let file = self.files.open(&self.catalog, self.pager.as_ref(), name, &owner)?;
        Ok(self.handle(file))
    }

    /// The same where it takes no call of the system and waits for no other thread. `None` where it may.
    pub(super) fn open_at_once(self: &Arc<Self>, name: &str) -> Result<Option<File>> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let file = self.files.open_at_once(&self.catalog, self.pager.as_ref(), name, &owner)?;
        Ok(file.map(|file| self.handle(file)))
    }

    /// An error if the name has another version.
    fn check_version(&self, name: &str, version: u64) -> Result<()> {
        let found = match self.catalog.number(name) {
            Ok(found) => Some(found),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if found == Some(version) {
            return Ok(());
        }
        Err(Error::Conflict { name: name.to_owned(), expected: version, found })
    }

    fn open_version(self: &Arc<Self>, name: &str, version: u64) -> Result<File> {
        self.exec.check_open()?;
        self.check_version(name, version)?;
        // `None` if the file has lost its name since the check.
        let file = self.try_number(version)?;
        file.ok_or_else(|| Error::Conflict { name: name.to_owned(), expected: version, found: None })
    }

    /// The same where it takes no call of the system and waits for no other thread. `None` where it may.
    fn open_version_at_once(self: &Arc<Self>, name: &str, version: u64) -> Result<Option<File>> {
        self.exec.check_open()?;
        self.check_version(name, version)?;
        let opened = match self.open_at_once(name) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(None),
            // The file has lost its name since the check.
            Err(Error::NotFound { .. }) => {
                return Err(Error::Conflict { name: name.to_owned(), expected: version, found: None });
            }
            Err(error) => return Err(error),
        };
        // The name may be that of another file since the check. While this file is open, its number finds it.
        let is_it = self.find(version).is_some_and(|found| Arc::ptr_eq(&found, &opened.state));
        Ok(is_it.then_some(opened))
    }

    /// The file with this number, if it is open.
    pub(super) fn find(&self, number: u64) -> Option<OpenRef> {
        self.files.find(&self.catalog.id_of(number))
    }

    /// Opens the file with this number. `None` if it has lost its name.
    pub(super) fn try_number(self: &Arc<Self>, number: u64) -> Result<Option<File>> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let file = self.files.open_numbered(&self.catalog, self.pager.as_ref(), number, &owner)?;
        Ok(file.map(|file| self.handle(file)))
    }

    /// Opens a file without a name.
    pub(super) fn open_draft(self: &Arc<Self>, draft: &Arc<catalog::Draft>, record: &Arc<Record>) -> Result<File> {
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let file = self.files.open_draft(&self.catalog, self.pager.as_ref(), (draft, record), &owner)?;
        Ok(self.handle(file))
    }

    pub(super) fn handle(self: &Arc<Self>, file: OpenRef) -> File {
        let origin = self.options.read_only.then(|| Box::new(Arc::downgrade(self)) as Box<dyn Origin>);
        File::new(file, self.options.cache.read_ahead_bytes, origin)
    }

    fn close(&self) -> Result<()> {
        events::close(&self.locations()).run(|| {
            let closed = self.files.close(self.pager.as_ref(), || self.catalog.close());
            events::closed(self.catalog.drives().len(), closed.as_ref().err());
            closed
        })
    }
}

impl Drop for ArrayInner {
    fn drop(&mut self) {
        if self.exec.is_open() {
            // No file is open, because each open file holds the array. So `close` has no failed write to report.
            let _ = self.close();
        }
    }
}
