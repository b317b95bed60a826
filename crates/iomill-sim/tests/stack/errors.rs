//! Errors of drives: they are typed, name the right place, and harm nothing else.

use std::collections::BTreeMap;

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, File, FileOptions, PutOptions};
use iomill_sim::{Death, DriveModel, Fault, Injection, Kind, Rates, World};

use super::harness::{
    Memory, Round, assert_same, assert_tidy, block_on, bytes, file_options, length, machine_with, offset, open_with,
    rounds, uncached_options,
};
use super::model::put;

/// Seeds that once showed a bug.
const ONCE_FAILED: &[u64] =
    &[14798280252506896045, 5315534179368183319, 14567722713274507215, 9425064898192863044, 1390405290413994490];

#[test]
fn errors_harm_nothing_but_what_they_hit() {
    rounds("errors_harm_nothing_but_what_they_hit", 60, ONCE_FAILED, run);
}

/// A file, the bytes that it should hold, and the bytes that failed writes may have left instead.
struct UncertainTwin {
    bytes: Vec<u8>,
    /// By offset: bytes that the file may hold there instead of `bytes`. Bytes that a failed write left beyond the end
    /// never become visible.
    doubtful: BTreeMap<usize, Vec<u8>>,
    /// Lengths, one of which is durable: that of the last sync that succeeded, and those of later ones.
    durable: Vec<usize>,
    /// `bytes` before a change of the length that failed.
    before: Vec<u8>,
    file: Option<File>,
    poisoned: bool,
}

struct Model {
    array: Option<Array>,
    files: BTreeMap<String, UncertainTwin>,
    names: u32,
}

fn run(round: &mut Round) {
    let mut model = Model { array: Some(machine_with(round, uncached_options)), files: BTreeMap::new(), names: 0 };
    let (rng, world) = (&mut round.rng, &round.world);
    for _ in 0..rng.usize(1..5) {
        let rates = Rates::draw(|| [0, 0, 20, 150][rng.usize(0..4)]);
        world.faults(|faults| faults.rates = rates);
        for _ in 0..rng.usize(5..30) {
            model.step(rng, world);
            let array = model.array();
            // After a change that failed on all copies of the catalog, the names in memory may be wrong. Then no page
            // is given to a file.
            let is_known = matches!(array.stat("no such file"), Err(Error::NotFound { .. }));
            assert!(!is_known || array.unnamed_pages() >= 0, "two files have a page");
        }
        world.faults(|faults| faults.rates = Rates::default());
        model.settle(rng, world);
        assert_eq!(world.violations(), Vec::<String>::new());
    }
    model.files.clear();
    model.array.take().unwrap().close().unwrap();
    assert_tidy(world);
}

/// An error that the rates above cause names its place, and has a kind that fits.
fn check(error: &Error) {
    let text = error.to_string();
    match error {
        Error::Io { action: "read" | "write", path, offset: None, .. } if path.iter().any(|name| name == "parts") => {
            panic!("the error has no offset: {text}");
        }
        Error::Io { path, source, .. } => {
            assert!(path.starts_with("/sim"), "{text}");
            assert!(matches!(source.raw_os_error(), Some(libc::EIO | libc::ENOSPC)), "{text}");
        }
        Error::OutcomeUnknown { source, .. } => check(source),
        Error::Poisoned { .. } | Error::ReadOnly { .. } => {}
        Error::Corrupt { .. } | Error::Drive { .. } => assert!(text.contains("/sim/"), "{text}"),
        _ => panic!("no drive can cause this error: {text}"),
    }
}

impl Model {
    fn array(&self) -> Array {
        self.array.clone().unwrap()
    }

    fn step(&mut self, rng: &mut Rng, world: &World) {
        if self.files.is_empty() || (self.files.len() < 4 && rng.u8(0..8) == 0) {
            return self.create(rng, world);
        }
        let name = self.files.keys().nth(rng.usize(0..self.files.len())).unwrap().clone();
        match rng.u8(0..30) {
            0 => self.rename(rng, world, &name),
            1 => self.delete(rng, world, &name),
            2 => self.reopen_file(rng, &name),
            3 | 4 => self.put(rng, world, &name),
            _ => self.call(rng, &name),
        }
    }

