//! [`Runtime`] and [`RuntimeOptions`]: the cache, engines and queues that plain files share. Non-goals: calls on files
//! (`file`), and opening files (`plain`).

use std::any::Any;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use iomill_platform::devices;
use iomill_platform::tree::Tree;

use super::answer::{Answer, answer_later};
use super::cache_options::CacheOptions;
use super::child::{Again, of_process};
use super::file::{File, Origin};
use super::options::{ArrayOptions, DEFAULT_DEPTH};
use super::setup;
use super::tuning::Tuning;
use crate::counters::{BANKS_BYTES, Board, Counters, Meter, Subject};
use crate::drive::regions::Regions;
use crate::drive::service::Service;
use crate::engine::EngineKind;
#[cfg(feature = "internals")]
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::exec::users_code::check_may_block;
use crate::exec::{self, Exec};
use crate::file::plain::{DriveHold, DriveUsers, PlainFile};
use crate::file::sums::SumsMemory;
use crate::pager::{OpenFiles, Pager, Places};
use crate::sys::cpu;
use crate::sys::fs::{Access, Alignment, Ground};
use crate::sys::notices::Notices;
use crate::sys::process::{Home, PerProcess};
use crate::sys::sync::{Mutex, lock};

/// The most block devices of one runtime. An engine reserves slots for all of them.
const DRIVES_MAX: usize = 64;

/// The number of block devices that keep their drive and counters while none of their files is open. Past this number,
/// a new device takes the drive of a device without open files.
const DRIVES_KEPT: usize = 8;

/// The default depth if the kernel's queue has twice as many entries. A disk of a virtual machine served 1.2 times as
/// many random reads as with [`DEFAULT_DEPTH`].
const DEPTH: u32 = 128;

/// The shared runtime, made when it is first needed.
static SHARED: PerProcess<Mutex<Option<Runtime>>> = PerProcess::empty();

/// The options of the first shared runtime in this process or in an ancestor of it, with the process that set them.
static FIRST: OnceLock<(Home, ArrayOptions)> = OnceLock::new();

/// A cache, engines, and one queue for each block device, which plain files share.
///
/// [`Runtime::shared`] is the default runtime of a process, and lasts as long as the process. Any other runtime lasts
/// until its last clone and its last file are dropped. A forked child has a shared runtime of its own, with a cache of
/// the parent's size divided by the number of CPUs. Files that the parent has open for reading are opened again in the
/// child.
#[derive(Clone)]
pub struct Runtime {
    /// Taken out when this is dropped.
    inner: ManuallyDrop<Arc<RuntimeInner>>,
}

/// Options of a new [`Runtime`].
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// // Before the first plain file is opened.
/// iomill::RuntimeOptions::new().cache_bytes(4 << 30).start_shared()?;
/// let file = iomill::open_plain("features.bin")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a runtime is started with them"]
pub struct RuntimeOptions(ArrayOptions);

impl Default for RuntimeOptions {
    fn default() -> Self {
        RuntimeOptions::new()
    }
}

impl RuntimeOptions {
    /// The defaults: those of [`ArrayOptions`], but one node, and a depth by the device.
    pub fn new() -> RuntimeOptions {
        // Threads of nodes make their engines once, and drives may be added later.
        RuntimeOptions(ArrayOptions::new().tuning(Tuning::new().one_node(true)))
    }

    /// The options of an array without its CPU map, nodes and profile, which name an array's drives.
    #[cfg(feature = "internals")]
    pub fn like(options: ArrayOptions) -> RuntimeOptions {
        let tuning = Tuning { cpu_map: None, cache_nodes: None, io_nodes: None, ..options.tuning }.one_node(true);
        RuntimeOptions(ArrayOptions { tuning, profile: None, ..options })
    }

    /// The defaults of this process. After a fork the cache is a share of that of the parent's shared runtime.
    fn of_process() -> RuntimeOptions {
        match FIRST.get() {
            Some((home, options)) if !home.is_here() => RuntimeOptions(options.in_child()),
            _ => RuntimeOptions::new(),
        }
    }

    /// Like [`ArrayOptions::cache_bytes`].
    pub fn cache_bytes(self, bytes: u64) -> Self {
        RuntimeOptions(self.0.cache_bytes(bytes))
    }

    /// Like [`ArrayOptions::cache`].
    pub fn cache(self, cache: CacheOptions) -> Self {
        RuntimeOptions(self.0.cache(cache))
    }

    /// The engine for all devices. Opening a file fails if its device does not support the engine.
    pub fn engine(self, engine: EngineKind) -> Self {
        RuntimeOptions(self.0.engine(engine))
    }

