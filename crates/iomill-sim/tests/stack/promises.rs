//! Promises of single calls where drives fail and processes end, in the fewest calls that show them (`docs/durability.md`).

use fastrand::Rng;
use iomill::{Array, ArrayOptions, File, Layout, Mode};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use crate::harness::{assert_same, assert_tidy, block_on, bytes};

const PAGE: usize = 4096;

const MODES: [Mode; 3] = [Mode::Inline, Mode::Auto, Mode::DriveThreads];

fn options(world: &World, mode: Mode, cache_pages: usize) -> ArrayOptions {
    // Faults are aimed at requests by their number, so each piece is one.
    let options = ArrayOptions::new().platform(world.platform()).mode(mode).merge(false);
    options.set_size(4).cache_bytes((cache_pages * PAGE) as u64)
}

fn made(world: &World, options: ArrayOptions) -> (Array, File) {
    let array = options.create(world.paths()).unwrap();
    let file = array.create_file("file", Layout::striping().block_bytes(PAGE as u32)).unwrap();
    (array, file)
}

fn eio(kind: Kind) -> Injection {
    Injection::new(kind, Fault::Errno(libc::EIO)).path("parts/")
}

/// The machine loses all that no sync has covered; the file as it is then.
fn after_a_crash(world: &World, array: Array) -> Vec<u8> {
    world.crash_with(Survival::Nothing);
    drop(array);
    world.reboot();
    let array = options(world, Mode::Inline, 0).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    let mut got = vec![0; file.len() as usize];
    assert_eq!(file.read_at(&mut got, 0).unwrap(), got.len());
    drop(file);
    array.close().unwrap();
    got
}

/// What a writer finds may be in the drives' caches alone. Its sync covers that too, though it has written nothing itself.
#[test]
fn a_sync_covers_what_an_earlier_writer_left() {
    let mut rng = Rng::with_seed(2);
    for (mode, cache_pages) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 64)]) {
        let world = World::new(1).with_drives(3, DriveModel::default());
        let (array, file) = made(&world, options(&world, mode, 0));
        let (first, second) = (bytes(&mut rng, 21 * PAGE), bytes(&mut rng, 21 * PAGE));
        file.write_at(&first, 0).unwrap();
        drop(file);
        // The parts are as long as they must be, so that the next opening has nothing to cut.
        let file = array.open_file("file").unwrap();
        file.write_at(&second, 0).unwrap();
        world.kill_process();
        drop((array, file));
        let array = options(&world, mode, cache_pages).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        let mut got = vec![0; second.len()];
        file.read_at(&mut got, 0).unwrap();
        assert_same(&got, &second, || "what the killed writer left".into());
        let before = (0..3).map(|drive| world.stats(drive).syncs).sum::<u64>();
        if mode == Mode::Auto {
            block_on(&array, file.sync_async()).unwrap()
        } else {
            file.sync().unwrap()
        }
        file.sync().unwrap();
        let syncs = (0..3).map(|drive| world.stats(drive).syncs).sum::<u64>() - before;
        assert_eq!(syncs, 3, "one for each part, once");
        drop(file);
        assert_same(&after_a_crash(&world, array), &second, || format!("after the crash, {mode:?}, {cache_pages}"));
        assert_tidy(&world);
    }
}

/// The same in one process: of a file that was discarded, and of one that took no more writes.
#[test]
fn a_sync_covers_what_an_earlier_opening_left() {
    let world = World::new(2).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, options(&world, Mode::Inline, 0));
    file.write_at(&[1; 8 * PAGE], 0).unwrap();
    file.sync().unwrap();
    file.write_at(&[2; 8 * PAGE], 0).unwrap();
    file.discard();
    let file = array.open_file("file").unwrap();
    file.sync().unwrap();
    // Now both parts fail to be synced, and the file is opened again.
    file.write_at(&[3; 8 * PAGE], 0).unwrap();
    world.faults(|faults| faults.inject(eio(Kind::Sync).times(2)));
    file.sync().unwrap_err();
    drop(file);
    let syncs = || [0, 1].map(|drive| world.stats(drive).syncs);
    world.faults(|faults| faults.clear());
    let before = syncs();
    let file = array.open_file("file").unwrap();
    file.sync().unwrap();
    assert_eq!(syncs(), before.map(|count| count + 1), "a file that is opened again was not synced");
    drop(file);
    let got = after_a_crash(&world, array);
    // What a failed fdatasync has dropped no sync brings back.
    assert!(got.iter().all(|&byte| byte == 2 || byte == 3), "what a discarded handle left was not synced");
    assert_tidy(&world);
}

/// Opening a file for nothing but reading costs no fdatasync, nor does a new file that is not written to.
#[test]
fn a_file_that_is_not_written_to_costs_no_sync_at_its_end() {
    let world = World::new(3).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, options(&world, Mode::Inline, 64));
    let syncs = || (0..2).map(|drive| world.stats(drive).syncs).sum::<u64>();
    file.sync().unwrap();
    assert_eq!(syncs(), 0, "a new file holds nothing");
    file.write_at(&[1; 8 * PAGE], 0).unwrap();
    drop(file);
    let before = syncs();
    let file = array.open_file("file").unwrap();
    file.read_at(&mut [0; 100], 5000).unwrap();
    drop(file);
    let _file = array.open_file("file").unwrap();
    array.close().unwrap();
    assert_eq!(syncs(), before);
}