    fn create(&mut self, rng: &mut Rng, world: &World) {
        let array = self.array();
        self.names += 1;
        let (name, drives) = (format!("f{}", self.names), 1);
        let twin = |file| UncertainTwin::new(Vec::new(), file);
        match array.create_file(&name, &file_options(rng, drives)) {
            Ok(file) => drop(self.files.insert(name, twin(Some(file)))),
            Err(error) => {
                drop(array);
                self.after_naming(rng, world, &error);
                // Either the file was created after all, or the new file could not be opened.
                if self.array().list("").names().unwrap().contains(&name) {
                    self.files.insert(name, twin(None));
                }
            }
        }
    }

    /// After an error with an unknown outcome, the open array shows the outcome.
    fn after_naming(&mut self, rng: &mut Rng, world: &World, error: &Error) {
        check(error);
        // Another change, such as the removal of a dying file, may have failed on all copies meanwhile.
        let is_known = matches!(self.array().stat("no such file"), Err(Error::NotFound { .. }));
        if !is_known || matches!(error, Error::OutcomeUnknown { .. } | Error::ReadOnly { .. }) {
            self.reopen_array(rng, world);
        }
    }

    fn rename(&mut self, rng: &mut Rng, world: &World, name: &str) {
        self.names += 1;
        let victim = self.files.keys().nth(rng.usize(0..self.files.len())).unwrap().clone();
        let to = if victim != name && rng.bool() { victim } else { format!("f{}", self.names) };
        self.files.get_mut(name).unwrap().drop_file();
        self.files.get_mut(&to).into_iter().for_each(UncertainTwin::drop_file);
        // The clone of the array is gone before it is opened again.
        let renamed = self.array().rename(name, &to);
        if let Err(error) = renamed {
            self.after_naming(rng, world, &error);
        }
        if !self.array().list("").names().unwrap().iter().any(|there| there == name) {
            let twin = self.files.remove(name).unwrap();
            self.files.insert(to, twin);
        }
    }

    fn delete(&mut self, rng: &mut Rng, world: &World, name: &str) {
        self.files.get_mut(name).unwrap().drop_file();
        let deleted = self.array().delete(name);
        if let Err(error) = deleted {
            self.after_naming(rng, world, &error);
        }
        if !self.array().list("").names().unwrap().iter().any(|there| there == name) {
            self.files.remove(name);
        }
    }

    /// A failed put leaves the name its content. If its outcome is unknown, the array that is opened again has the old
    /// content or the new.
    fn put(&mut self, rng: &mut Rng, world: &World, name: &str) {
        self.names += 1;
        let name = if rng.bool() { name.to_owned() } else { format!("f{}", self.names) };
        let len = length(rng).min(100_000);
        let (content, options) = (bytes(rng, len), PutOptions::new().file(file_options(rng, 1)));
        let version = |array: Array| array.stat(&name).ok().map(|stat| stat.version);
        let before = version(self.array());
        self.files.get_mut(&name).into_iter().for_each(UncertainTwin::drop_file);
        let result = self.array().put(&name, &content, &options);
        if let Err(error) = &result {
            self.after_naming(rng, world, error);
        }
        let is_unknown = matches!(result, Err(Error::OutcomeUnknown { .. }));
        if result.is_ok() || (is_unknown && version(self.array()) != before) {
            self.files.insert(name, UncertainTwin::new(content, None));
        }
    }

    fn reopen_file(&mut self, rng: &mut Rng, name: &str) {
        let twin = self.files.get_mut(name).unwrap();
        if let Some(file) = &twin.file
            && rng.bool()
            && let Err(error) = file.clone().close()
        {
            check(&error);
        }
        twin.drop_file();
    }

