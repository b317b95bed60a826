//! A test's handle on a simulated machine.
//!
//! Goals: one call for each action of a test on the machine, and for each observation. Non-goals: the view of the
//! program under test, which is [`World::platform`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::dice::Survival;
use crate::disk::{Disk, File};
use crate::errno;
use crate::fault::{Faults, Met};
use crate::image::Image;
use crate::state::{Drive, DriveModel, DriveStats, State};

/// A simulated machine. Clones are the same machine.
///
/// All its events happen on the calling thread, during a call. It has a lock only because traits demand it. A drive
/// that does not exist, or a path that is taken, is a mistake of the test and panics.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("World")
            .field("now_ns", &state.now_ns)
            .field("boot", &state.boot)
            .field("down", &state.down)
            .field("drives", &state.drives.len())
            .field("operations", &state.operations)
            .field("effects", &state.effects)
            .finish_non_exhaustive()
    }
}

impl World {
    /// A machine without drives. `seed` decides all its events.
    pub fn new(seed: u64) -> World {
        World { state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// Adds `count` empty drives at `/sim/<index>`.
    pub fn with_drives(self, count: usize, model: DriveModel) -> World {
        for _ in 0..count {
            let index = self.drives();
            self.add_drive(format!("/sim/{index}"), model.clone());
        }
        self
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Drives.

    /// Adds an empty drive at a path. Returns the drive's index.
    pub fn add_drive(&self, path: impl Into<PathBuf>, model: DriveModel) -> usize {
        let mut state = self.state();
        let path = path.into();
        let taken = state.drives.iter().any(|drive| drive.plugged && drive.path == path);
        assert!(!taken, "there is a drive at {} already", path.display());
        state.drives.push(Drive {
            path,
            channels_ns: vec![0; model.channels.max(1)],
            model,
            disk: Disk::default(),
            plugged: true,
            stats: DriveStats::default(),
            in_flight: 0,
            fsync_failures: Arc::default(),
        });
        state.drives.len() - 1
    }

    /// The number of drives, unplugged ones included.
    pub fn drives(&self) -> usize {
        self.state().drives.len()
    }

    /// A drive's directory.
    pub fn path(&self, drive: usize) -> PathBuf {
        self.state().drives[drive].path.clone()
    }

    /// All drives' directories.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state().drives.iter().map(|drive| drive.path.clone()).collect()
    }

    /// Mounts a drive at another path. Two drives can swap places by way of a third path.
    pub fn move_drive(&self, drive: usize, to: impl Into<PathBuf>) {
        let to = to.into();
        let mut state = self.state();
        let taken = state.drives.iter().any(|other| other.plugged && other.path == to);
        assert!(!taken, "there is a drive at {} already", to.display());
        state.drives[drive].path = to;
    }

    /// Copies a drive, like `cp -a` to a new drive. All bytes that are readable now are durable in the copy. Returns
    /// the copy's index.
    pub fn duplicate_drive(&self, drive: usize, to: impl Into<PathBuf>) -> usize {
        let (model, mut disk) = {
            let state = self.state();
            (state.drives[drive].model.clone(), state.drives[drive].disk.clone())
        };
        disk.settle();
        let index = self.add_drive(to, model);
        self.state().drives[index].disk = disk;
        index
    }

    /// Empties a drive, like a new one in its place. Open files on it become invalid.
    pub fn erase(&self, drive: usize) {
        self.state().drives[drive].disk = Disk::default();
    }

    /// Unplugs a drive. Its directory is gone, and operations on open files fail with EIO.
    pub fn unplug(&self, drive: usize) {
        self.state().drives[drive].plugged = false;
    }

    /// Plugs a drive in again, at its path.
    pub fn plug(&self, drive: usize) {
        let mut state = self.state();
        let path = state.drives[drive].path.clone();
        let taken = state.drives.iter().any(|other| other.plugged && other.path == path);
        assert!(!taken, "there is a drive at {} already", path.display());
        state.drives[drive].plugged = true;
    }

    /// Changes a drive's capacity.
    pub fn set_capacity(&self, drive: usize, capacity_bytes: Option<u64>) {
        self.state().drives[drive].model.capacity_bytes = capacity_bytes;
    }

    /// The space of a drive's files in bytes.
    pub fn used_bytes(&self, drive: usize) -> u64 {
        self.state().used_pages(drive) * crate::image::PAGE_BYTES
    }

    /// The counts of engines' requests to a drive.
    pub fn stats(&self, drive: usize) -> DriveStats {
        self.state().drives[drive].stats
    }

    // Faults, crashes and reboots.

    /// Reads or changes the faults.
    pub fn faults<R>(&self, change: impl FnOnce(&mut Faults) -> R) -> R {
        // The lock is free meanwhile, so that the closure may use the world.
        let mut faults = self.state().faults.clone();
        let result = change(&mut faults);
        self.state().faults = faults;
        result
    }

    /// Cuts the machine's power. The seed decides which unsynced changes survive. All operations fail until
    /// [`World::reboot`]. Does nothing if the machine is down already.
    pub fn crash(&self) {
        self.crash_with(Survival::Seeded);
    }

    /// As [`World::crash`], with a given outcome.
    pub fn crash_with(&self, survival: Survival) {
        self.state().crash(survival);
    }

    /// Whether the machine is down.
    pub fn crashed(&self) -> bool {
        self.state().down
    }

    /// Boots the machine again. Without a crash before, there is an orderly shutdown first, which makes all changes
    /// durable. All handles, locks and engines are gone.
    pub fn reboot(&self) {
        let mut state = self.state();
        if !state.down {
            state.end_process(false);
            state.drives.iter_mut().for_each(|drive| drive.disk.settle());
        }
        state.down = false;
        state.note("boot");
    }

    /// Ends the process that uses the drives, like SIGKILL. Handles, locks and engines are gone. Written bytes stay
    /// readable, and are as volatile as before. Each write in flight has happened or not.
    pub fn kill_process(&self) {
        let mut state = self.state();
        if !state.down {
            state.end_process(false);
            state.note("process killed");
        }
    }

    // Looks at the machine.

    /// The number of operations so far, reads too: `DriveFs` calls that reach a drive, and requests of engines.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The number of syncs of files so far, failed ones too.
    pub fn fsyncs(&self) -> u64 {
        self.state().fsyncs
    }

    /// The number of changes of drives so far (writes, syncs, names, lengths). At each of them a crash may make a
    /// difference.
    pub fn effects(&self) -> u64 {
        self.state().effects
    }

    /// The faults that requests to drives have met since the last call.
    pub fn take_met(&self) -> Met {
        self.state().take_met()
    }

    /// The number of requests that were pushed to engines and have not ended.
    pub fn in_flight(&self) -> usize {
        self.state().flights.len()
    }

    /// The number of requests that were in flight when their engine was dropped.
    pub fn abandoned(&self) -> u64 {
        self.state().abandoned
    }

    /// The breaches of the contracts of `Engine` and `DriveFs` so far. A test should find none.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// The number of open file descriptions, of handles, engines and requests in flight. It helps to find leaks.
    pub fn open_files(&self) -> usize {
        self.state().opens.len()
    }

    /// A hash of all events, the same for all runs of one seed.
    pub fn trace_hash(&self) -> u64 {
        self.state().trace.hash()
    }

    /// The last events in words, for the message of a failed test.
    pub fn trace_tail(&self) -> String {
        self.state().trace.tail()
    }

    /// The virtual time. Unlike a read of the platform's clock, this call takes none.
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    /// Lets this much time pass, with all its events.
    pub fn pass(&self, time: Duration) {
        let mut state = self.state();
        let until_ns = state.now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        state.advance_to(until_ns);
    }

    // Changes of files without the program's knowledge. Paths are relative to `<drive>/iomill`. A change also makes
    // earlier writes to that file, or earlier changes of that directory, durable.

    /// The paths of all files of a drive, sorted.
    pub fn files(&self, drive: usize) -> Vec<String> {
        self.state().drives[drive].disk.tree.paths()
    }

    /// All bytes of a file, as a read would return them now.
    pub fn read(&self, drive: usize, path: &str) -> io::Result<Vec<u8>> {
        self.with_file(drive, path, |file| {
            let mut bytes = vec![0; file.now.len() as usize];
            file.now.read(0, &mut bytes);
            bytes
        })
    }

    /// Flips all bits of a range of a file, durably. The range ends at the end of the file.
    pub fn corrupt(&self, drive: usize, path: &str, offset: u64, len: usize) -> io::Result<()> {
        self.state().rotten.insert((drive, path.to_owned()));
        self.tamper(drive, path, |image| {
            let mut bytes = vec![0; len];
            let read = image.read(offset, &mut bytes);
            bytes.truncate(read);
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            image.write(offset, &bytes);
        })
    }

    /// Cuts or extends a file, durably.
    pub fn cut(&self, drive: usize, path: &str, len: u64) -> io::Result<()> {
        self.tamper(drive, path, |image| image.set_len(len))
    }

    /// Replaces the contents of a file, or creates it with its directories, durably.
    pub fn put(&self, drive: usize, path: &str, bytes: &[u8]) -> io::Result<()> {
        {
            let mut state = self.state();
            let disk = &mut state.drives[drive].disk;
            disk.made = true;
            for (end, _) in path.match_indices('/') {
                disk.tree.make_dir(&path[..end])?;
                disk.tree.sync_dir(parent(&path[..end]))?;
            }
            if disk.tree.find_file(path).is_err() {
                disk.create(path)?;
                disk.tree.sync_dir(parent(path))?;
            }
        }
        self.tamper(drive, path, |image| {
            image.set_len(0);
            image.extend(bytes.len() as u64);
            image.write(0, bytes);
        })
    }

    /// Removes a file, durably.
    pub fn remove(&self, drive: usize, path: &str) -> io::Result<()> {
        let mut state = self.state();
        let disk = &mut state.drives[drive].disk;
        disk.tree.unlink(path)?;
        disk.tree.sync_dir(parent(path))
    }

    fn tamper(&self, drive: usize, path: &str, change: impl Fn(&mut Image)) -> io::Result<()> {
        self.with_file(drive, path, |file| file.tamper(change))
    }

    fn with_file<R>(&self, drive: usize, path: &str, body: impl FnOnce(&mut File) -> R) -> io::Result<R> {
        let mut state = self.state();
        let disk = &mut state.drives[drive].disk;
        let file = disk.tree.find_file(path)?;
        disk.files.get_mut(&file).map(body).ok_or_else(|| errno(libc::ENOENT))
    }

    /// The drive at a path.
    pub fn drive_at(&self, path: impl AsRef<Path>) -> Option<usize> {
        self.state().drives.iter().position(|drive| drive.plugged && drive.path == path.as_ref())
    }
}

/// The directory of a file.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}
