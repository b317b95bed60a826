//! Pages of files with sums that a drive returns in place of others. A page, and a page of sums, says where it is.

use fastrand::Rng;
use iomill::{Array, Error};
use iomill_sim::{DriveModel, World};

use super::harness::bytes;
use super::sums::{is_page, opened, options, with_sums};

const PAGE: usize = 4096;
/// Pages of a part with sums in one page of sums.
const CHUNK_PAGES: usize = 1022;
/// The page of sums with number 0, behind the heads.
const SUMS_AT: usize = 2 * PAGE;

/// Exchanges the bytes of two places of equal length on a drive.
fn exchange(world: &World, drive: usize, one: (&str, usize), other: (&str, usize), len: usize) {
    let take = |(path, at): (&str, usize)| world.read(drive, path).unwrap()[at..at + len].to_vec();
    let (first, second) = (take(one), take(other));
    for ((path, at), new) in [(one, second), (other, first)] {
        let mut all = world.read(drive, path).unwrap();
        all[at..at + len].copy_from_slice(&new);
        world.put(drive, path, &all).unwrap();
    }
}

/// A machine of one drive with two files of one length, and the paths of their parts. Each has pages of two pages of
/// sums.
fn two_files() -> (World, [String; 2]) {
    let world = World::new(14).with_drives(1, DriveModel::default());
    let array = options(&world, true).create(world.paths()).unwrap();
    for name in ["file", "other"] {
        let file = array.create_file(name, &with_sums()).unwrap();
        let content = bytes(&mut Rng::with_seed(name.len() as u64), 40 * PAGE);
        file.write_at(&content, 0).unwrap();
        file.write_at(&content, (CHUNK_PAGES * PAGE) as u64).unwrap();
        file.close().unwrap();
    }
    array.close().unwrap();
    let parts: Vec<String> =
        world.files(0).into_iter().filter(|path| path.starts_with("parts/") && !path.ends_with(".sums")).collect();
    (world, parts.try_into().unwrap())
}

fn read(array: &Array, name: &str, page: usize) -> iomill::Result<()> {
    let mut got = vec![9; PAGE];
    let read = array.open_file(name).unwrap().read_at(&mut got, (page * PAGE) as u64);
    if read.is_err() {
        assert!(got.iter().all(|byte| matches!(byte, 0 | 9)), "bytes of page {page} of {name} were given out");
    }
    read.map(drop)
}

/// These pages are refused with the right errors. Those of the other file are as they were, if it is none of them.
fn assert_refused(world: &World, wrong: &[(&str, usize)], is_right: impl Fn(&Error, usize) -> bool) {
    for cached in [true, false] {
        let array = opened(world, cached);
        for &(name, page) in wrong {
            let error = read(&array, name, page).unwrap_err();
            assert!(is_right(&error, page), "page {page} of {name}: {error}");
        }
        for page in [9, CHUNK_PAGES + 9] {
            if !wrong.contains(&("other", page)) {
                read(&array, "other", page).unwrap();
            }
        }
        array.close().unwrap();
    }
}

/// Two pages of one file, and two of two files, change places. Their sums do not.
#[test]
fn pages_that_change_places_are_found() {
    let (world, [part, _]) = two_files();
    exchange(&world, 0, (&part, 3 * PAGE), (&part, 7 * PAGE), PAGE);
    assert_refused(&world, &[("file", 3), ("file", 7)], |error, page| is_page(error, page as u64));
    let (world, [part, other]) = two_files();
    exchange(&world, 0, (&part, 3 * PAGE), (&other, 3 * PAGE), PAGE);
    let is_right = |error: &Error, at: usize| matches!(error, Error::CorruptPage { page, .. } if *page == at as u64);
    assert_refused(&world, &[("file", 3), ("other", 3)], is_right);
}

/// Pages change places together with their sums, within a part, and as whole parts. So only the place tells.
#[test]
fn pages_that_change_places_with_their_sums_are_found() {
    let is_right = |error: &Error, _: usize| matches!(error, Error::Corrupt { .. });
    let (world, [part, _]) = two_files();
    exchange(&world, 0, (&part, 0), (&part, CHUNK_PAGES * PAGE), 40 * PAGE);
    let sums = format!("{part}.sums");
    exchange(&world, 0, (&sums, SUMS_AT), (&sums, SUMS_AT + PAGE), PAGE);
    assert_refused(&world, &[("file", 3), ("file", CHUNK_PAGES + 3)], is_right);
    let (world, [part, other]) = two_files();
    for end in ["", ".sums"] {
        let (one, two) = (format!("{part}{end}"), format!("{other}{end}"));
        let len = world.read(0, &one).unwrap().len();
        assert_eq!(len, world.read(0, &two).unwrap().len());
        exchange(&world, 0, (&one, 0), (&two, 0), len);
    }
    let all = [("file", 3), ("file", CHUNK_PAGES + 9), ("other", 9), ("other", CHUNK_PAGES + 9)];
    assert_refused(&world, &all, is_right);
}