    fn call(&mut self, rng: &mut Rng, name: &str) {
        let array = self.array();
        let twin = self.files.get_mut(name).unwrap();
        let file = match &twin.file {
            Some(file) => file.clone(),
            None => match array.open_file(name) {
                Ok(file) => {
                    twin.opened(&file);
                    twin.file = Some(file.clone());
                    file
                }
                Err(error) => return check(&error),
            },
        };
        match rng.u8(0..10) {
            0..4 => twin.read(rng, &array, &file),
            4..8 => twin.write(rng, &array, &file),
            8 => twin.sync(rng, &array, &file),
            _ => twin.set_len(rng, &file),
        }
    }

    fn reopen_array(&mut self, rng: &mut Rng, world: &World) {
        let rates = world.faults(|faults| std::mem::take(&mut faults.rates));
        self.files.values_mut().for_each(UncertainTwin::drop_file);
        let closed = self.array.take().unwrap().close();
        let _ = closed.inspect_err(check);
        assert_tidy(world);
        self.array = Some(open_with(rng, world, uncached_options).unwrap());
        world.faults(|faults| faults.rates = rates);
    }

    /// Errors have stopped, so everything is as it should be.
    fn settle(&mut self, rng: &mut Rng, world: &World) {
        // After a change that failed on all copies of the catalog no name is certain.
        let array = self.array();
        let is_known = self.files.keys().all(|name| array.stat(name).is_ok());
        drop(array);
        if is_known {
            self.compare(rng);
        }
        self.reopen_array(rng, world);
        let names: Vec<String> = self.files.keys().cloned().collect();
        assert_eq!(self.array().list("").names().unwrap(), names);
        self.compare(rng);
        self.files.values_mut().for_each(UncertainTwin::drop_file);
        super::crash::assert_clean_beside(world, self.array.take().unwrap());
        self.array = Some(open_with(rng, world, uncached_options).unwrap());
    }

    fn compare(&mut self, rng: &mut Rng) {
        let array = self.array();
        for (name, twin) in &mut self.files {
            let file = match &twin.file {
                Some(file) => file.clone(),
                None => {
                    let file = array.open_file(name).unwrap();
                    twin.opened(&file);
                    twin.file.insert(file).clone()
                }
            };
            let mut memory = Memory::new(rng, twin.bytes.len() + 1);
            let read = file.read_at(memory.get_mut(), 0).unwrap();
            assert_eq!(read, twin.bytes.len(), "{name}");
            twin.learn(0, &memory.get()[..read]);
        }
    }
}

impl UncertainTwin {
    /// A file of this content, which is durable.
    fn new(bytes: Vec<u8>, file: Option<File>) -> UncertainTwin {
        let durable = vec![bytes.len()];
        UncertainTwin { bytes, doubtful: BTreeMap::new(), durable, before: Vec::new(), file, poisoned: false }
    }

    /// A drop of a file syncs it. An error is only noted.
    fn drop_file(&mut self) {
        if self.file.take().is_some() {
            self.durable.push(self.bytes.len());
        }
    }

    /// A change of the length may have happened or not, if it or its sync failed.
    fn opened(&mut self, file: &File) {
        let len = file.len() as usize;
        assert!(self.durable.contains(&len), "the length is {len}, not one of {:?}", self.durable);
        if len > self.bytes.len() {
            let cut = std::mem::take(&mut self.before);
            self.bytes.extend(&cut[self.bytes.len()..]);
        }
        assert!(len <= self.bytes.len());
        self.bytes.truncate(len);
        self.doubtful.retain(|at, _| *at < len);
        self.durable = vec![len];
        self.poisoned = false;
    }

    /// A byte of a failed write is the old or the new one. Once it was read it does not change.
    fn learn(&mut self, at: usize, found: &[u8]) {
        let doubtful: Vec<usize> = self.doubtful.range(at..at + found.len()).map(|(at, _)| *at).collect();
        for place in doubtful {
            let options = self.doubtful.remove(&place).unwrap();
            if options.contains(&found[place - at]) {
                self.bytes[place] = found[place - at];
            }
        }
        assert_same(found, &self.bytes[at..at + found.len()], || format!("a file at {at}"));
    }

