//! The log on one to three drives: crashes at every operation, copies that fail, rot.

use super::group::Group;
use super::header::BLOCK_BYTES;
use super::place::{LogFiles, segment_path};
use super::test_log::{Labels, TestLog};
use crate::catalog::tests::world::{Fault, Loss};
use crate::error::Error;

const BLOCK: usize = BLOCK_BYTES as usize;

#[test]
fn groups_come_back_in_order_over_segments_and_openings() {
    let mut log = TestLog::new(3);
    let mut expected = Vec::new();
    for round in 0..4u64 {
        let (mut writer, end, numbers) = log.open().unwrap();
        assert_eq!((numbers, end.is_closed), (expected.clone(), round != 3));
        for at in 0..9 {
            let number = round * 100 + at;
            log.append_large(&mut writer, number, 7).unwrap();
            expected.push(number);
        }
        log.append(&mut writer, round).unwrap();
        expected.push(round);
        // The third writer ends without a word.
        if round != 2 {
            writer.close(&mut log.labels).unwrap();
        }
        drop(writer);
        log.assert_equal_copies("a round");
    }
    let (end, numbers) = log.read().unwrap();
    assert_eq!((numbers, end.is_closed), (expected, true));
    assert!(end.position.segment >= 3, "{end:?}");
    assert_eq!((log.labels.epoch, log.labels.notices.len()), (1, 0));
    assert_eq!(log.world.open_files(), 0);
}

/// A log with some groups, in the middle of a segment.
fn prepared(drives: usize) -> TestLog {
    let mut log = TestLog::new(drives);
    let (mut writer, ..) = log.open().unwrap();
    log.append_large(&mut writer, 1, 7).unwrap();
    log.append_large(&mut writer, 2, 7).unwrap();
    log.append(&mut writer, 3).unwrap();
    log
}

/// Appends until an error comes. Returns the numbers that were acknowledged.
fn append_some(log: &mut TestLog) -> (Vec<u64>, Option<Error>) {
    let mut done = Vec::new();
    let (mut writer, ..) = match log.open() {
        Ok(open) => open,
        Err(error) => return (done, Some(error)),
    };
    for number in 4..9 {
        let mut records = Vec::new();
        let value = "x".repeat(7 << 10);
        let key = "k";
        super::record::LogRecord::Attribute { number, key, value: Some(&value) }.encode(&mut records);
        if let Err(error) = writer.append(&records, 1, &mut log.labels) {
            return (done, Some(error));
        }
        done.push(number);
        if let Err(error) = log.prepare(&mut writer) {
            return (done, Some(error));
        }
    }
    match writer.close(&mut log.labels) {
        Ok(()) => (done, None),
        Err(error) => (done, Some(error)),
    }
}

/// The numbers from 1 on without gaps, at least up to what was acknowledged, and at most one more.
fn assert_numbers(numbers: &[u64], acknowledged: usize, context: &str) {
    let counted: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, counted, "{context}");
    let range = 3 + acknowledged..=4 + acknowledged;
    assert!(range.contains(&numbers.len()), "{context}: {} of {acknowledged} acknowledged", numbers.len());
}

fn crash_everywhere(drives: usize, loss: impl Fn(u64) -> Loss) {
    for at in 1.. {
        let mut log = prepared(drives);
        log.world.arm(|at| Fault::Crash { at }, at);
        let (done, error) = append_some(&mut log);
        let struck = log.world.disarm();
        log.world.crash(loss(at));
        let context = format!("operation {at}, {:?}", loss(at));
        let (_, read) = log.read().unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_numbers(&read, done.len(), &context);
        let (mut writer, _, numbers) = log.open().unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(numbers, read, "{context}");
        log.assert_equal_copies(&context);
        // What was seen once stays, also if the machine crashes before the next fsync (C11).
        let lost = TestLog { world: log.world.fork(), labels: log.labels.clone(), drives };
        lost.world.crash(Loss::Power);
        assert_eq!(lost.read().unwrap().1, numbers, "{context}, and again");
        let next = numbers.len() as u64 + 1;
        log.append(&mut writer, next).unwrap();
        drop(writer);
        log.world.crash(Loss::Power);
        assert_numbers(&log.read().unwrap().1, numbers.len() - 3 + 1, &context);
        if !struck {
            assert!(error.is_none(), "{context}: {error:?}");
            assert!(at > 40, "{at} operations are too few to be all");
            return;
        }
    }
}

#[test]
fn a_crash_at_any_operation_keeps_what_was_acknowledged_with_one_copy() {
    crash_everywhere(1, |_| Loss::Power);
    crash_everywhere(1, |_| Loss::Kill);
    crash_everywhere(1, |at| Loss::Mix(at * 7));
}

