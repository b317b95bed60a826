//! Files with sums: their ends change, sums are lost, sectors cannot be read. No call returns a wrong byte, and no
//! right page is called rotten.

use std::time::Duration;

use fastrand::Rng;
use iomill::{Array, File, FileOptions, When};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, block_on, bytes};
use super::sums::{is_page, opened, options, with_sums};

const PAGE: usize = 4096;
/// Pages of a part with sums in one page of sums.
const CHUNK_PAGES: usize = 1022;

/// A machine of one drive, with a closed file of `len` bytes.
fn made(len: usize) -> (World, Vec<u8>) {
    made_by(21, len)
}

fn made_by(seed: u64, len: usize) -> (World, Vec<u8>) {
    let world = World::new(seed).with_drives(1, DriveModel::default());
    let array = options(&world, true).create(world.paths()).unwrap();
    let content = bytes(&mut Rng::with_seed(8), len);
    let file = array.create_file("file", &with_sums()).unwrap();
    file.write_at(&content, 0).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    (world, content)
}

fn open(world: &World, cached: bool) -> (Array, File) {
    let array = opened(world, cached);
    let file = array.open_file("file").unwrap();
    (array, file)
}

fn close(array: Array, file: File) {
    file.close().unwrap();
    array.close().unwrap();
}

/// The file has this content and then zeros, up to `len` bytes.
fn assert_holds(world: &World, content: &[u8], len: usize) {
    for cached in [true, false] {
        let (array, file) = open(world, cached);
        let mut got = vec![9; len];
        let read = file.read_at(&mut got, 0);
        assert_eq!(read.unwrap(), len);
        assert_same(&got[..content.len()], content, || "the content".into());
        assert!(got[content.len()..].iter().all(|byte| *byte == 0), "zeros behind the content");
        close(array, file);
    }
}

/// The first page of sums is lost, so pages seem never to have been written. A write of a part of such a page does not
/// make the rest of it zeros.
#[test]
fn a_page_with_a_lost_sum_is_not_taken_for_zeros() {
    for cached in [true, false] {
        let world = World::new(22).with_drives(1, DriveModel::default());
        let array = options(&world, cached).create(world.paths()).unwrap();
        let file = array.create_file("file", &with_sums()).unwrap();
        // The first write is that of the mark, and the third one removes it.
        world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Lost).path(".sums").skip(1)));
        file.write_at(&[7; 20 * PAGE], 0).unwrap();
        close(array, file);
        assert_eq!(world.faults(|faults| faults.pending()), 0);
        let (array, file) = open(&world, cached);
        let written = file.write_at(&[1; 10], 5 * PAGE as u64 + 5).and_then(|()| file.sync());
        assert!(is_page(&written.unwrap_err(), 5));
        assert!(is_page(&file.read_at(&mut [0; 10], 5 * PAGE as u64).unwrap_err(), 5));
        drop((array, file));
    }
}

/// A sync of a draft while a write past its end waits for another page of the same call: the pages of that write keep
/// their sums.
#[test]
fn sums_of_a_write_that_has_not_ended_are_kept() {
    for (slow, first) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let world = World::new(23).with_drives(2, DriveModel::default());
        let array = options(&world, true).create(world.paths()).unwrap();
        let draft = array.draft(&with_sums()).unwrap();
        let file = draft.file();
        file.write_at(&vec![7; 300 * PAGE], 0).unwrap();
        // On the other drive than the page `first`, with other sums.
        let far = 2 * (CHUNK_PAGES + 50) + 1 - first;
        file.preallocate(((far + 2) * PAGE) as u64).unwrap();
        file.sync().unwrap();
        world.faults(|faults| faults.slow(slow, 1_000_000));
        let ranges = [((first * PAGE + 5) as u64, 10), ((far * PAGE) as u64, PAGE)];
        let writing = file.write_ranges_async(vec![8; 10 + PAGE], &ranges);
        file.sync().unwrap();
        world.faults(|faults| faults.clear());
        block_on(&array, writing).unwrap();
        draft.publish("file", When::Absent).unwrap();
        drop(draft);
        array.close().unwrap();
        let (array, file) = open(&world, false);
        let mut got = [0; PAGE];
        file.read_at(&mut got, (far * PAGE) as u64).unwrap();
        assert_eq!(got, [8; PAGE]);
        close(array, file);
    }
}

