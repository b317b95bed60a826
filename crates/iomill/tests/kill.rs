//! A writer is killed (SIGKILL) at random points, again and again on the same array. Each time the array must open and
//! keep its promises (listed in `kill/model.rs`).
//!
//! The writer is this program again, and gets its job by `JOB` (`kill/writer.rs`). It performs random operations
//! (`kill/plan.rs`) and reports when it begins and ends each. The kill comes after a random number of operations, at a
//! random point of the last one's usual time. Now and then a second writer is killed during its recovery from the first
//! kill.
//!
//! Non-goals: power failures. The kernel outlives a kill, and writes all data that it has accepted. The simulator
//! (`iomill-sim`) covers power failures, and `shutdown.rs` covers file systems that fail under the writer.
//!
//! `IOMILL_ROUNDS=100` multiplies the number of kills by a hundred, and `IOMILL_SEED` chooses the operations. A seed
//! does not repeat a failure exactly, since the time of a kill varies. After a failure the array is kept as it was
//! found.

mod model;
mod plan;
pub mod writer;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::catalog::{Record, check};
use iomill::engine::platform::Platform;
use iomill::engine::real::RealPlatform;
use iomill::layout::Map;
use iomill::{Array, ArrayOptions, CreateOptions, Error};

use self::model::{Found, Model};
use self::plan::{KINDS, Planner, Shape, WORKERS};
use self::writer::{ITSELF, Job, MARK, directories, open_when_free};
use crate::{PATIENCE, alone};

/// The test, which is also the writer.
const TEST: &str = "kill::a_killed_writer_breaks_no_promise";

/// The environment variable of a writer with its job.
const JOB: &str = "IOMILL_KILL_JOB";

/// Kills in all, times `IOMILL_ROUNDS`.
const ROUNDS: u64 = 60;

/// The number of arrays that are tested at the same time, because a writer mostly waits for syncs.
const LANES: u64 = 4;

/// After this number of kills every kind of operation must have been interrupted. Each kind is then expected dozens of
/// times.
const ENOUGH: u64 = 3000;

#[test]
fn a_killed_writer_breaks_no_promise() {
    if let Ok(job) = std::env::var(JOB) {
        return writer::run(&Job::from_text(&job));
    }
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let rounds = crate::rounds(ROUNDS);
    let seed = number("IOMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut total = Tally::default();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let share = rounds / LANES + u64::from(lane < rounds % LANES);
                scope.spawn(move || {
                    let mut root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                    let drives = directories(root.path(), 3 + (lane % 2) as usize);
                    let tally = Lane::new(seed << 3 | lane, drives).run(share);
                    root.disable_cleanup(tally.is_err());
                    tally
                })
            })
            .collect();
        let tallies: Vec<_> = lanes.into_iter().map(|lane| lane.join().unwrap()).collect();
        let failures: Vec<_> = tallies.iter().filter_map(|tally| tally.as_ref().err().cloned()).collect();
        let again =
            format!("IOMILL_SEED={seed} IOMILL_ROUNDS={} cargo test -p iomill --test all kill::", rounds / ROUNDS);
        assert!(failures.is_empty(), "{}\nto run the like again: {again}", failures.join("\n"));
        tallies.iter().flatten().for_each(|tally| total.add(tally));
    });
    println!("{} kills with seed {seed}; interrupted: {:?}", total.kills, total.interrupted);
    println!("interrupted changes of the catalog that had not and had come about: {:?}", total.changes);
    let missed: Vec<_> = KINDS.iter().filter(|kind| !total.interrupted.contains_key(**kind)).collect();
    assert!(total.kills < ENOUGH || missed.is_empty(), "no kill fell into {missed:?}");
}

/// Counts of the operations that the kills have interrupted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    kills: u64,
    /// By kind.
    pub interrupted: BTreeMap<String, u64>,
    /// The numbers of interrupted changes that had not taken effect, and that had.
    changes: [u64; 2],
}

impl Tally {
    fn interrupted(&mut self, kind: &str) {
        *self.interrupted.entry(kind.to_owned()).or_default() += 1;
    }

    pub fn add(&mut self, other: &Tally) {
        self.kills += other.kills;
        for (kind, count) in &other.interrupted {
            *self.interrupted.entry(kind.clone()).or_default() += count;
        }
        (0..2).for_each(|index| self.changes[index] += other.changes[index]);
    }
}

/// One array, and its state during the test.
pub struct Lane {
    seed: u64,
    pub rng: Rng,
    platform: Arc<dyn Platform>,
    pub drives: Vec<PathBuf>,
    models: Vec<Model>,
    /// The usual time of an operation of each kind.
    usual: HashMap<String, Duration>,
    /// The last lines of the writer.
    trace: VecDeque<String>,
    pub tally: Tally,
}