#[test]
fn a_crash_at_any_operation_keeps_what_was_acknowledged_with_three_copies() {
    crash_everywhere(3, |_| Loss::Power);
    crash_everywhere(3, |at| if at % 8 == 0 { Loss::Kill } else { Loss::Mix(at * 31) });
}

/// A drive that dies at any operation is left behind, and nothing that was acknowledged is lost. It never votes until
/// it is brought up.
#[test]
fn a_copy_that_fails_is_left_behind_and_comes_back() {
    for dead in 0..3 {
        for at in 1.. {
            let mut log = prepared(3);
            log.world.arm(|at| Fault::Dead { at, disk: dead }, at);
            let opened_before = log.labels.epoch;
            let (done, error) = append_some(&mut log);
            let struck = log.world.disarm();
            let context = format!("drive {dead} at operation {at}");
            // A drive that fails while it is searched and read stops the opening. Later it is left behind.
            if let Some(error) = &error {
                assert!(done.is_empty() && matches!(error, Error::Io { .. }), "{context}: {error}");
                assert_eq!(log.labels.epoch, opened_before, "{context}");
            } else {
                assert_eq!(done.len(), 5, "{context}");
                let is_left = !log.labels.voters.contains(&dead);
                assert_eq!((log.labels.epoch > opened_before, struck), (is_left, is_left || struck), "{context}");
            }
            log.world.crash(Loss::Power);
            assert_numbers(&log.read().unwrap().1, done.len(), &context);
            let (writer, _, numbers) = log.open().unwrap();
            assert_numbers(&numbers, done.len(), &context);
            drop(writer);
            assert_eq!(log.labels.voters.len(), 3, "{context}");
            log.assert_equal_copies(&context);
            if !struck {
                assert!(at > 100);
                break;
            }
        }
    }
}

/// One operation fails, on any drive, before or after it has taken effect. The other copies go on.
#[test]
fn a_single_failure_costs_a_copy_and_no_change() {
    for done_first in [false, true] {
        for at in 1.. {
            let mut log = prepared(3);
            log.world.arm(|at| Fault::Once { at, done: done_first }, at);
            let (done, error) = append_some(&mut log);
            let struck = log.world.disarm();
            let context = format!("operation {at}, done {done_first}");
            assert!(error.is_none() || done.is_empty(), "{context}: {error:?}");
            log.world.crash(Loss::Power);
            let (writer, _, numbers) = log.open().unwrap();
            assert_numbers(&numbers, done.len(), &context);
            drop(writer);
            log.assert_equal_copies(&context);
            if !struck {
                break;
            }
        }
    }
}

#[test]
fn a_voter_that_takes_no_label_is_left_behind_too() {
    let mut log = prepared(3);
    let (mut writer, ..) = log.open().unwrap();
    log.labels.refusing = vec![1];
    log.world.arm(|at| Fault::Dead { at, disk: 0 }, 1);
    log.append(&mut writer, 4).unwrap();
    assert_eq!((writer.voters(), log.labels.voters.clone(), log.labels.epoch), (vec![2], vec![2], 3));
    log.world.arm(|at| Fault::Dead { at, disk: 2 }, 1);
    assert!(log.append(&mut writer, 5).is_err());
    drop(writer);
    log.world.disarm();
    log.world.crash(Loss::Power);
    assert_eq!(log.read().unwrap().1, [1, 2, 3, 4]);
}

/// The groups of the first segment of a drive: offset and length in bytes.
fn groups(log: &TestLog, drive: usize) -> Vec<(usize, usize)> {
    let bytes = log.world.read(drive, &segment_path(1)).unwrap();
    let mut found = Vec::new();
    let mut at = BLOCK;
    while let Some(group) = bytes.get(at..).and_then(Group::parse) {
        found.push((at, group.bytes() as usize));
        at += group.bytes() as usize;
    }
    found
}

fn flip(log: &TestLog, drive: usize, path: &str, at: usize) {
    let mut bytes = log.world.read(drive, path).unwrap();
    bytes[at] ^= 4;
    log.world.put(drive, path, Some(&bytes));
}