    /// Like [`Tuning::drive_threads`].
    pub fn drive_threads(self, drive_threads: bool) -> Self {
        let tuning = self.0.tuning.clone().drive_threads(drive_threads);
        RuntimeOptions(self.0.tuning(tuning))
    }

    /// Like [`ArrayOptions::depth`], for each block device. The default is half of the kernel's queue for the device,
    /// from 32 to 128.
    pub fn depth(self, depth: u32) -> Self {
        RuntimeOptions(self.0.depth(depth))
    }

    /// The platform: the machine, or a simulation.
    #[cfg(feature = "internals")]
    pub fn platform(self, platform: Arc<dyn Platform>) -> Self {
        RuntimeOptions(self.0.platform(platform))
    }

    /// Makes a runtime. It allocates memory, threads and rings when they are first needed.
    pub fn start(self) -> Result<Runtime> {
        self.start_as(false)
    }

    fn start_as(self, is_shared: bool) -> Result<Runtime> {
        if is_shared {
            // Only the first call has an effect.
            let _earlier = FIRST.set((Home::here(), self.0.clone()));
        }
        let inner = Arc::new(RuntimeInner::new(self.0, is_shared)?);
        Ok(Runtime { inner: ManuallyDrop::new(inner) })
    }

    /// Makes the shared runtime with these options. An error if the process has one already: call this before the first
    /// plain file is opened, or resize its cache by [`Runtime::resize_cache`].
    pub fn start_shared(self) -> Result<Runtime> {
        let mut shared = lock(SHARED.get());
        if shared.is_some() {
            let why = "it was made when the first plain file was opened";
            return Err(Error::invalid("options for the shared runtime", why).advise("make it before that"));
        }
        Ok(shared.insert(self.start_as(true)?).clone())
    }
}

/// A drive, by the device of its files.
#[derive(Debug)]
struct Known {
    /// Number of the file system's device.
    device: u64,
    align: Alignment,
    /// Identity of the block device.
    block_device: u64,
    /// Its name, for users.
    name: String,
    /// Its index.
    drive: u16,
}

pub(super) struct RuntimeInner {
    options: ArrayOptions,
    exec: Arc<Exec>,
    pager: Option<Arc<Pager>>,
    files: OpenFiles,
    /// Locked while a drive is added, or gets a file.
    known: Mutex<Vec<Known>>,
    users: Arc<DriveUsers>,
    /// The CPUs near each drive, by index; empty means any.
    cpus: Arc<Mutex<Vec<Vec<usize>>>>,
    is_shared: bool,
    /// The runtime that a forked child makes in place of this one.
    again: Again<Runtime>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("is_shared", &self.inner.is_shared).finish_non_exhaustive()
    }
}

impl Drop for Runtime {
    /// Runs on any thread. In a callback another thread ends the runtime, because ending it waits for callbacks.
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

impl Runtime {
    /// The shared runtime of this process, the default of plain files. The first call makes it.
    pub fn shared() -> Result<Runtime> {
        let mut shared = lock(SHARED.get());
        match &*shared {
            Some(runtime) => Ok(runtime.clone()),
            None => Ok(shared.insert(RuntimeOptions::of_process().start_as(true)?).clone()),
        }
    }

    /// Messages for users: fallbacks, file systems without direct I/O, and errors of files that were dropped and not
    /// closed. Equal messages are kept once, and at most the first 100.
    pub fn notices(&self) -> Vec<String> {
        if self.inner.exec.home.is_here() { self.inner.exec.notices.all() } else { Vec::new() }
    }

    /// The counters of plain files with this runtime. Its drives have the order of [`Runtime::drives`].
    pub fn counters(&self) -> Counters {
        let exec = &self.inner.exec;
        if !exec.home.is_here() {
            return Counters::default();
        }
        let mut counters = exec.board.counters();
        counters.drives.truncate(exec.services.count());
        counters
    }

    /// The counters as a page in the text format of Prometheus (0.0.4), for a program to serve.
    pub fn metrics(&self) -> String {
        self.counters().metrics()
    }

    /// The names of the block devices of all files opened so far, by index. For a device without a name, it is the type
    /// of its file system. A device has several entries if its file systems need different I/O. From the ninth device
    /// on, a new one may replace a device without open files.
    pub fn drives(&self) -> Vec<String> {
        if !self.inner.exec.home.is_here() {
            return Vec::new();
        }
        let mut drives: Vec<(u16, String)> =
            lock(&self.inner.known).iter().map(|k| (k.drive, k.name.clone())).collect();
        drives.sort();
        drives.dedup_by_key(|(drive, _)| *drive);
        drives.into_iter().map(|(_, name)| name).collect()
    }

