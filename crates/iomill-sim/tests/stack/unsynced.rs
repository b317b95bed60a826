//! Changes of names that wait for no sync: their fsyncs, the time when they are durable, and the reuse of a deleted
//! file's space.

use iomill::{Array, ArrayOptions, File, FileOptions, PutOptions};
use iomill_sim::{DriveModel, Survival, World};

use super::crash::assert_clean_beside;

const LARGE: usize = 200_000;

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20).sync_changes(false)
}

/// An array with the synced files `small` and `large`.
fn made(seed: u64) -> (World, Array) {
    let world = World::new(seed).with_drives(2, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    array.put("small", &[1; 5000], &PutOptions::new()).unwrap();
    array.put("large", &[2; LARGE], &PutOptions::new()).unwrap();
    array.sync().unwrap();
    (world, array)
}

/// Makes each change that waits for no sync.
fn change(array: &Array) {
    drop(array.create_file("new", &FileOptions::new()).unwrap());
    array.rename("small", "renamed").unwrap();
    array.set_attribute("renamed", "key", Some("value")).unwrap();
    array.delete("large").unwrap();
}

/// The machine loses all unsynced writes. Returns whether the changes are there: all are, or none.
fn survive(world: &World, array: Array) -> bool {
    world.crash_with(Survival::Nothing);
    drop(array);
    world.reboot();
    let array = options(world).open(world.path(0)).unwrap();
    let names = array.list("").names().unwrap();
    let is_changed = names == ["new", "renamed"];
    assert!(is_changed || names == ["large", "small"], "{names:?}");
    let small = if is_changed { "renamed" } else { "small" };
    assert_eq!(read(&array, small), [1; 5000]);
    assert_eq!(array.stat(small).unwrap().attributes.len(), usize::from(is_changed));
    if !is_changed {
        assert!(read(&array, "large") == [2; LARGE]);
    }
    assert_eq!(array.unnamed_pages(), 0);
    assert_clean_beside(world, array);
    is_changed
}

fn read(array: &Array, name: &str) -> Vec<u8> {
    let file = array.open_file(name).unwrap();
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Counts the fsyncs of a call.
fn fsyncs(world: &World, call: impl FnOnce()) -> u64 {
    let before = world.fsyncs();
    call();
    world.fsyncs() - before
}

#[test]
fn a_change_costs_no_fsync() {
    let (world, array) = made(1);
    assert_eq!(fsyncs(&world, || change(&array)), 0);
    assert!(!survive(&world, array), "changes are durable without an fsync");
}

#[test]
fn the_next_sync_of_anything_makes_changes_durable() {
    type Sync = fn(&Array, File);
    let syncs: [(&str, Sync); 5] = [
        ("a sync of a file that was not changed", |_, file| file.sync().unwrap()),
        ("a sync of a file that was written to", |_, file| {
            file.write_at(&[1], 0).unwrap();
            file.sync().unwrap();
        }),
        ("the end of a file that was written to", |_, file| file.write_at(&[1], 0).unwrap()),
        ("a new length", |_, file| file.set_len(5000).unwrap()),
        ("a sync of the array", |array, _| array.sync().unwrap()),
    ];
    for (what, sync) in syncs {
        let (world, array) = made(2);
        let file = array.open_file("small").unwrap();
        change(&array);
        sync(&array, file);
        assert!(survive(&world, array), "{what} leaves changes that are not durable");
    }
    let (world, array) = made(3);
    change(&array);
    array.clone().close().unwrap();
    assert!(survive(&world, array), "closing the array loses changes");
    // Looking at a file makes nothing durable, and so costs nothing.
    let (world, array) = made(4);
    change(&array);
    assert_eq!(fsyncs(&world, || assert_eq!(read(&array, "renamed").len(), 5000)), 0);
    assert!(!survive(&world, array));
}

/// A put syncs its content, and leaves its name to the next sync.
#[test]
fn a_put_syncs_its_content_only() {
    let (world, array) = made(5);
    let put = |content: u8| drop(array.put("small", &[content; 5000], &PutOptions::new()).unwrap());
    assert_eq!(fsyncs(&world, || put(3)), 1);
    assert_eq!(fsyncs(&world, || put(4)), 1);
    assert_eq!(read(&array, "small"), [4; 5000]);
    world.crash_with(Survival::Nothing);
    drop(array);
    world.reboot();
    let array = options(&world).open(world.path(0)).unwrap();
    assert_eq!(read(&array, "small"), [1; 5000]);
    assert_clean_beside(&world, array);
}

/// Nothing of a deleted file is used again before its deletion is durable. So a crash brings it back as it was.
#[test]
fn a_deleted_file_keeps_its_space_until_its_deletion_is_durable() {
    let parts = |world: &World| {
        let count = |drive| world.files(drive).iter().filter(|path| path.starts_with("parts/")).count();
        (0..2).map(count).sum::<usize>()
    };
    let (world, array) = made(6);
    array.delete("small").unwrap();
    array.delete("large").unwrap();
    assert_eq!(parts(&world), 2);
    // Files that take the pages if they are free.
    for other in 0..20 {
        array.put(&format!("other {other}"), &[9; 5000], &PutOptions::new()).unwrap();
    }
    world.crash_with(Survival::Nothing);
    drop(array);
    world.reboot();
    let array = options(&world).open(world.path(0)).unwrap();
    assert!(read(&array, "small") == [1; 5000] && read(&array, "large") == [2; LARGE]);
    assert_eq!(array.unnamed_pages(), 0);
    array.delete("large").unwrap();
    array.sync().unwrap();
    assert_eq!(parts(&world), 0, "a durable deletion frees the space");
    assert_clean_beside(&world, array);
}

/// Many deletes share an fsync, and their space comes back.
#[test]
fn deletes_share_an_fsync() {
    let (world, array) = made(7);
    let count = 1000;
    // All begin with the first drive.
    let options = PutOptions::new().file(FileOptions::new().drives([0, 1]));
    for file in 0..count {
        array.put(&format!("{file}"), &[5; 100], &options).unwrap();
    }
    array.sync().unwrap();
    let shared = |world: &World| {
        world.read(0, "shared/0000").unwrap().len() + world.read(1, "shared/0000").unwrap_or_default().len()
    };
    let before = shared(&world);
    let delete_all = || (0..count).for_each(|file| array.delete(&format!("{file}")).unwrap());
    let fsyncs = fsyncs(&world, delete_all);
    // Two copies of the log.
    assert!((2..=2 * count / 200).contains(&fsyncs), "{fsyncs} fsyncs for {count} deletes");
    array.sync().unwrap();
    assert_eq!(array.unnamed_pages(), 0);
    for file in 0..count {
        array.put(&format!("{file}"), &[6; 100], &options).unwrap();
    }
    assert_eq!(shared(&world), before, "pages of deleted files are not used again");
    assert_clean_beside(&world, array);
}
