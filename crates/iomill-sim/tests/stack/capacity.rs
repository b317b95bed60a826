//! A drive that fills up: the error says so, nothing is lost, and there is space again after a delete.

use fastrand::Rng;
use iomill::{Array, Error, File, FileOptions, Layout};
use iomill_sim::{DriveModel, World};

use super::crash::assert_clean_beside;
use super::harness::{assert_same, assert_tidy, block_on, bytes, options, rounds};

const DRIVE_BYTES: u64 = 8 << 20;

fn layouts(block_bytes: u32) -> [FileOptions; 3] {
    [FileOptions::new(), FileOptions::new().layout(Layout::Rotated), FileOptions::new().layout(Layout::Hash)]
        .map(|layout| layout.block_bytes(block_bytes))
}

/// An array. Its second drive is the smallest.
fn small(rng: &mut Rng, world: &World) -> Array {
    for (drive, factor) in [3, 1, 2].into_iter().enumerate() {
        let model = DriveModel { capacity_bytes: Some(factor * DRIVE_BYTES), ..DriveModel::default() };
        world.add_drive(format!("/sim/{drive}"), model);
    }
    options(rng, world).create(world.paths()).unwrap()
}

/// Writes until the space is used up. Returns the written bytes, and the error.
fn fill(rng: &mut Rng, array: &Array, file: &File) -> (Vec<u8>, Error) {
    let mut content = Vec::new();
    loop {
        let count = rng.usize(1..400_000);
        let new = bytes(rng, count);
        let at = content.len() as u64;
        let written = match rng.bool() {
            true => file.write_at(&new, at),
            false => block_on(array, file.write_at_async(new.clone(), at)).map(drop).map_err(Error::from),
        };
        match written {
            Ok(()) => content.extend(new),
            Err(error) => return (content, error),
        }
        if rng.u8(0..8) == 0 {
            file.sync().unwrap();
        }
        assert!(content.len() < 12 * DRIVE_BYTES as usize, "the drives never fill up");
    }
}

fn assert_holds(file: &File, content: &[u8]) {
    let mut got = vec![0; content.len() + 1];
    let read = file.read_at(&mut got, 0).unwrap();
    assert_same(&got[..read], content, || "a file on a full drive".into());
}

#[test]
fn a_full_drive_is_an_error_and_deleting_gives_the_space_back() {
    rounds("a_full_drive_is_an_error_and_deleting_gives_the_space_back", 6, &[10314796561782384286], |round| {
        let (rng, world) = (&mut round.rng, &round.world);
        let array = small(rng, world);
        let layout = layouts([4096, 65536][rng.usize(0..2)])[rng.usize(0..3)].clone();
        let first = array.create_file("first", &layout).unwrap();
        first.write_at(&[9; 100_000], 0).unwrap();
        first.sync().unwrap();
        drop(first);
        let file = array.create_file("second", &layout).unwrap();
        let (content, error) = fill(rng, &array, &file);
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
        let text = error.to_string();
        assert!(text.contains("/sim/1/") && text.contains("free space"), "{text}");
        assert!(content.len() as u64 > DRIVE_BYTES, "{} bytes fit", content.len());
        assert_holds(&file, &content);
        file.sync().unwrap();
        file.close().unwrap();
        assert_holds(&array.open_file("first").unwrap(), &[9; 100_000]);

        array.close().unwrap();
        let array = options(rng, world).open(world.path(2)).unwrap();
        assert_holds(&array.open_file("second").unwrap(), &content);
        let full = world.used_bytes(1);
        array.delete("second").unwrap();
        assert!(world.used_bytes(1) < full - DRIVE_BYTES / 2, "{} of {full} bytes are still used", world.used_bytes(1));
        let file = array.create_file("third", &layout).unwrap();
        // With another key the hash layout may put more of the last blocks on the smallest drive.
        file.write_at(&content[..content.len() / 2], 0).unwrap();
        file.close().unwrap();
        assert_clean_beside(world, array);
        assert_tidy(world);
    });
}

#[test]
fn room_made_before_is_room() {
    let world = World::new(7);
    let rng = &mut Rng::with_seed(7);
    let array = small(rng, &world);
    let len = 12 << 20;
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.preallocate(len).unwrap();
    assert_eq!(file.len(), 0);
    let other = array.create_file("other", &FileOptions::new()).unwrap();
    let (rest, error) = fill(rng, &array, &other);
    assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
    let content = bytes(rng, len as usize);
    for (at, new) in content.chunks(1 << 20).enumerate() {
        file.write_at(new, (at << 20) as u64).unwrap();
    }
    file.sync().unwrap();
    assert_holds(&file, &content);
    assert_holds(&other, &rest);
    let error = file.preallocate(iomill::MAX_FILE_BYTES).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    drop((file, other));
    array.close().unwrap();
    assert_tidy(&world);
}

#[test]
fn room_made_ahead_goes_back_when_a_file_is_closed() {
    let world = World::new(8);
    let array = {
        world.add_drive("/sim/0", DriveModel { capacity_bytes: Some(DRIVE_BYTES), ..DriveModel::default() });
        options(&mut Rng::with_seed(8), &world).create(world.paths()).unwrap()
    };
    let file = array.create_file("file", &FileOptions::new().block_bytes(4096)).unwrap();
    // The first change also sets space aside for the catalog.
    let before = world.used_bytes(0);
    file.write_at(&[1; 5000], 0).unwrap();
    assert!(world.used_bytes(0) >= before + (1 << 20), "files grow in large steps");
    file.close().unwrap();
    assert!(world.used_bytes(0) <= before + 8192 + 4 * 4096, "{} of {before}", world.used_bytes(0));
    array.close().unwrap();
    assert_tidy(&world);
}
