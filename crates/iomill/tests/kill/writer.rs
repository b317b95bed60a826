//! The process that is killed. It opens the array, performs the operations of its plan, and reports the begin and the
//! end of each on its error output. Any other output there is a failure of the test. So is a failed operation, unless
//! the test makes the drives fail: then the writer reports the failure, and goes on with other files.

use std::collections::{BTreeMap, HashMap};
use std::io::{IoSlice, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, File, PutOptions, Request};

use super::plan::{Call, Op, PAGE, Planner, WORKERS, Write, options, stamp};
use crate::executor::block_on;

/// The beginning of the writer's lines.
pub const MARK: &str = "kill:";

/// The number of the writer itself in its lines, beside those of its workers.
pub const ITSELF: usize = WORKERS;

/// The job of a writer.
#[derive(Clone, Debug)]
pub struct Job {
    pub seed: u64,
    pub round: u64,
    /// Only opens the array and all files, and closes them: the first work of every writer after a kill.
    pub only_opens: bool,
    /// Goes on after failed operations, until each file has met one.
    pub goes_on: bool,
    /// One drive of the array.
    pub drive: PathBuf,
}

impl Job {
    pub fn to_text(&self) -> String {
        let Job { seed, round, only_opens, goes_on, drive } = self;
        format!("{seed} {round} {only_opens} {goes_on} {}", drive.display())
    }

    pub fn from_text(text: &str) -> Job {
        let parts: Vec<&str> = text.splitn(5, ' ').collect();
        Job {
            seed: parts[0].parse().unwrap(),
            round: parts[1].parse().unwrap(),
            only_opens: parts[2].parse().unwrap(),
            goes_on: parts[3].parse().unwrap(),
            drive: parts[4].into(),
        }
    }

    /// How the writer opens the array, and a description in words.
    pub fn options(&self) -> (ArrayOptions, String) {
        options(&mut Rng::with_seed(self.seed ^ (self.round << 20)))
    }
}

/// Opens as soon as the lock is free: a ring that was closed may hold its files, and so the lock, a little longer.
pub fn open_when_free<T>(open: impl Fn() -> iomill::Result<T>) -> iomill::Result<T> {
    let start = Instant::now();
    loop {
        match open() {
            Err(Error::Locked { .. }) if start.elapsed() < crate::PATIENCE => {
                std::thread::sleep(Duration::from_micros(500));
            }
            result => return result,
        }
    }
}

/// Writes a line at once, so that lines of several workers never mix.
fn say(worker: usize, text: &str) {
    let line = format!("{MARK} {worker} {text}\n");
    assert!(line.len() <= 4096, "a pipe takes no more at once");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

fn failed(error: &Error) -> String {
    format!("failed: {error}").replace('\n', " ")
}

/// Runs until it is killed, or to the end of a job that has one.
pub fn run(job: &Job) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // The other workers would go on for ever.
        std::process::abort();
    }));
    if let Err(error) = run_job(job) {
        assert!(job.goes_on, "{error}");
        say(ITSELF, &failed(&error));
    }
}

fn run_job(job: &Job) -> iomill::Result<()> {
    say(ITSELF, "begin open");
    let array = open_when_free(|| job.options().0.open(&job.drive))?;
    if job.only_opens {
        say(ITSELF, "done");
        say(ITSELF, "begin open all");
        let files: Vec<File> =
            array.list("").names().unwrap().iter().map(|name| array.open_file(name)).collect::<iomill::Result<_>>()?;
        say(ITSELF, "done");
        say(ITSELF, "begin close");
        drop(files);
        array.close()?;
        say(ITSELF, "done");
        return Ok(());
    }
    let drives = array.info()?.drives.len() as u16;
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let names = array.list(&format!("w{number}/")).names().unwrap().into_iter();
        let lengths = names.map(|name| Ok((name.clone(), array.stat(&name)?.len_bytes)));
        let lengths = lengths.collect::<iomill::Result<BTreeMap<String, u64>>>()?;
        let planner = Planner::new(job.seed, job.round, number, drives, lengths);
        workers.push((Worker { array: &array, number, files: HashMap::new() }, planner));
    }
    // The test does not interrupt before this line, so all plans begin with the array's present files.
    say(ITSELF, "done");
    std::thread::scope(|scope| {
        let started = |(worker, planner)| scope.spawn(move || Worker::run(worker, planner, job.goes_on));
        let running: Vec<_> = workers.into_iter().map(started).collect();
        // Files with a failed operation stay open, because their last drop would sync them.
        let _open: Vec<HashMap<String, File>> = running.into_iter().map(|worker| worker.join().unwrap()).collect();
        say(ITSELF, "begin end");
        std::process::exit(0)
    })
}

