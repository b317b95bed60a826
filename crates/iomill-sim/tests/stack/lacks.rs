//! A machine without memory for a group of the log: the change is visible, its call fails, and it becomes durable with
//! the next change of any caller.

use std::time::Duration;

use iomill::{Array, ArrayOptions, Error, File, FileOptions, PutOptions};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, assert_tidy};

const PAGE: usize = 4096;
/// Longer than the time after which a sync makes idle sums durable.
const LONG: Duration = Duration::from_secs(11);

fn options(world: &World, cache_pages: usize) -> ArrayOptions {
    let options = ArrayOptions::new().platform(world.platform());
    options.with_cache(|cache| cache.set_pages(4)).cache_bytes((cache_pages * PAGE) as u64)
}

/// An array of one drive, with a synced file of this content.
fn made(cache_pages: usize, file: &FileOptions, content: &[u8]) -> (World, Array, File) {
    made_by(3, cache_pages, file, content)
}

/// The same, on the machine of a seed.
fn made_by(seed: u64, cache_pages: usize, file: &FileOptions, content: &[u8]) -> (World, Array, File) {
    let world = World::new(seed).with_drives(1, DriveModel::default());
    let array = options(&world, cache_pages).create(world.paths()).unwrap();
    let file = array.create_file("file", file).unwrap();
    file.write_at(content, 0).unwrap();
    file.sync().unwrap();
    (world, array, file)
}

/// Makes a call while the machine lacks memory for groups of the log, but for the first `skip` ones.
fn lacking<R: std::fmt::Debug>(world: &World, skip: u64, call: impl FnOnce() -> iomill::Result<R>) {
    let lack = Injection::new(Kind::Write, Fault::Errno(libc::ENOMEM)).path("log/").skip(skip).times(u64::MAX);
    world.faults(|faults| faults.inject(lack));
    let error = call().unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    world.faults(|faults| faults.clear());
}

/// The next change makes durable what was put off. Then the machine loses all unsynced writes. Checks the content of
/// the file, before and after that.
fn assert_survives(world: &World, (array, file): (Array, File), wanted: &[u8]) {
    array.set_attribute("file", "key", Some("value")).unwrap();
    let read = |file: &File| {
        let mut got = vec![0; file.len() as usize];
        file.read_at(&mut got, 0).map(|_| got)
    };
    assert_same(&read(&file).unwrap(), wanted, || "before the crash".into());
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    let array = options(world, 0).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    assert_same(&read(&file).unwrap(), wanted, || "after the crash".into());
    drop(file);
    array.close().unwrap();
    assert_tidy(world);
}

/// The file keeps its old length, and the next sync makes that durable again.
#[test]
fn a_length_that_was_put_off_hides_no_synced_bytes() {
    for (cache_pages, len) in [0, 64].into_iter().flat_map(|pages| [(pages, 5000), (pages, 50_000)]) {
        let mut content = vec![1; 20_000];
        let (world, array, file) = made(cache_pages, &FileOptions::new().block_bytes(PAGE as u32), &content);
        lacking(&world, 0, || file.set_len(len));
        assert_eq!(file.len(), 20_000);
        // A part of a page that is not cached.
        content[12_000..12_010].fill(2);
        file.write_at(&[2; 10], 12_000).unwrap();
        file.sync().unwrap();
        assert_survives(&world, (array, file), &content);
    }
}

/// The file keeps its old place, and the next sync makes that durable again.
#[test]
fn a_move_that_was_put_off_hides_no_synced_bytes() {
    // To more pages, and to parts, which an earlier group announces.
    for (cache_pages, end, skip) in [0, 64].into_iter().flat_map(|pages| [(pages, 8192, 0), (pages, 200_000, 1)]) {
        let mut content = vec![1; 3000];
        let (world, array, file) = made(cache_pages, &FileOptions::new(), &content);
        lacking(&world, skip, || file.write_at(&[3], end));
        content[..100].fill(2);
        file.write_at(&[2; 100], 0).unwrap();
        file.sync().unwrap();
        assert_survives(&world, (array, file), &content);
    }
}