#[test]
fn rot_in_one_copy_is_mended_from_another() {
    for close in [false, true] {
        let mut log = prepared(2);
        if close {
            let (mut writer, ..) = log.open().unwrap();
            writer.close(&mut log.labels).unwrap();
        }
        let found = groups(&log, 0);
        for rotten in [0, 1] {
            for (offset, len) in found.iter().copied().chain([(0, 128)]) {
                flip(&log, rotten, &segment_path(1), offset + len / 3);
                assert_eq!(log.read().unwrap().1, [1, 2, 3], "a reader takes the good copy");
                drop(log.open().unwrap());
                log.assert_equal_copies(&format!("drive {rotten}, offset {offset}, closed {close}"));
            }
        }
    }
}

/// A crash between the group that names the next segment and the first group there leaves a segment without groups.
#[test]
fn a_rotten_header_of_a_segment_without_groups_is_mended() {
    let mut ends = 0;
    for at in 1.. {
        let mut log = prepared(2);
        log.world.arm(|at| Fault::Crash { at }, at);
        append_some(&mut log);
        let struck = log.world.disarm();
        log.world.crash(Loss::Power);
        if !struck {
            break;
        }
        let (end, numbers) = log.read().unwrap();
        if end.position.offset != BLOCK_BYTES || log.labels.voters != [0, 1] {
            continue;
        }
        for rotten in [0, 1] {
            let mut log = TestLog { world: log.world.fork(), labels: log.labels.clone(), drives: 2 };
            flip(&log, rotten, &segment_path(end.position.segment), 20);
            assert_eq!(log.open().unwrap().2, numbers);
            assert_eq!(log.labels.voters, [0, 1], "{:?}", log.labels.notices);
            log.assert_equal_copies(&format!("operation {at}, drive {rotten}"));
        }
        ends += 1;
    }
    assert!(ends > 0, "no crash struck between the two groups");
}

/// A crash in an opening may leave a segment that was made ahead on one drive. It has no groups, so its header may rot.
#[test]
fn a_rotten_segment_that_was_made_ahead_is_removed() {
    for rotten in [0, 1] {
        let mut log = prepared(2);
        let (mut writer, ..) = log.open().unwrap();
        log.append_large(&mut writer, 4, 30).unwrap();
        drop(writer);
        flip(&log, rotten, &segment_path(2), 20);
        assert_eq!(log.read().unwrap().1, [1, 2, 3, 4]);
        log.world.put(1 - rotten, &segment_path(2), None);
        assert_eq!(log.read().unwrap().1, [1, 2, 3, 4]);
        assert_eq!(log.open().unwrap().2, [1, 2, 3, 4]);
        assert_eq!(log.world.read(rotten, &segment_path(2)), None);
        assert_eq!(log.labels.voters, [0, 1], "{:?}", log.labels.notices);
    }
}

/// In the only copy a bad group is rot if a later group names it as durable, and else a tail.
#[test]
fn rot_in_the_only_copy_is_an_error_and_a_tail_is_not() {
    let log = prepared(1);
    let found = groups(&log, 0);
    assert_eq!(found.len(), 4);
    let path = segment_path(1);
    let good = log.world.read(0, &path).unwrap();
    for (at, (offset, len)) in found.iter().enumerate() {
        for place in [0, 20, len / 2] {
            flip(&log, 0, &path, offset + place.min(66));
            let read = log.read();
            if at == 3 {
                assert_eq!(read.unwrap().1, [1, 2]);
            } else {
                assert!(matches!(read, Err(Error::Corrupt { .. })), "group {at}, byte {place}: {read:?}");
            }
            log.world.put(0, &path, Some(&good));
        }
    }
    flip(&log, 0, &path, 40);
    assert!(matches!(log.read(), Err(Error::Corrupt { .. })));
    log.world.put(0, &path, None);
    assert!(matches!(log.read(), Err(Error::Corrupt { .. })));
}

/// A copy with a damaged header does not say that a group is missing. If another copy cannot read the last group, the
/// log does not end before it.
#[test]
fn a_damaged_copy_beside_an_unreadable_one_ends_no_log_early() {
    let log = prepared(2);
    let (last, bytes) = *groups(&log, 1).last().unwrap();
    flip(&log, 0, &segment_path(1), 40);
    assert_eq!(log.read().unwrap().1, [1, 2, 3]);
    log.world.inner().unreadable = Some((1, last as u64..(last + bytes) as u64));
    let read = log.read();
    assert!(matches!(read, Err(Error::Corrupt { .. } | Error::Io { .. })), "{read:?}");
    log.world.inner().unreadable = None;
    assert_eq!(log.read().unwrap().1, [1, 2, 3]);
}

