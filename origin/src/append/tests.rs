use std::path::Path;

use bytes::Bytes;
use iomill::RuntimeOptions;

use super::*;
use crate::drive::{FAILURES_MOST, Terms};
use crate::identity::{ObjectId, Version};
use crate::notices::Notices;
use crate::options::Options;

/// A drive of four regions with granules of a page, so that a summary has several pages.
fn drive(dir: &Path) -> Drive {
    drive_telling(dir, &Notices::default())
}

fn drive_telling(dir: &Path, notices: &Notices) -> Drive {
    let runtime = RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let options = Options::new().granule_bytes(4096).region_bytes(4 << 20).index_dir(dir).on_root(true);
    let notices = notices.clone();
    let share = Some(16 << 20);
    let terms = Terms { cache: None, new_cache: 1, share, options, runtime, notices, given_up: Default::default() };
    let drive = Drive::open(dir, &terms).unwrap();
    load::recover(&drive, &drive.try_hold().unwrap()).unwrap();
    drive
}

fn id(n: u64) -> GranuleId {
    ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1 << 40).granule(n)
}

fn put(drive: &Drive, granules: std::ops::Range<u64>) -> Appended {
    let item = |n: u64| Item { id: id(n), bytes: Bytes::from(vec![n as u8; 4096]) };
    let mut done = Appended::default();
    append(drive, &granules.map(item).collect::<Vec<_>>(), &drive.try_hold().unwrap(), &mut done).unwrap();
    done
}

fn known(drive: &Drive, granules: std::ops::Range<u64>) -> usize {
    granules.filter(|n| drive.index.find(id(*n).tag).is_some()).count()
}

/// The drive without its state in memory.
fn without_index(dir: &Path, drive: Drive) -> Drive {
    drop(drive);
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    self::drive(dir)
}

fn places(drive: &Drive) -> u64 {
    drive.geometry().places_of_region().into()
}

#[test]
fn an_emptied_region_has_no_granule_of_its_last_life() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    let all = places(&drive) * 4;
    assert_eq!(put(&drive, 0..all).granules, all);
    let lost = all as usize - known(&drive, 0..all);
    assert!(lost <= all as usize / 1000, "{lost} of {all} found no slot");
    // One more empties the first region as a whole.
    assert_eq!(put(&drive, all..all + 1).emptied, 1);
    assert_eq!(known(&drive, 0..places(&drive)), 0);
    assert!(known(&drive, places(&drive)..all + 1) + lost > places(&drive) as usize * 3);
}

#[test]
fn at_most_a_sixth_of_a_region_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    let all = places(&drive) * 4;
    put(&drive, 0..all);
    (0..all).for_each(|place| drive.index.touch(place));
    let done = put(&drive, all..all + 1);
    assert_eq!((done.emptied, done.carried), (1, places(&drive) / 6));
    assert_eq!(known(&drive, 0..places(&drive)) as u64, places(&drive) / 6);
    // What was carried is what it was.
    let place = drive.index.find(id(0).tag).unwrap().place;
    let mut bytes = drive.buffer(4096).unwrap();
    drive.read_raw(&mut bytes, drive.geometry().offset(place)).unwrap();
    assert_eq!(id(0).sum(0, &bytes), drive.index.entry(place).sums[0]);
    // It is no more in use, unless it is asked for again.
    assert!(!drive.index.is_touched(place));
}

/// A page of a summary is full, and the next one is of an earlier life.
#[test]
fn a_page_of_an_earlier_life_is_no_part_of_a_summary() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    let (all, page) = (places(&drive) * 4, u64::from(drive.geometry().entries_of_page()));
    put(&drive, 0..all);
    put(&drive, all..all + page);
    let drive = without_index(dir.path(), drive);
    assert_eq!(known(&drive, all..all + page) as u64, page);
    assert_eq!(known(&drive, 0..places(&drive)), 0, "the bytes of some of them are gone");
    assert_eq!(known(&drive, places(&drive)..all) as u64, places(&drive) * 3);
    // It goes on where it was.
    assert_eq!(put(&drive, all + page..all + page + 5).emptied, 0);
    assert_eq!(known(&drive, all..all + page + 5) as u64, page + 5);
}

/// A process dies after the summary and before the index.
#[test]
fn what_a_process_wrote_and_did_not_make_known_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    put(&drive, 0..20);
    let region = drive.index.open_region().unwrap();
    let state = drive.index.region(region);
    for n in 12..20 {
        drive.index.forget(&drive.index.find(id(n).tag).unwrap());
    }
    drive.index.set_region(region, Region { filled: 12, ..state });
    drive.index.set_appending(Some(region));
    assert_eq!(known(&drive, 0..20), 12);
    put(&drive, 20..21);
    assert_eq!(known(&drive, 0..21), 21);
    assert_eq!(drive.index.region(region).filled, 21);
}

#[test]
fn what_is_there_is_not_appended_again() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    put(&drive, 0..10);
    let done = put(&drive, 5..12);
    assert_eq!((done.granules, done.known), (2, 5));
    // A lock that another opening holds is not to be had.
    let other = self::drive(dir.path());
    let held = drive.try_hold().unwrap();
    assert!(other.try_hold().is_none());
    drop(held);
    assert!(other.try_hold().is_some());
}

/// The index of a drive is made again from its summaries.
#[test]
fn an_index_is_made_again_from_summaries() {
    let dir = tempfile::tempdir().unwrap();
    let drive = drive(dir.path());
    let some = places(&drive) * 2 + 100;
    put(&drive, 0..some);
    let drive = without_index(dir.path(), drive);
    assert_eq!(known(&drive, 0..some) as u64, some);
    let next = put(&drive, some..some + 3);
    assert_eq!((next.granules, next.emptied), (3, 0));
    let region = drive.index.region(drive.index.open_region().unwrap());
    assert_eq!(region.filled, 103, "the newest region goes on");
}

/// It can be read, and successful reads happen in between. So only a count of its writes detects the failure.
#[test]
fn a_drive_that_can_be_read_and_not_written_is_told_of_once_and_left_out() {
    let (dir, notices) = (tempfile::tempdir().unwrap(), Notices::default());
    let drive = drive_telling(dir.path(), &notices);
    put(&drive, 0..10);
    let drive = drive.without_writes();
    for n in 10..10 + 2 * FAILURES_MOST {
        assert_eq!(drive.is_dead(), n >= 10 + FAILURES_MOST, "{n}");
        drive.went_well();
        let item = Item { id: id(n.into()), bytes: Bytes::from(vec![1; 4096]) };
        append(&drive, &[item], &drive.try_hold().unwrap(), &mut Appended::default()).unwrap_err();
    }
    let told = notices.all();
    assert!(told.len() == 1 && told[0].contains("cannot") && told[0].contains("without this drive"), "{told:?}");
    assert_eq!(known(&drive, 0..10), 10);
}