    /// Like [`Array::resize_cache`](super::Array::resize_cache), up to [`CacheOptions::max_bytes`].
    pub fn resize_cache(&self, bytes: u64) -> Result<()> {
        check_may_block("resize_cache")?;
        self.inner.exec.check_open()?;
        let Some(pager) = &self.inner.pager else {
            let error = Error::invalid("resizing the cache", "the runtime was made without one");
            return Err(error.advise("make it with `RuntimeOptions::cache_bytes`"));
        };
        pager.resize(&self.inner.exec, bytes)
    }

    /// Advances a runtime without threads (a simulation) by one step.
    #[cfg(feature = "internals")]
    pub fn step(&self) {
        if self.inner.exec.home.is_here() {
            self.inner.exec.pause();
        }
    }

    pub(super) fn exec(&self) -> &Exec {
        &self.inner.exec
    }

    /// Whether files are opened for direct I/O. Not with the engine `mmap`: copies from mapped files are not aligned.
    pub(super) fn is_direct(&self) -> bool {
        self.inner.options.engine != Some(EngineKind::Mmap)
    }

    pub(super) fn open(&self, call: &'static str, paths: &[PathBuf], access: Access) -> Result<File> {
        check_may_block(call)?;
        self.open_found(paths, access).map(|(file, _)| file)
    }

    /// Opens files, and returns also which files were found.
    fn open_found(&self, paths: &[PathBuf], access: Access) -> Result<(File, Places)> {
        let inner: &Arc<RuntimeInner> = &self.inner;
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(inner) as _;
        let platform = &*inner.options.platform;
        let drive = |file: &PlainFile| inner.drive_of(file);
        let (opened, places) =
            inner.files.open_plain(platform, inner.pager.as_ref(), (paths, access), drive, &owner)?;
        let origin = (!access.write).then(|| {
            let places = places.clone();
            Box::new(PlainOrigin { runtime: Arc::downgrade(inner), places }) as Box<dyn Origin>
        });
        Ok((File::new(opened, inner.options.cache.read_ahead_bytes, origin), places))
    }
}

/// Futures.
impl Runtime {
    /// Runs a call that opens a file on a thread that may wait. Releases the runtime before the future resolves.
    pub(super) fn open_later<T: Send + 'static>(&self, call: impl FnOnce() -> Result<T> + Send + 'static) -> Answer<T> {
        if let Err(error) = self.inner.exec.check_open() {
            return Answer::now(Err(error));
        }
        let (runtime, queued) = (self.clone(), self.inner.exec.queue_call());
        answer_later(&self.inner.exec.opens, move |promise| {
            let result = call();
            drop(queued);
            drop(runtime);
            promise.keep(result);
        })
    }
}

/// The paths of plain files that a runtime reads as one.
#[derive(Debug)]
struct PlainOrigin {
    runtime: Weak<RuntimeInner>,
    places: Places,
}

impl Origin for PlainOrigin {
    fn open(&self, _name: &str) -> Result<File> {
        let runtime = self.runtime.upgrade().ok_or(Error::Forked)?;
        let paths: Vec<PathBuf> = self.places.iter().map(|(path, _)| path.clone()).collect();
        let runtime = runtime.in_child()?;
        let access = Access { write: false, create: false, direct: runtime.is_direct() };
        let (file, found) = runtime.open_found(&paths, access)?;
        match found.iter().zip(&self.places).find(|((_, now), (_, before))| now != before) {
            None => Ok(file),
            Some((_, (path, _))) => {
                let why = "another program has replaced it since the parent process opened it";
                Err(Error::invalid(path.display().to_string(), why).advise("open it again"))
            }
        }
    }
}

impl RuntimeInner {
    /// The runtime that a forked child makes in place of this one.
    fn in_child(&self) -> Result<&Runtime> {
        let start = || if self.is_shared { Runtime::shared() } else { RuntimeOptions(self.options.in_child()).start() };
        of_process(&self.again, start)
    }

    fn new(options: ArrayOptions, is_shared: bool) -> Result<RuntimeInner> {
        let roles = setup::check(&options, &[options.depth_of(None)], true)?;
        let mut notices = Vec::new();
        // Names of drives are not known yet, so the counters are not shown to other processes.
        let subject = Subject { array: [0; 16], drives: vec![String::new(); DRIVES_MAX] };
        let board = Board::new(&subject, &[], 0, &mut notices).map_err(Error::memory("counters", BANKS_BYTES))?;
        let (regions, instance) = (Arc::<Regions>::default(), exec::next_instance());
        let pager = Pager::new(&options.pager(), &roles, instance, &regions, &board, &mut notices)?;
        let kept = Arc::<Notices>::default();
        notices.into_iter().for_each(|notice| kept.push(notice));
        let cpus = Arc::<Mutex<Vec<Vec<usize>>>>::default();
        let cpus_later = Arc::clone(&cpus);
        let exec = Arc::new(Exec::new(exec::Setup {
            platform: Arc::clone(&options.platform),
            services: Vec::new(),
            most_drives: DRIVES_MAX,
            may_change_engines: options.engine.is_none(),
            has_drive_threads: options.drive_threads_in_force(),
            cpus: Box::new(move || Ok(lock(&cpus_later).clone())),
            hold: Vec::new(),
            regions,
            board,
            notices: kept,
            instance,
        }));
        let files = OpenFiles::new(&exec, SumsMemory::beside_cache(0));
        let (known, users, again) = (Mutex::default(), DriveUsers::new(DRIVES_MAX), Again::empty());
        Ok(RuntimeInner { options, exec, pager, files, known, users, cpus, is_shared, again })
    }