/// A copy that has lost the file, or its end, does not say that a group is missing either.
#[test]
fn a_lost_copy_beside_an_unreadable_one_ends_no_log_early() {
    let log = prepared(2);
    let (last, bytes) = *groups(&log, 1).last().unwrap();
    let good = log.world.read(0, &segment_path(1)).unwrap();
    for left in [None, Some(last), Some(last + 100)] {
        log.world.put(0, &segment_path(1), left.map(|left| &good[..left]));
        assert_eq!(log.read().unwrap().1, [1, 2, 3]);
        log.world.inner().unreadable = Some((1, last as u64..(last + bytes) as u64));
        let read = log.read();
        assert!(matches!(read, Err(Error::Corrupt { .. } | Error::Io { .. })), "{left:?}: {read:?}");
        log.world.inner().unreadable = None;
    }
}

/// A rotten group is no empty place. So it is no proof that the log ends before a group that another copy cannot read.
#[test]
fn a_rotten_copy_beside_an_unreadable_one_ends_no_log_early() {
    let log = prepared(2);
    let (last, bytes) = *groups(&log, 1).last().unwrap();
    // A bad sector past the end of the log is harmless.
    log.world.inner().unreadable = Some((1, (last + bytes) as u64..u64::MAX));
    assert_eq!(log.read().unwrap().1, [1, 2, 3]);
    log.world.inner().unreadable = Some((1, last as u64..(last + bytes) as u64));
    assert_eq!(log.read().unwrap().1, [1, 2, 3]);
    flip(&log, 0, &segment_path(1), last + 20);
    let read = log.read();
    assert!(matches!(read, Err(Error::Corrupt { .. } | Error::Io { .. })), "{read:?}");
    log.world.inner().unreadable = None;
    assert_eq!(log.read().unwrap().1, [1, 2, 3]);
}

/// A cut segment of one copy is made anew. If no copy has the whole segment, it is not known what was lost.
#[test]
fn a_segment_that_was_cut_is_made_anew_from_a_whole_one() {
    for (close, cut) in [(false, [true, false]), (true, [false, true]), (false, [true, true]), (true, [true, true])] {
        let mut log = prepared(2);
        let (mut writer, ..) = log.open().unwrap();
        if close {
            writer.close(&mut log.labels).unwrap();
        }
        drop(writer);
        let (last, bytes) = *groups(&log, 0).last().unwrap();
        let good = log.world.read(0, &segment_path(1)).unwrap();
        for left in [last, last + bytes] {
            let mut log = TestLog { world: log.world.fork(), labels: log.labels.clone(), drives: 2 };
            for drive in (0..2).filter(|drive| cut[*drive]) {
                log.world.put(drive, &segment_path(1), Some(&good[..left]));
            }
            let context = format!("{cut:?} cut to {left} bytes, closed {close}");
            let (mut writer, _, numbers) = log.open().unwrap();
            let appended = log.append(&mut writer, 4);
            assert_eq!(appended.is_err(), cut == [true, true], "{context}");
            if cut != [true, true] {
                assert_eq!((numbers.as_slice(), writer.voters()), ([1, 2, 3].as_slice(), vec![0, 1]), "{context}");
                log.assert_equal_copies(&context);
            }
        }
    }
}

/// A drive that was away has an older epoch in its label, so it is no voter, whatever its log says.
#[test]
fn a_copy_that_was_away_never_votes() {
    let mut log = prepared(2);
    let old: Vec<u8> = log.world.read(1, &segment_path(1)).unwrap();
    let (mut writer, ..) = log.open().unwrap();
    log.world.arm(|at| Fault::Dead { at, disk: 1 }, 1);
    log.append(&mut writer, 4).unwrap();
    log.world.disarm();
    drop(writer);
    assert_eq!(log.labels.voters, [0]);
    // It comes back with groups that the others never had.
    log.world.put(1, &segment_path(1), Some(&old));
    let mut stray =
        TestLog { world: log.world.clone(), labels: Labels { voters: vec![1], ..log.labels.clone() }, drives: 2 };
    stray.drives = 2;
    let place = stray.place();
    let (voters, epoch) = (stray.voters(), stray.labels.epoch);
    let mut numbers = super::test_log::Numbers::default();
    let (mut writer, _) = place.open(&voters, &[], epoch, &mut numbers, &mut stray.labels).unwrap();
    stray.append(&mut writer, 77).unwrap();
    stray.append(&mut writer, 78).unwrap();
    drop(writer);
    let (mut writer, _, numbers) = log.open().unwrap();
    assert_eq!((numbers.as_slice(), log.labels.voters.len()), ([1, 2, 3, 4].as_slice(), 2), "{:?}", log.labels.notices);
    log.append(&mut writer, 5).unwrap();
    drop(writer);
    log.world.crash(Loss::Power);
    log.assert_equal_copies("it came back");
    log.labels.voters = vec![1];
    assert_eq!(log.read().unwrap().1, [1, 2, 3, 4, 5]);
}