/// An import brings an older, shorter length back. The file grows again, and each of its pages can be read.
#[test]
fn a_file_grows_behind_an_older_length() {
    for (len, longer) in [(3 * PAGE + 100, 3 * PAGE + 2000), (3 * PAGE + 100, 3000 * PAGE), (4 * PAGE, 40 * PAGE)] {
        for how in ["length", "write", "nothing"] {
            let (world, mut content) = made(len);
            let text = options(&world, false).export_catalog(world.paths()).unwrap();
            let (array, file) = open(&world, true);
            file.write_at(&vec![6; longer - len], len as u64).unwrap();
            close(array, file);
            options(&world, false).import_catalog(world.paths(), &text).unwrap();
            if how == "nothing" {
                let (array, file) = open(&world, true);
                close(array, file);
            }
            assert_holds(&world, &content, len);
            let (array, file) = open(&world, true);
            match how {
                "write" => {
                    file.write_at(&[5], longer as u64 - 1).unwrap();
                    content.resize(longer, 0);
                    content[longer - 1] = 5;
                }
                _ => file.set_len(longer as u64).unwrap(),
            }
            close(array, file);
            assert_holds(&world, &content, longer);
        }
    }
}

/// Sums past an older length are cut durably, because a longer length may be durable before any other sum.
#[test]
fn sums_that_were_cut_do_not_come_back() {
    let (world, content) = made(5 * PAGE);
    let text = options(&world, false).export_catalog(world.paths()).unwrap();
    let (array, file) = open(&world, false);
    file.write_at(&vec![6; 2995 * PAGE], 5 * PAGE as u64).unwrap();
    close(array, file);
    options(&world, false).import_catalog(world.paths(), &text).unwrap();
    // Trims the part.
    let (array, file) = open(&world, false);
    close(array, file);
    let (array, file) = open(&world, false);
    file.set_len(3000 * PAGE as u64).unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    assert_holds(&world, &content, 3000 * PAGE);
}

/// The last page of a shorter file cannot be read, so the rest of it is not cleared. The next opening does that, with
/// the sums.
#[test]
fn a_tail_that_could_not_be_cut_has_no_sums() {
    let (world, mut content) = made(3000 * PAGE);
    let len = 5 * PAGE + 77;
    let (array, file) = open(&world, false);
    let unreadable = Injection::new(Kind::Read, Fault::Errno(libc::EIO)).path("parts/").except(".sums");
    world.faults(|faults| faults.inject(unreadable.skip(1).times(u64::MAX)));
    file.set_len(len as u64).unwrap();
    let _ = file.close();
    let _ = array.close();
    world.faults(|faults| faults.clear());
    content.truncate(len);
    let (array, file) = open(&world, false);
    file.set_len(3000 * PAGE as u64).unwrap();
    close(array, file);
    assert_holds(&world, &content, 3000 * PAGE);
}

/// A drive that takes long enough for zones to become idle while the length changes, and a crash at each step of that.
#[test]
fn a_slow_cut_is_no_rot() {
    (0..10).for_each(|seed| assert!((1..).take_while(|at| crashes_in_slow_cut(seed, *at)).count() > 5));
}