/// The second try makes the parts anew. Before that a record names the old place again.
#[test]
fn a_crash_in_the_second_try_of_a_move_keeps_the_synced_bytes() {
    for seed in 0..16 {
        let (world, array, file) = made_by(seed, 0, &FileOptions::new(), &[1; 3000]);
        lacking(&world, 1, || file.write_at(&[3], 200_000));
        world.faults(|faults| faults.inject(Injection::new(Kind::Allocate, Fault::Crash).path("parts/")));
        file.write_at(&[3], 200_000).unwrap_err();
        drop((array, file));
        world.reboot();
        let array = options(&world, 0).open(world.path(0)).unwrap();
        assert_eq!(array.read("file").unwrap(), [1; 3000], "seed {seed}");
        array.close().unwrap();
    }
}

/// A process without a descriptor for the next segment of the log moves no file. The pages of each try are free again.
#[test]
fn a_move_that_was_refused_frees_its_pages() {
    let (world, array, file) = made(0, &FileOptions::new(), &[1; 3000]);
    world.faults(|faults| {
        faults.inject(Injection::new(Kind::Create, Fault::Errno(libc::EMFILE)).path("log/").times(u64::MAX))
    });
    let changed = |at: u64| array.set_attribute("file", "key", Some(&at.to_string()));
    let refused = (0..100_000).find_map(|at| changed(at).err()).expect("the log takes any number of changes");
    assert_eq!(refused.errno(), Some(libc::EMFILE), "{refused}");
    for _ in 0..3 {
        let refused = file.write_at(&[3], 8192).unwrap_err();
        assert_eq!(refused.errno(), Some(libc::EMFILE), "{refused}");
        assert_eq!(array.unnamed_pages(), 0);
    }
    world.faults(|faults| faults.clear());
    file.write_at(&[3], 8192).unwrap();
    file.sync().unwrap();
    let content: Vec<u8> = [vec![1; 3000], vec![0; 5192], vec![3]].concat();
    assert_survives(&world, (array, file), &content);
}

/// The pages of its old place are not free, also where the free pages are looked for after that.
#[test]
fn a_move_that_was_put_off_leaves_its_pages_to_the_file() {
    let content = vec![1; 3000];
    let (world, array, file) = made(0, &FileOptions::new(), &content);
    drop(file);
    array.close().unwrap();
    let array = options(&world, 0).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    lacking(&world, 1, || file.write_at(&[3], 200_000));
    array.put("other", &[9; 3000], &PutOptions::new()).unwrap();
    file.sync().unwrap();
    assert_survives(&world, (array, file), &content);
}

/// The pages of a file that a put-off record names are not free when the file is closed.
#[test]
fn a_first_place_that_was_put_off_is_not_given_to_another_file() {
    let world = World::new(3).with_drives(1, DriveModel::default());
    let array = options(&world, 0).create(world.paths()).unwrap();
    let file = array.create_file("first", &FileOptions::new()).unwrap();
    file.write_at(&[1; 3000], 0).unwrap();
    lacking(&world, 0, || file.sync());
    file.discard();
    array.put("file", &[9; 3000], &PutOptions::new()).unwrap();
    let file = array.open_file("file").unwrap();
    assert_survives(&world, (array, file), &[9; 3000]);
    let array = options(&world, 0).open(world.path(0)).unwrap();
    array.put("more", &[7; 3000], &PutOptions::new()).unwrap();
    assert_eq!(array.read("first").unwrap(), [1; 3000]);
    array.delete("first").unwrap();
    array.close().unwrap();
}

/// A later write to the file makes the sums in its record wrong, so a record says first that they are not known.
#[test]
fn sums_in_a_record_that_was_put_off_are_forgotten_before_a_write() {
    let mut content = vec![1; 3000];
    let (world, array, file) = made(0, &FileOptions::new().checksums(true), &content);
    for byte in [2, 3] {
        world.pass(LONG);
        content[..100].fill(byte);
        file.write_at(&[byte; 100], 0).unwrap();
        file.sync().unwrap();
    }
    world.pass(LONG);
    lacking(&world, 0, || file.sync());
    content[..100].fill(4);
    file.write_at(&[4; 100], 0).unwrap();
    file.sync().unwrap();
    assert_survives(&world, (array, file), &content);
}