#[test]
fn a_full_drive_refuses_the_next_segment_and_keeps_the_log() {
    let mut log = prepared(2);
    let (mut writer, ..) = log.open().unwrap();
    let used = log.world.inner().disks[1].used_bytes();
    log.world.inner().disks[1].capacity_bytes = Some(used + 4096);
    log.append_large(&mut writer, 4, 7).unwrap();
    assert!(!writer.has_room(), "{:?} {:?}", log.labels, writer.end());
    assert_eq!(log.labels.notices.len(), 1);
    let files = LogFiles::list(&*log.voter(0).fs).unwrap();
    assert_eq!((files.segments, files.leftovers), (vec![1], vec![]));
    // What is left of the segment still takes groups.
    log.append(&mut writer, 5).unwrap();
    let mut number = 6;
    let error = loop {
        match log.append_large(&mut writer, number, 3) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), Some(libc::ENOSPC));
    log.world.inner().disks[1].capacity_bytes = None;
    log.append(&mut writer, number).unwrap();
    assert!(writer.has_room());
    drop(writer);
    log.world.crash(Loss::Power);
    assert_eq!(log.read().unwrap().1, (1..=number).collect::<Vec<u64>>());
    log.assert_equal_copies("full");
}

/// Two lives of one log, of which each goes on for itself after `common` groups.
fn two_lives(common: u64, [ours, theirs]: [u64; 2], kib: usize) -> (TestLog, TestLog) {
    let mut log = TestLog::new(2);
    let (mut writer, ..) = log.open().unwrap();
    (0..common).for_each(|number| log.append_large(&mut writer, number, kib).unwrap());
    drop(writer);
    let mut other = TestLog { world: log.world.fork(), labels: log.labels.clone(), drives: 2 };
    for (log, count, first) in [(&mut log, ours, 1000), (&mut other, theirs, 2000)] {
        // Salts are random.
        log.world.platform().random(&mut vec![0; first as usize]).unwrap();
        let (mut writer, ..) = log.open().unwrap();
        (0..count).for_each(|number| log.append_large(&mut writer, first + number, kib).unwrap());
    }
    (log, other)
}

/// Copies of two lives are refused, whichever is read first, however far back they went apart, and nothing is changed.
#[test]
fn copies_that_went_apart_are_refused() {
    for (common, lives, kib) in [(2, [2, 1], 1), (2, [1, 2], 1), (1, [1, 4], 1), (2, [12, 9], 7), (9, [9, 30], 7)] {
        for disk in 0..2 {
            let (mut log, other) = two_lives(common, lives, kib);
            log.world.put_back(disk, Some("log"), &other.world);
            let before = [0, 1].map(|disk| log.world.everything(disk));
            let context = format!("{common} and {lives:?} groups of {kib} KiB, drive {disk}");
            let told = match log.open() {
                Ok((_, _, numbers)) => panic!("{context}: {numbers:?}"),
                Err(error) => error.to_string(),
            };
            assert!(told.contains("went apart") && told.contains("drives"), "{context}: {told}");
            assert!(before == [0, 1].map(|disk| log.world.everything(disk)), "{context}: something was changed");
        }
    }
}

/// The log says durably that it goes on in the next segment. So an only copy does not end silently where that is lost.
#[test]
fn a_lost_last_segment_is_no_end() {
    let mut log = TestLog::new(1);
    let (mut writer, ..) = log.open().unwrap();
    let mut number = 0;
    while writer.end().0.segment < 3 {
        log.append_large(&mut writer, number, 7).unwrap();
        number += 1;
    }
    drop(writer);
    log.world.crash(Loss::Power);
    let good = log.world.fork();
    for lost in 1..=3 {
        log.world.put(0, &segment_path(lost), None);
        // What was made ahead is lost, too.
        log.world.put(0, &segment_path(4), None);
        let told = log.read().unwrap_err().to_string();
        assert!(told.contains("missing"), "{lost}: {told}");
        assert!(log.open().is_err());
        log.world.put_back(0, None, &good);
    }
    // A valid segment of another number in its place is no end either.
    let other = log.world.read(0, &segment_path(2)).unwrap();
    log.world.put(0, &segment_path(3), Some(&other));
    log.world.put(0, &segment_path(4), None);
    assert!(log.read().is_err() && log.open().is_err());
    log.world.put_back(0, None, &good);
    assert_eq!(log.read().unwrap().1, (0..number).collect::<Vec<u64>>());
}
