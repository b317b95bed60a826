//! A machine with a log, its labels, and the allowed states of its files.

use std::sync::{Arc, Mutex};

use super::model::{View, view};
use iomill::catalog::Id;
use iomill::catalog::journal::{Journal, Upkeep, read_files};
use iomill::catalog::log::group::OpeningId;
use iomill::catalog::log::merged::{LogEnd, Merged, Voter};
use iomill::catalog::log::writer::{Announce, LogPlace};
use iomill::sys::fs::{Access, DriveFs};
use iomill_sim::World;

const ARRAY: Id = Id([7; 16]);

/// Counts over all machines of a test.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub seeds: u64,
    pub lives: u64,
    pub changes: u64,
    pub acknowledged: u64,
    pub crashes: u64,
    pub kills: u64,
    pub closes: u64,
    pub rotten: u64,
    /// Rot in the only copy that was found.
    pub damage_found: u64,
    pub left_behind: u64,
    pub failed_openings: u64,
    pub failed_changes: u64,
    pub refused: u64,
    pub checkpoints: u64,
    pub readers: u64,
    pub overtaken: u64,
    /// Files of the log that were lost or cut.
    pub lost: u64,
    /// Openings with an accident in them, before the last one.
    pub tries: u64,
    pub failed_tries: u64,
}

pub struct Machine<'a> {
    pub world: World,
    pub drives: usize,
    pub counts: &'a mut Counts,
    /// The allowed states of the files after an accident: the last acknowledged one, and all after it.
    pub allowed: Vec<View>,
    /// The highest number that was ever seen.
    pub highest: u64,
    /// The number of looks at the remaining files.
    pub looks: u8,
    /// Whether only a lack of space can fail in this life.
    pub is_sound: bool,
    /// Whether the log was closed cleanly.
    pub is_closed: bool,
    /// Whether the next opening compares all copies, as `check --repair` does.
    pub compares_all: bool,
    pub notices: Arc<Mutex<Vec<String>>>,
}

/// Epoch and voters of a drive's label.
type Label = (u64, Vec<usize>);

/// Labels on simulated drives.
#[derive(Clone)]
struct Labels {
    drives: Vec<Arc<dyn DriveFs>>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Labels {
    fn write(fs: &dyn DriveFs, label: &Label) -> std::io::Result<()> {
        let _may_be_missing = fs.unlink("tmp-label");
        let file = fs.open("tmp-label", Access::CREATE)?;
        let text = format!("{label:?}");
        let written =
            fs.write_at(file, format!("{text} {}", sum(&text)).as_bytes(), 0).and_then(|()| fs.sync_data(file));
        fs.close(file);
        written?;
        fs.rename("tmp-label", "label")?;
        fs.sync_dir("")
    }

    fn read(fs: &dyn DriveFs) -> std::io::Result<Option<Label>> {
        let file = match fs.open("label", Access::READ) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = vec![0; 200];
        let read = fs.read_at(file, &mut bytes, 0);
        fs.close(file);
        bytes.truncate(read?);
        let text = String::from_utf8(bytes).unwrap();
        let (label, found) = text.rsplit_once(' ').unwrap();
        assert_eq!(found, sum(label).to_string(), "a label is replaced as a whole");
        let numbers: Vec<u64> = label
            .split(|c: char| !c.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().unwrap())
            .collect();
        Ok(Some((numbers[0], numbers[1..].iter().map(|number| *number as usize).collect())))
    }
}

fn sum(text: &str) -> u64 {
    text.bytes().fold(17, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte))
}

impl Announce for Labels {
    fn announce(&mut self, epoch: u64, voters: &[usize]) -> Vec<usize> {
        let label = (epoch, voters.to_vec());
        let fails = |drive: &usize| Labels::write(&*self.drives[*drive], &label).is_err();
        let failed: Vec<usize> = voters.iter().copied().filter(fails).collect();
        if failed.is_empty() {
            for drive in (0..self.drives.len()).filter(|drive| !voters.contains(drive)) {
                let _later_if_not_now = Labels::write(&*self.drives[drive], &label);
            }
        }
        failed
    }

    fn begin(&mut self, _: &Merged, end: &LogEnd) -> iomill::Result<OpeningId> {
        Ok(OpeningId { number: end.opening.number + 1, id: ARRAY })
    }

    fn use_begun(&mut self, _: u64, _: u64) -> iomill::Result<()> {
        Ok(())
    }