/// Ends a writer, or lets it fail.
pub struct Blow<'a> {
    pub writer: &'a mut Child,
    /// The reading end of the pipe with the writer's lines.
    said: OwnedFd,
}

impl Blow<'_> {
    /// Runs `strike`, during which the kernel may acknowledge data that it loses. Files used meanwhile are in doubt.
    pub fn in_doubt<T>(&mut self, strike: impl FnOnce() -> T) -> io::Result<T> {
        // Both write to one pipe, so their lines have one order. This end is open only here, since the pipe's end says
        // that the writer is dead.
        let mut said = File::options().write(true).open(format!("/proc/self/fd/{}", self.said.as_raw_fd()))?;
        said.write_all(format!("{MARK} {ITSELF} {DOUBT}\n").as_bytes())?;
        let struck = strike();
        said.write_all(format!("{MARK} {ITSELF} {CERTAIN}\n").as_bytes())?;
        Ok(struck)
    }
}

/// Lines of the test itself.
const DOUBT: &str = "the test begins something during which the kernel may acknowledge what it loses";
const CERTAIN: &str = "the test has done it";

/// Why a lane stopped.
pub type Outcome<T> = Result<T, String>;

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Lane {
    /// With a new array on these drives.
    pub fn new(seed: u64, drives: Vec<PathBuf>) -> Lane {
        let mut rng = Rng::with_seed(seed);
        let weights: Vec<u32> = drives.iter().map(|_| rng.u32(1..4)).collect();
        ArrayOptions::new().create_with(&drives, &CreateOptions::new().weights(weights)).unwrap().close().unwrap();
        Lane {
            seed,
            rng,
            platform: Arc::new(RealPlatform::default()),
            drives,
            models: vec![Model::default(); WORKERS],
            usual: HashMap::new(),
            trace: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    fn run(mut self, kills: u64) -> Outcome<Tally> {
        let mut round = 0;
        while self.tally.kills < kills {
            round += 1;
            self.round(round).map_err(|why| self.tell(round, &why))?;
        }
        Ok(self.tally)
    }

    /// The report of a failure, with the lane's state.
    pub fn tell(&self, round: u64, why: &str) -> String {
        let trace = self.trace.iter().map(|line| format!("\n  {line}")).collect::<String>();
        let (seed, drives) = (self.seed, &self.drives);
        let how = self.job(round, false).options().1;
        format!(
            "lane {seed:#x}, round {round} ({how}): {why}\nthe writer said last:{trace}\nthe array is on {drives:?}"
        )
    }

    pub fn job(&self, round: u64, only_opens: bool) -> Job {
        let drive = self.drives[(round as usize) % self.drives.len()].clone();
        Job { seed: self.seed, round, only_opens, goes_on: false, drive }
    }

    /// A kill, sometimes another, and the check.
    fn round(&mut self, round: u64) -> Outcome<()> {
        let lines = if self.rng.u8(..20) == 0 { self.rng.usize(1..4) } else { self.rng.usize(4..32) };
        self.kill(&self.job(round, false), lines)?;
        if self.rng.u8(..4) == 0 {
            let lines = self.rng.usize(1..6);
            self.kill(&self.job(round, true), lines)?;
        }
        self.check()
    }

    /// Starts a writer. Kills it after `lines` lines and a part of the last operation's usual time.
    fn kill(&mut self, job: &Job, lines: usize) -> Outcome<()> {
        let status = self.interrupt(job, lines, &mut |blow| blow.writer.kill().map_err(text))?;
        let ended = job.only_opens && status.success();
        if status.signal() == Some(libc::SIGKILL) {
            self.tally.kills += 1;
        } else if !ended {
            return Err(format!("the writer ended by itself: {status}"));
        }
        Ok(())
    }

    /// Starts a writer, and calls `blow` after `lines` lines and a part of the last operation's usual time. `blow` must
    /// end the writer.
    pub fn interrupt(
        &mut self,
        job: &Job,
        lines: usize,
        blow: &mut dyn FnMut(&mut Blow<'_>) -> Outcome<()>,
    ) -> Outcome<ExitStatus> {
        let tears = job.options().1.contains("Mmap");
        self.models.iter_mut().for_each(|model| model.tears |= tears);
        let mut command = alone::command(TEST);
        command.env(JOB, job.to_text()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pipe = child.stderr.take().unwrap();
        let to_read = pipe.as_fd().try_clone_to_owned().unwrap();
        let said = listen(pipe);
        let mut follower = Follower::new(self, job);
        let mut result = Ok(());
        let mut left = lines;
        // A writer that prints a complaint is about to end. The complaint is read to its end.
        while left > 0 || !follower.complaint.is_empty() {
            left = left.saturating_sub(1);
            match said.recv_timeout(PATIENCE) {
                Ok(line) => result = result.and_then(|()| follower.line(&line)),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    result = Err(format!("the writer says nothing for {PATIENCE:?}"));
                    break;
                }
            }
        }
        let pause = follower.pause();
        std::thread::sleep(pause);
        result = result.and(blow(&mut Blow { writer: &mut child, said: to_read }));
        // The writer has ended, unless it hangs.
        child.kill().map_err(text)?;
        let status = child.wait().unwrap();
        for line in said {
            result = result.and_then(|()| follower.line(&line));
        }
        let complaint = follower.end();
        if !complaint.is_empty() {
            return Err(format!("the writer complains, and ended with {status}:\n{complaint}"));
        }
        result.map(|()| status)
    }

    /// Opens the array as a reader, then as a writer. Both must see the same state, and the models must allow it.
    pub fn check(&mut self) -> Outcome<()> {
        let drive = &self.drives[self.rng.usize(..self.drives.len())].clone();
        let reader = open_when_free(|| ArrayOptions::new().read_only(true).open(drive)).map_err(text)?;
        let in_doubt: BTreeSet<String> = self.models.iter().flat_map(Model::in_doubt).cloned().collect();
        let seen = find(&reader, &in_doubt).map_err(|error| format!("as a reader: {error}"))?;
        reader.close().map_err(text)?;
        let array = open_when_free(|| Array::open(drive)).map_err(text)?;
        let mut found = find(&array, &in_doubt).map_err(text)?;
        for (worker, model) in self.models.iter_mut().enumerate() {
            let prefix = format!("w{worker}/");
            let of_worker = |files: &BTreeMap<String, Found>| -> BTreeMap<String, Found> {
                let files = files.iter().filter(|(name, _)| name.starts_with(&prefix));
                files.map(|(name, found)| (name.clone(), found.clone())).collect()
            };
            model.clone().check(&of_worker(&seen)).map_err(|why| format!("as a reader: {why}"))?;
            for change in model.check(&of_worker(&found))? {
                self.tally.changes[usize::from(change)] += 1;
            }
        }
        if seen != found {
            return Err("a reader saw what the next writer did not".to_owned());
        }
        let known: usize = self.models.iter().map(|model| model.lengths().len()).sum();
        if known != found.len() {
            return Err(format!("a file that belongs to no worker among {:?}", found.keys()));
        }
        let cut: Vec<String> = found.iter().filter(|(_, found)| found.is_cut).map(|(name, _)| name.clone()).collect();
        for name in cut {
            array.delete(&name).map_err(text)?;
            found.remove(&name);
            self.models.iter_mut().for_each(|model| model.forget(&name));
        }
        self.grow(&array, &found)?;
        array.close().map_err(text)?;
        let extent = |record: &Record, len: u64, position: usize| {
            let map = Map::new(record.layout, &record.weights, record.key).unwrap();
            map.part_bytes(position as u16, len, record.block_bytes)
        };
        let starts = std::slice::from_ref(drive);
        let report = open_when_free(|| check(&self.platform, starts, false, &extent, &mut |_, _| ())).map_err(text)?;
        if !report.is_clean() || report.files != found.len() {
            return Err(format!("the check after it was put right: {report:#?}"));
        }
        Ok(())
    }

    /// Lets one file grow over bytes that the killed writer may have left beyond its end.
    fn grow(&mut self, array: &Array, found: &BTreeMap<String, Found>) -> Outcome<()> {
        let Some((name, before)) = found.iter().nth(self.rng.usize(..found.len().max(1))) else { return Ok(()) };
        let file = array.open_file(name).map_err(text)?;
        let len = before.bytes.len();
        let more = self.rng.usize(1..64 << 10);
        file.set_len((len + more) as u64).map_err(text)?;
        let mut bytes = vec![1; more];
        let read = file.read_at(&mut bytes, len as u64).map_err(text)?;
        if read != more || bytes.iter().any(|byte| *byte != 0) {
            let at = bytes.iter().position(|byte| *byte != 0);
            return Err(format!("{name:?} grew from {len} by {more} (read {read}) and is not zero at {at:?}"));
        }
        file.set_len(len as u64).map_err(text)?;
        file.close().map_err(text)
    }
}

/// All files of an array. Parts of files in doubt may be too short or missing.
pub fn find(array: &Array, in_doubt: &BTreeSet<String>) -> iomill::Result<BTreeMap<String, Found>> {
    let mut all = BTreeMap::new();
    for name in array.list("").names().unwrap() {
        let stat = array.stat(&name)?;
        let read = || {
            let file = array.open_file(&name)?;
            let mut bytes = vec![1; file.len() as usize];
            let read = file.read_at(&mut bytes, 0)?;
            assert_eq!((read, stat.len_bytes), (bytes.len(), file.len()));
            Ok(bytes)
        };
        let (bytes, is_cut) = match read() {
            Err(Error::PartCut { .. } | Error::Corrupt { .. }) if in_doubt.contains(&name) => {
                (vec![0; stat.len_bytes as usize], true)
            }
            read => (read?, false),
        };
        let shape = Shape { kind: stat.layout, block_bytes: stat.block_bytes, drives: stat.drives };
        let attribute = stat.attributes.get("version").cloned();
        all.insert(name, Found { shape, attribute, bytes, is_cut });
    }
    Ok(all)
}

/// Passes on the lines of a writer until it is dead.
fn listen(from: std::process::ChildStderr) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            if sender.send(line.unwrap()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Follows a writer through its plan.
struct Follower<'a> {
    lane: &'a mut Lane,
    planners: Vec<Planner>,
    /// The begun operations, by worker, the writer itself last: kind and time.
    begun: Vec<Option<(String, Instant)>>,
    /// The kind of the operation that was begun last.
    last: String,
    /// Other output of the writer.
    complaint: String,
    /// Whether the operations in progress are in doubt.
    is_in_doubt: bool,
}

impl<'a> Follower<'a> {
    fn new(lane: &'a mut Lane, job: &Job) -> Follower<'a> {
        lane.trace.clear();
        let drives = lane.drives.len() as u16;
        let planner =
            |(worker, model): (usize, &Model)| Planner::new(job.seed, job.round, worker, drives, model.lengths());
        let planners = lane.models.iter().enumerate().map(planner).collect();
        let (begun, last) = (vec![None; WORKERS + 1], "start".to_owned());
        Follower { lane, planners, begun, last, complaint: String::new(), is_in_doubt: false }
    }

    fn line(&mut self, line: &str) -> Outcome<()> {
        self.lane.trace.push_back(line.to_owned());
        if self.lane.trace.len() > 24 {
            self.lane.trace.pop_front();
        }
        let parts = line.strip_prefix(MARK).and_then(|rest| rest.trim_start().split_once(' '));
        let Some((worker, what)) = parts else {
            self.complaint += &format!("{line}\n");
            return Ok(());
        };
        let worker: usize = worker.parse().map_err(text)?;
        if [DOUBT, CERTAIN].contains(&what) {
            self.is_in_doubt = what == DOUBT;
            self.doubt();
            return Ok(());
        }
        if what == "done" {
            let (kind, since) = self.begun[worker].take().ok_or("an end without a beginning")?;
            let usual = self.lane.usual.entry(kind).or_insert(since.elapsed());
            *usual = (*usual * 3 + since.elapsed()) / 4;
            if worker != ITSELF {
                self.lane.models[worker].done();
            }
            return Ok(());
        }
        if what.starts_with("failed") {
            if let (Some((kind, _)), true) = (self.begun[worker].take(), worker != ITSELF) {
                self.lane.tally.interrupted(&kind);
                self.planners[worker].forget(&self.lane.models[worker].failed());
            }
            return Ok(());
        }
        let mut kind = what.to_owned();
        if worker != ITSELF {
            let op = self.planners[worker].next().ok_or("an operation beyond the plan")?;
            if what != format!("begin {op:?}") {
                return Err(format!("the writer says {what}, but its plan says {op:?}"));
            }
            self.lane.models[worker].begin(&op);
            self.doubt();
            kind = op.kind().to_owned();
        }
        self.last.clone_from(&kind);
        self.begun[worker] = Some((kind, Instant::now()));
        Ok(())
    }

    fn doubt(&mut self) {
        if self.is_in_doubt {
            self.lane.models.iter_mut().for_each(Model::doubt);
        }
    }

    /// How long to wait before the kill.
    fn pause(&mut self) -> Duration {
        let usual = self.lane.usual.get(&self.last).copied().unwrap_or(Duration::from_millis(3));
        usual.mul_f64(self.lane.rng.f64() * 1.2)
    }

    /// The writer is dead, and all its output was read. Returns its complaint.
    fn end(self) -> String {
        for (kind, _) in self.begun.iter().flatten() {
            self.lane.tally.interrupted(kind);
        }
        self.complaint
    }
}