    fn read(&mut self, rng: &mut Rng, array: &Array, file: &File) {
        let (at, len) = (offset(rng, self.bytes.len()), length(rng));
        let wanted = len.min(self.bytes.len() - at);
        if rng.u8(0..3) == 0 {
            match block_on(array, file.read_async(at as u64, len)) {
                Ok(found) => {
                    assert_eq!(found.len(), wanted);
                    self.learn(at, &found);
                }
                Err(error) => check(&error),
            }
            return;
        }
        let mut memory = Memory::new(rng, len);
        match file.read_at(memory.get_mut(), at as u64) {
            Ok(read) => {
                assert_eq!(read, wanted);
                self.learn(at, &memory.get()[..read]);
            }
            Err(error) => check(&error),
        }
        memory.check();
    }

    fn write(&mut self, rng: &mut Rng, array: &Array, file: &File) {
        let (at, len) = (offset(rng, self.bytes.len() + 20_000), length(rng).min(60_000));
        let new = bytes(rng, len);
        let result = if rng.u8(0..3) == 0 {
            block_on(array, file.write_at_async(new.clone(), at as u64))
                .map(|back| assert_same(&back, &new, String::new))
                .map_err(Error::from)
        } else {
            file.write_at(Memory::holding(rng, &new).get(), at as u64)
        };
        match result {
            Ok(()) => {
                let old_len = self.bytes.len();
                put(&mut self.bytes, at, &new);
                let written: Vec<usize> = self.doubtful.range(at..at + len).map(|(at, _)| *at).collect();
                written.iter().for_each(|at| drop(self.doubtful.remove(at)));
                assert!(self.bytes.len() >= old_len);
            }
            Err(error) => {
                check(&error);
                assert_eq!(matches!(error, Error::Poisoned { .. }), self.poisoned, "{error}");
                if !self.poisoned {
                    let within = new.iter().enumerate().take(self.bytes.len().saturating_sub(at));
                    within.for_each(|(i, &byte)| self.doubtful.entry(at + i).or_default().push(byte));
                }
                // An earlier failed write left bytes beyond the end that could not be cleared.
                self.poisoned |= matches!(file.write_at(&[], 0), Err(Error::Poisoned { .. }));
            }
        }
        assert_eq!(file.len(), self.bytes.len() as u64);
    }

    fn sync(&mut self, rng: &mut Rng, array: &Array, file: &File) {
        let result = if rng.bool() { file.sync() } else { block_on(array, file.sync_async()) };
        if let Err(error) = &result {
            check(error);
            assert_eq!(matches!(error, Error::Poisoned { .. }), self.poisoned, "{error}");
        }
        self.durable.push(self.bytes.len());
        if result.is_ok() {
            self.durable = vec![self.bytes.len()];
        }
        assert!(result.is_err() || !self.poisoned, "a poisoned file reports a successful sync");
        // A full drive refuses the length, and a later sync tries again.
        let is_full = result.as_ref().is_err_and(|error| error.errno() == Some(libc::ENOSPC));
        self.poisoned |= matches!(file.write_at(&[], 0), Err(Error::Poisoned { .. }));
        // A catalog that fails at this sync, or has failed before, makes no names durable.
        let has_failed = matches!(result, Err(Error::ReadOnly { .. } | Error::OutcomeUnknown { .. }));
        assert!(result.is_ok() || self.poisoned || is_full || has_failed, "{result:?}");
    }