    fn prove(&mut self, _: u64, _: u64) {}

    fn notice(&mut self, text: String) {
        self.notices.lock().unwrap().push(text);
    }
}

/// An opening that failed, in words.
pub type Refused = String;

impl<'a> Machine<'a> {
    pub fn new(world: World, drives: usize, counts: &'a mut Counts) -> Machine<'a> {
        let empty = View::default();
        let notices = Arc::default();
        let (allowed, highest) = (vec![empty], 0);
        let machine = Machine {
            world,
            drives,
            counts,
            allowed,
            highest,
            looks: 0,
            is_sound: true,
            is_closed: true,
            compares_all: false,
            notices,
        };
        let all = machine.attach(true).unwrap();
        machine.place().create(&all, OpeningId { number: 1, id: ARRAY }).unwrap();
        for voter in &all {
            Labels::write(&*voter.fs, &(1, (0..drives).collect())).unwrap();
        }
        machine.world.reboot();
        machine
    }

    fn place(&self) -> LogPlace {
        LogPlace {
            platform: self.world.platform(),
            array: ARRAY,
            segment_bytes: 48 << 10,
            compares_all: self.compares_all,
        }
    }

    fn attach(&self, create: bool) -> std::io::Result<Vec<Voter>> {
        let platform = self.world.platform();
        let attach = |drive| Ok(Voter { drive, fs: platform.attach(&self.world.path(drive), create)? });
        (0..self.drives).map(attach).collect()
    }

    /// The ruling label, voters, and the other drives.
    fn ruling(&self) -> Result<(Label, Vec<Voter>, Vec<Voter>), Refused> {
        let all = self.attach(false).map_err(|error| error.to_string())?;
        let mut ruling: Option<Label> = None;
        for voter in &all {
            let label = Labels::read(&*voter.fs).map_err(|error| error.to_string())?;
            ruling = ruling.max(label);
        }
        let label = ruling.expect("a label");
        let (voters, others) = all.into_iter().partition(|voter| label.1.contains(&voter.drive));
        Ok((label, voters, others))
    }

    pub fn voters(&self) -> Result<Vec<Voter>, Refused> {
        Ok(self.ruling()?.1)
    }

    pub fn open(&mut self) -> Result<Journal, Refused> {
        let (label, voters, back) = self.ruling()?;
        let mut drives: Vec<&Voter> = voters.iter().chain(&back).collect();
        drives.sort_by_key(|voter| voter.drive);
        let drives = drives.into_iter().map(|voter| Arc::clone(&voter.fs)).collect();
        let labels = Labels { drives, notices: Arc::clone(&self.notices) };
        let upkeep = Upkeep { checkpoint_bytes: 24 << 10, instalment_bytes: 3000 };
        Journal::open(self.place(), upkeep, &voters, &back, label.0, Box::new(labels))
            .map_err(|error| error.to_string())
    }

    /// The files that a reader sees.
    pub fn read(&mut self) -> Result<View, Refused> {
        self.counts.readers += 1;
        read_files(&self.voters()?, ARRAY).map(|(files, _)| view(&files)).map_err(|error| error.to_string())
    }

    /// The files that a reader sees in one copy alone.
    pub fn read_alone(&self, voter: &Voter) -> Result<View, Refused> {
        read_files(std::slice::from_ref(voter), ARRAY).map(|(files, _)| view(&files)).map_err(|error| error.to_string())
    }

    /// Makes a hole of the space that is set aside on a drive.
    pub fn punch_reserve(&self, drive: usize) {
        let fs = Arc::clone(&self.attach(false).unwrap()[drive].fs);
        let file = fs.open("log/reserve", Access::WRITE).unwrap();
        fs.punch(file, 0, fs.len(file).unwrap()).unwrap();
        fs.sync_data(file).unwrap();
        fs.close(file);
    }

    pub fn array(&self) -> Id {
        ARRAY
    }

    /// A change was made, and is not durable yet: the files may be these.
    pub fn may_be(&mut self, seen: View) {
        if self.allowed.last() != Some(&seen) {
            self.allowed.push(seen);
        }
    }

    /// Fails unless the files may be these.
    pub fn check_allowed(&self, files: &View) {
        let allowed = &self.allowed;
        assert!(allowed.contains(files), "{files:?} is none of {allowed:#?}\n{}", self.world.trace_tail());
    }

    /// The files are exactly these now, durably.
    pub fn is(&mut self, found: View) {
        self.allowed = vec![found];
    }
}
