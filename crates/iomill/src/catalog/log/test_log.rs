//! A log over drives in memory, for tests: numbers as records, and labels that are always durable.

use std::path::{Path, PathBuf};

use super::group::OpeningId;
use super::header::{BLOCK_BYTES, FileHeader, FileKind};
use super::merged::{LogEnd, Merged, Replay, Stop, Visit, Voter};
use super::record::LogRecord;
use super::writer::{Announce, LogPlace, LogWriter};
use crate::catalog::Id;
use crate::catalog::tests::world::World;
use crate::engine::platform::Platform;
use crate::error::Result;

pub const ARRAY: Id = Id([9; 16]);

/// What the labels of an array say of the log.
#[derive(Clone, Debug)]
pub struct Labels {
    pub epoch: u64,
    pub voters: Vec<usize>,
    /// Drives that take no label.
    pub refusing: Vec<usize>,
    pub notices: Vec<String>,
}

impl Announce for Labels {
    fn announce(&mut self, epoch: u64, voters: &[usize]) -> Vec<usize> {
        assert!(epoch > self.epoch && !voters.is_empty());
        let failed: Vec<usize> = voters.iter().copied().filter(|drive| self.refusing.contains(drive)).collect();
        // A label on any drive rules, so a failure on one voter does not undo the others.
        if failed.len() < voters.len() {
            (self.epoch, self.voters) = (epoch, voters.to_vec());
        }
        failed
    }

    fn begin(&mut self, _: &Merged, end: &LogEnd) -> Result<OpeningId> {
        Ok(OpeningId { number: end.opening.number + 1, id: Id([end.sequence as u8; 16]) })
    }

    fn use_begun(&mut self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn prove(&mut self, _: u64, _: u64) {}

    fn notice(&mut self, text: String) {
        self.notices.push(text);
    }
}

/// The numbers that the log holds.
#[derive(Debug, Default)]
pub struct Numbers(pub Vec<u64>);

impl Replay for Numbers {
    fn reset(&mut self) {
        self.0.clear();
    }

    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        let take = |record: LogRecord<'_>| {
            if let LogRecord::Numbers(number) | LogRecord::Attribute { number, .. } = record {
                self.0.push(number);
            }
            Ok(())
        };
        Ok(visit.group.each_record(true, take)?)
    }
}

/// A machine with a log.
pub struct TestLog {
    pub world: World,
    pub labels: Labels,
    pub drives: usize,
}

impl TestLog {
    pub fn new(drives: usize) -> TestLog {
        let labels = Labels { epoch: 1, voters: (0..drives).collect(), refusing: Vec::new(), notices: Vec::new() };
        let log = TestLog { world: World::new(drives), labels, drives };
        log.place().create(&log.all(), OpeningId { number: 1, id: Id([1; 16]) }).unwrap();
        log
    }

    pub fn place(&self) -> LogPlace {
        LogPlace { platform: self.world.platform(), array: ARRAY, segment_bytes: 64 << 10, compares_all: false }
    }

    pub fn voter(&self, drive: usize) -> Voter {
        let path = PathBuf::from(format!("/d{drive}"));
        Voter { drive, fs: self.world.attach(Path::new(&path), true).unwrap() }
    }

    fn all(&self) -> Vec<Voter> {
        (0..self.drives).map(|drive| self.voter(drive)).collect()
    }

    pub fn voters(&self) -> Vec<Voter> {
        self.labels.voters.iter().map(|drive| self.voter(*drive)).collect()
    }

    /// Opens the log for writing. Drives that are no voters come back.
    pub fn open(&mut self) -> Result<(LogWriter, LogEnd, Vec<u64>)> {
        let (voters, mut back) = (self.voters(), self.all());
        back.retain(|voter| !self.labels.voters.contains(&voter.drive));
        let mut numbers = Numbers::default();
        let epoch = self.labels.epoch;
        let (writer, end) = self.place().open(&voters, &back, epoch, &mut numbers, &mut self.labels)?;
        Ok((writer, end, numbers.0))
    }

    /// Appends a group with one number.
    pub fn append(&mut self, writer: &mut LogWriter, number: u64) -> Result<()> {
        let mut records = Vec::new();
        LogRecord::Numbers(number).encode(&mut records);
        writer.append(&records, 1, &mut self.labels)?;
        self.prepare(writer)
    }

    /// Makes the next segment if it is time.
    pub fn prepare(&mut self, writer: &mut LogWriter) -> Result<()> {
        if !writer.is_next_due() {
            return Ok(());
        }
        let made = writer.plan_next(false)?.make();
        writer.take_next(made, &mut self.labels)
    }

    /// Appends a group with one number, `kib` KiB large.
    pub fn append_large(&mut self, writer: &mut LogWriter, number: u64, kib: usize) -> Result<()> {
        let mut records = Vec::new();
        let value = "x".repeat(kib << 10);
        LogRecord::Attribute { number, key: "k", value: Some(&value) }.encode(&mut records);
        writer.append(&records, 1, &mut self.labels)?;
        self.prepare(writer)
    }

    /// What a reader sees.
    pub fn read(&self) -> Result<(LogEnd, Vec<u64>)> {
        let mut numbers = Numbers::default();
        let end = Merged::list(&self.voters(), ARRAY, false)?.read(&mut numbers)?;
        Ok((end, numbers.0))
    }

    /// Checks that all voters have the same files, byte by byte up to the end of the log.
    pub fn assert_equal_copies(&self, context: &str) {
        let (end, _) = self.read().unwrap();
        let first = self.labels.voters[0];
        for number in end.first_segment..=end.position.segment {
            let path = super::place::segment_path(number);
            let until = if number == end.position.segment { end.position.offset as usize } else { usize::MAX };
            let bytes = |drive: usize| {
                let bytes = self.world.read(drive, &path).unwrap_or_else(|| panic!("{context}: {drive}: no {path}"));
                let header = FileHeader::parse(&bytes[..BLOCK_BYTES as usize], true).unwrap();
                assert_eq!(header.kind, FileKind::Segment { bytes: bytes.len() as u64 }, "{context}");
                bytes[..until.min(bytes.len())].to_vec()
            };
            for drive in &self.labels.voters {
                let (ours, theirs) = (bytes(*drive), bytes(first));
                let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
                assert!(
                    ours == theirs,
                    "{context}: {path} differs on drive {drive} from {first} at {at:?} of {}",
                    ours.len()
                );
            }
        }
    }
}