    fn set_len(&mut self, rng: &mut Rng, file: &File) {
        let old = self.bytes.len();
        let len = if rng.bool() { rng.usize(0..=old) } else { old + rng.usize(0..50_000) };
        self.durable.extend([old, len]);
        match file.set_len(len as u64) {
            Ok(()) => {
                self.bytes.resize(len, 0);
                if len != old {
                    self.durable = vec![len];
                }
                self.doubtful.retain(|at, _| *at < len);
            }
            Err(error) => {
                check(&error);
                let now = file.len() as usize;
                assert!(now == old || now == len, "{now} is neither {old} nor {len}");
                if now < old && !self.poisoned {
                    self.before = self.bytes.clone();
                }
                self.bytes.resize(now, 0);
                // No write goes to a file of unknown length. A file that only could not grow goes on.
                self.poisoned |= matches!(file.write_at(&[], 0), Err(Error::Poisoned { .. }));
                assert!(self.poisoned || now == old, "{error}");
            }
        }
    }
}

/// A machine of healthy drives with an array and one synced file.
fn plain(seed: u64, drives: usize) -> (World, Array, File, Vec<u8>) {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(seed).with_drives(drives, DriveModel::default());
    let array = uncached_options(&mut rng, &world).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(8192)).unwrap();
    let content = bytes(&mut rng, 300_000);
    file.write_at(&content, 0).unwrap();
    file.sync().unwrap();
    (world, array, file, content)
}

#[test]
fn an_error_names_the_part_and_the_offset() {
    let (world, array, file, content) = plain(1, 3);
    // Block 4 is the second of drive 1.
    let hit = |kind| Injection::new(kind, Fault::Errno(libc::EIO)).drive(1).path("parts/");
    world.faults(|faults| faults.inject(hit(Kind::Read)));
    let error = file.read_at(&mut [0; 100], 4 * 8192 + 5).unwrap_err();
    let Error::Io { action: "read", path, offset: Some(offset), source, .. } = &error else { panic!("{error}") };
    assert!(path.starts_with(world.path(1).join("iomill/parts")), "{error}");
    assert_eq!((*offset, source.raw_os_error()), (8192 + 5, Some(libc::EIO)));
    world.faults(|faults| faults.inject(hit(Kind::Write)));
    let error = file.write_at(&[0; 100], 4 * 8192 + 5).unwrap_err();
    assert!(matches!(&error, Error::Io { action: "write", offset: Some(8197), .. }), "{error}");
    let mut all = vec![0; content.len()];
    file.read_at(&mut all, 0).unwrap();
    assert_same(&all[..4 * 8192 + 5], &content[..4 * 8192 + 5], || "before".into());
    assert_same(&all[4 * 8192 + 105..], &content[4 * 8192 + 105..], || "behind".into());
    world.faults(|faults| faults.inject(hit(Kind::Sync)));
    file.write_at(&[0; 100], 8192).unwrap();
    let error = file.sync().unwrap_err();
    assert!(matches!(&error, Error::Io { action: "sync", offset: None, .. }), "{error}");
    assert!(matches!(file.write_at(&[0], 0), Err(Error::Poisoned { .. })));
    drop(file);
    array.open_file("file").unwrap().write_at(&[0], 0).unwrap();
    array.close().unwrap();
    assert_tidy(&world);
}

/// A small file that is opened again reads its last page before it first grows. A failed read changes nothing.
#[test]
fn a_read_that_fails_before_a_small_file_grows_fails_one_write() {
    for cache_bytes in [0, 1 << 20] {
        let world = World::new(6).with_drives(1, DriveModel::default());
        let options = ArrayOptions::new().platform(world.platform()).cache_bytes(cache_bytes);
        let array = options.create(world.paths()).unwrap();
        array.put("file", &[1; 3000], &PutOptions::new()).unwrap();
        let file = array.open_file("file").unwrap();
        world.faults(|faults| {
            faults.inject(Injection::new(Kind::Read, Fault::Errno(libc::EIO)).path("shared/").times(u64::MAX))
        });
        let error = file.write_at(&[2; 100], 3000).unwrap_err();
        assert!(matches!(error, Error::Io { action: "read", .. }), "{error}");
        world.faults(|faults| faults.clear());
        file.write_at(&[2; 100], 3000).unwrap();
        file.close().unwrap();
        assert_eq!(array.read("file").unwrap(), [[1; 3000].as_slice(), &[2; 100]].concat());
        array.close().unwrap();
    }
}