struct Worker<'a> {
    array: &'a Array,
    number: usize,
    /// The open files.
    files: HashMap<String, File>,
}

impl Worker<'_> {
    /// Returns the open files when its plan is at its end.
    fn run(mut self, mut planner: Planner, goes_on: bool) -> HashMap<String, File> {
        while let Some(op) = planner.next() {
            say(self.number, &format!("begin {op:?}"));
            match self.perform(&op) {
                Ok(()) => say(self.number, "done"),
                Err(error) => {
                    assert!(goes_on, "{op:?}: {error}");
                    say(self.number, &failed(&error));
                    planner.forget(&op);
                }
            }
        }
        self.files
    }

    fn perform(&mut self, op: &Op) -> iomill::Result<()> {
        match op {
            Op::Create { name, shape } => {
                let file = self.array.create_file(name, &shape.file_options())?;
                self.files.insert(name.clone(), file);
            }
            Op::Open { name } => drop(self.files.insert(name.clone(), self.array.open_file(name)?)),
            Op::Close { name } => self.files.remove(name).unwrap().close()?,
            Op::Delete { name } => self.array.delete(name)?,
            Op::Rename { from, to, .. } => self.array.rename(from, to)?,
            Op::Put { name, shape, version, len, waits, .. } => {
                let options = PutOptions::new().file(shape.file_options()).attribute("version", version.to_string());
                let content = stamp(*version, 0, *len);
                match waits {
                    true => self.array.put(name, &content, &options)?,
                    false => block_on(self.array.put_async(name, content, &options))?,
                };
            }
            Op::Attribute { name, value } => self.array.set_attribute(name, "version", Some(&value.to_string()))?,
            Op::SetLen { name, to, .. } => self.files[name].set_len(*to)?,
            Op::Write { name, write } => self.write(&self.files[name], write)?,
            Op::Race { name, write } => {
                let file = &self.files[name];
                std::thread::scope(|scope| {
                    let sync = scope.spawn(|| file.sync());
                    self.write(file, write).and(sync.join().unwrap())
                })?;
            }
            Op::Sync { name } => self.files[name].sync()?,
        }
        Ok(())
    }

    fn write(&self, file: &File, write: &Write) -> iomill::Result<()> {
        let pieces: Vec<Vec<u8>> =
            write.ranges.iter().map(|(offset, len)| stamp(write.version, *offset, *len)).collect();
        let bytes = pieces.concat();
        let mut buffer = self.array.buffer(bytes.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let bytes = if write.aligned_memory { &buffer[..bytes.len()] } else { &bytes[..] };
        match write.call {
            Call::Ranges => {
                let ranges: Vec<_> = write.ranges.iter().map(|(offset, len)| (*offset, *len as usize)).collect();
                file.write_ranges(bytes, &ranges)
            }
            Call::Many => {
                let offsets: Vec<u64> = write.ranges.iter().map(|range| range.0).collect();
                file.write_many(bytes, &offsets, write.ranges[0].1 as usize)
            }
            Call::Vectored => {
                let (first, rest) = bytes.split_at(bytes.len() / 3);
                let (second, third) = rest.split_at(rest.len().min(PAGE as usize));
                file.write_vectored_at(&[first, second, third].map(IoSlice::new), write.ranges[0].0)
            }
            Call::Submit => {
                let tasks = pieces.into_iter().zip(&write.ranges);
                let tasks = tasks.map(|(bytes, (offset, _))| Request::Write { offset: *offset, bytes }).collect();
                let (sender, receiver) = mpsc::channel();
                file.submit(tasks, move |result| sender.send(result).unwrap())?;
                receiver.recv().unwrap().map(drop)
            }
        }
    }
}

/// Directories for the drives of a new array.
pub fn directories(root: &Path, drives: usize) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..drives).map(|drive| root.join(format!("d{drive}"))).collect();
    paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    paths
}