/// Whether there is such a step.
fn crashes_in_slow_cut(seed: u64, at: u64) -> bool {
    let (world, content) = made_by(seed, 20 * PAGE);
    let (array, file) = open(&world, false);
    file.write_at(&content[..PAGE], 0).unwrap();
    file.sync().unwrap();
    world.pass(Duration::from_secs(11));
    let at = world.effects() + at;
    world.faults(|faults| {
        faults.slow(0, 1_000_000);
        faults.crash_at_effect = Some(at);
    });
    let cut = file.set_len(7 * PAGE as u64 + 100);
    if !world.crashed() {
        cut.unwrap();
        return false;
    }
    drop((array, file));
    world.reboot();
    let (array, file) = open(&world, false);
    let mut got = vec![0; file.len() as usize];
    file.read_at(&mut got, 0).unwrap_or_else(|error| panic!("crash {at} of seed {seed}: {error}"));
    assert_same(&got, &content[..got.len()], || format!("crash {at} of seed {seed}"));
    close(array, file);
    true
}

/// Sums that are made anew are those of the pages that can be read. The others are errors of the drive, and a page that
/// can be read again is accepted.
#[test]
fn an_unreadable_sector_concerns_its_page() {
    let (world, mut content) = made(200 * PAGE);
    let (array, file) = open(&world, false);
    content[..PAGE].fill(8);
    file.write_at(&content[..PAGE], 0).unwrap();
    file.sync().unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    let (array, file) = open(&world, false);
    let unreadable = Injection::new(Kind::Read, Fault::Errno(libc::EIO)).path("parts/").except(".sums");
    world.faults(|faults| faults.inject(unreadable.times(2)));
    let mut got = vec![0; 199 * PAGE];
    file.read_at(&mut got, PAGE as u64).unwrap();
    assert_same(&got, &content[PAGE..], || "the other pages".into());
    close(array, file);
    assert_holds(&world, &content, content.len());
}

/// The same in a small file.
#[test]
fn an_unreadable_sector_of_a_small_file_concerns_its_page() {
    let world = World::new(24).with_drives(1, DriveModel::default());
    let array = options(&world, false).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().checksums(true)).unwrap();
    let content = bytes(&mut Rng::with_seed(8), 3 * PAGE);
    file.write_at(&content, 0).unwrap();
    file.sync().unwrap();
    file.write_at(&content[..PAGE], 0).unwrap();
    file.sync().unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    let array = opened(&world, false);
    world.faults(|faults| faults.inject(Injection::new(Kind::Read, Fault::Errno(libc::EIO)).path("shared/")));
    let file = array.open_file("file").unwrap();
    close(array, file);
    assert_holds(&world, &content, content.len());
}

/// A file with a rotten last page grows. The page stays wrong.
#[test]
fn a_rotten_last_page_stays_wrong_when_its_file_grows() {
    let (world, content) = made(5 * PAGE + 99);
    let part = world.files(0).into_iter().find(|path| path.starts_with("parts/") && !path.ends_with(".sums")).unwrap();
    world.corrupt(0, &part, 5 * PAGE as u64 + 7, 1).unwrap();
    let (array, file) = open(&world, false);
    file.write_at(&[3; PAGE], 9 * PAGE as u64).unwrap();
    close(array, file);
    let (array, file) = open(&world, true);
    let mut got = vec![0; 5 * PAGE];
    file.read_at(&mut got, 0).unwrap();
    assert_same(&got, &content[..5 * PAGE], || "the pages before".into());
    assert!(is_page(&file.read_at(&mut got, 5 * PAGE as u64).unwrap_err(), 5));
    file.read_at(&mut got[..4 * PAGE], 6 * PAGE as u64).unwrap();
    assert!(got[..3 * PAGE].iter().all(|byte| *byte == 0) && got[3 * PAGE..4 * PAGE] == [3; PAGE]);
    close(array, file);
}

/// Space that was allocated ahead stays allocated when the file first grows.
#[test]
fn allocated_space_outlives_the_first_growth() {
    let (world, _) = made(5 * PAGE + 99);
    let (array, file) = open(&world, false);
    file.preallocate(1000 * PAGE as u64).unwrap();
    let used = world.used_bytes(0);
    file.write_at(&[3; PAGE], 9 * PAGE as u64).unwrap();
    assert!(world.used_bytes(0) >= used, "the write has freed space");
    close(array, file);
}