/// The kernel reports the loss of a page once, so a later success means nothing.
#[test]
fn a_sync_that_failed_is_not_tried_again_and_closing_the_array_tells() {
    for errno in [libc::EIO, libc::ENOMEM, libc::EINTR] {
        let (world, array, file, _) = plain(6, 2);
        file.write_at(&[1; 100], 0).unwrap();
        let hit = Injection::new(Kind::Sync, Fault::Errno(errno)).drive(0).path("parts/");
        world.faults(|faults| faults.inject(hit));
        assert_eq!(file.sync().unwrap_err().errno(), Some(errno));
        assert!(matches!(array.close(), Err(Error::Poisoned { .. })));
        drop(file);
        assert_tidy(&world);
    }
}

#[test]
fn a_dead_drive_is_an_error_and_the_others_go_on() {
    for death in [Death::Empty, Death::Error] {
        let (world, array, file, content) = plain(2, 3);
        let other = array.create_file("other", &FileOptions::new().drives([0, 2])).unwrap();
        other.write_at(&content, 0).unwrap();
        world.faults(|faults| faults.kill(1, death));
        let mut all = vec![0; content.len()];
        let error = file.read_at(&mut all, 0).unwrap_err();
        match (death, &error) {
            (Death::Empty, Error::PartCut { path, .. }) => assert!(path.starts_with(world.path(1))),
            (Death::Error, Error::Io { path, .. }) => assert!(path.starts_with(world.path(1))),
            _ => panic!("{error}"),
        }
        assert!(file.write_at(&content, 0).is_err());
        assert!(file.sync().is_err());
        assert_eq!(file.read_at(&mut all[..8192], 0).unwrap(), 8192, "a block of a healthy drive");
        assert_same(&all[..8192], &content[..8192], || "block 0".into());
        other.write_at(&content[..5000], 100).unwrap();
        other.sync().unwrap();
        assert_eq!(other.read_at(&mut all, 0).unwrap(), content.len());
        assert_same(&all[100..5100], &content[..5000], || "the other file".into());
        drop((file, other));
        assert!(array.close().is_ok() || world.drives() == 3, "closing fails only if the drive is still dead");
        world.faults(|faults| faults.revive(1));
        let array = open_with(&mut Rng::with_seed(3), &world, uncached_options).unwrap();
        let file = array.open_file("file").unwrap();
        assert_eq!(file.read_at(&mut all, 0).unwrap(), content.len());
        assert_same(&all, &content, || "after the drive came back".into());
        assert_eq!(world.violations(), Vec::<String>::new());
    }
}

#[test]
fn handles_of_a_closed_array_say_so() {
    let (world, array, file, content) = plain(4, 2);
    // No thread steps an array that is closed.
    let (_, other, _, _) = plain(5, 1);
    let (pending, late) = (file.read_async(0, content.len()), array.clone());
    array.close().unwrap();
    assert_same(&block_on(&late, pending).unwrap(), &content, || "a read that began before the close".into());
    let closed = |result: iomill::Result<()>| assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    closed(file.read_at(&mut [0], 0).map(drop));
    closed(file.write_at(&[0], 0));
    closed(block_on(&late, file.read_async(0, 1)).map(drop));
    closed(block_on(&late, file.write_at_async(vec![1], 0)).map(drop).map_err(Error::from));
    closed(block_on(&other, file.sync_async()));
    closed(file.submit(Vec::new(), |_| panic!("the task has not begun")));
    closed(file.sync());
    closed(file.set_len(0));
    closed(file.preallocate(1));
    closed(late.open_file("file").map(drop));
    closed(late.create_file("new", &FileOptions::new()).map(drop));
    closed(late.delete("file"));
    closed(late.rename("file", "new"));
    closed(late.set_attribute("file", "key", None));
    closed(late.stat("file").map(drop));
    closed(late.close());
    drop(file);
    assert_tidy(&world);
}