    /// The drive of a file. For a new device a drive is added, or reused from a device without open files.
    fn drive_of(&self, file: &PlainFile) -> Result<DriveHold> {
        let mut known = lock(&self.known);
        let (device, align) = (file.stamp.identity.device, file.align);
        if let Some(found) = known.iter().find(|known| (known.device, known.align) == (device, align)) {
            return Ok(self.users.hold(found.drive));
        }
        let path = file.open.full_path();
        let ground = file.open.fs().ground().map_err(|e| Error::io("examine", &path, e))?;
        let block_device = ground.device_id;
        let same = known.iter().find(|known| (known.block_device, known.align) == (block_device, align));
        let (drive, name) = match same {
            Some(same) => (same.drive, same.name.clone()),
            None => (self.new_drive(file, &ground, &mut known)?, name_of(&ground).to_owned()),
        };
        if let Some(why) = file.stamp.drops {
            let place = file.open.fs().location().display();
            let what = "pages of a file leave the cache with its last handle";
            self.exec.notice(format!("{} under {place}: {what}: {why}", name_of(&ground)));
        }
        known.push(Known { device, align, block_device, name, drive });
        Ok(self.users.hold(drive))
    }

    /// The depth of a block device. If the kernel's queue is short, a second reading thread must still find free
    /// entries in it.
    fn depth_of(&self, ground: &Ground) -> u32 {
        let by_device = || Some((devices::requests(&Tree::machine(), &ground.device)? / 2).clamp(DEFAULT_DEPTH, DEPTH));
        self.options.depth.or_else(by_device).unwrap_or(DEFAULT_DEPTH)
    }

    /// A drive for a device that has none: a new one, or that of a device without open files. With `DRIVES_MAX` devices
    /// in use, the device shares another device's drive.
    fn new_drive(&self, file: &PlainFile, ground: &Ground, known: &mut Vec<Known>) -> Result<u16> {
        let mut notices = Vec::new();
        let name = format!("{} under {}", name_of(ground), file.open.fs().location().display());
        let place = setup::Place { fs: &**file.open.fs(), probe: file.open.handle(), align: file.align, name: &name };
        let mut service: Service = setup::service(&self.options, place, self.depth_of(ground), &mut notices)?;
        let count = self.exec.services.count();
        let is_alike =
            |other: &Service| (other.kind, other.align, other.poll) == (service.kind, service.align, service.poll);
        let alike = (0..count as u16).filter(|&drive| is_alike(&self.exec.services[usize::from(drive)]));
        let least = alike.min_by_key(|&drive| self.users.count(drive));
        let drive = match least {
            Some(idle) if count >= DRIVES_KEPT && self.users.count(idle) == 0 => {
                known.retain(|known| known.drive != idle);
                idle
            }
            Some(shared) if count >= DRIVES_MAX => shared,
            _ => {
                let drive = count as u16;
                if count < DRIVES_MAX {
                    service.meter = Some(Meter::new(&self.exec.board, drive, &self.exec.clock));
                }
                // Stored before the drive is added, so that its thread finds the CPUs.
                lock(&self.cpus).push(setup::near(ground.cpus.clone(), &cpu::allowed().unwrap_or_default()));
                let why = format!(
                    "a runtime has files on {DRIVES_MAX} block devices at most, and none of them is used like this one"
                );
                let added = self.exec.add_drive(service);
                added.ok_or_else(|| Error::drive(file.open.full_path(), why).advise("use another `Runtime` for it"))?
            }
        };
        notices.into_iter().for_each(|notice| self.exec.notice(notice));
        Ok(drive)
    }
}

/// The name of a block device, or without one the type of the file system.
fn name_of(ground: &Ground) -> &str {
    if ground.device.is_empty() { &ground.file_system } else { &ground.device }
}

impl Drop for RuntimeInner {
    fn drop(&mut self) {
        if self.exec.is_open() {
            // No file is open, because each open file holds the runtime. So there is no failed write to report.
            let _ = self.files.close(self.pager.as_ref(), || Ok(()));
        }
    }
}
