//! A drive that fills up, becomes read-only or vanishes in the middle of each kind of change. The change then has
//! happened or not, as a whole, and acknowledged changes stay.

use std::collections::BTreeMap;

use iomill::{Array, ArrayOptions, FileOptions, PutOptions, Result, When};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::crash::assert_clean_beside;

/// Operations of each kind that the drive still does.
const STILL: u64 = 8;
const LONG: usize = 300_000;

type Files = BTreeMap<String, (Vec<u8>, Option<String>)>;
type Change = (&'static str, fn(&Array) -> Result<()>);
/// The operations that fail, and how.
type Ailment = (&'static [Kind], i32);

const FULL: &[Kind] = &[Kind::Write, Kind::Create, Kind::Allocate, Kind::MakeDir];
const READ_ONLY: &[Kind] =
    &[Kind::Write, Kind::Create, Kind::Allocate, Kind::MakeDir, Kind::SetLen, Kind::Rename, Kind::Unlink];
const VANISHED: &[Kind] = &[
    Kind::Write,
    Kind::Create,
    Kind::Allocate,
    Kind::MakeDir,
    Kind::SetLen,
    Kind::Rename,
    Kind::Unlink,
    Kind::Sync,
    Kind::SyncDir,
    Kind::Open,
    Kind::Read,
];

/// Changes of names and attributes.
const OF_NAMES: [Change; 6] = [
    ("create", |array| array.create_file("new", &FileOptions::new())?.close()),
    ("delete a small file", |array| array.delete("small")),
    ("delete a long file", |array| array.delete("long")),
    ("rename", |array| array.rename("small", "moved")),
    ("rename over a file", |array| array.rename("long", "small")),
    ("attribute", |array| array.set_attribute("small", "key", Some("value"))),
];

/// Changes with contents.
const OF_CONTENTS: [Change; 8] = [
    ("put", |array| array.put("new", &[3; 5000], &PutOptions::new()).map(drop)),
    ("put over a file", |array| array.put("long", &[4; 5000], &PutOptions::new()).map(drop)),
    ("put of a long content", |array| array.put("small", &[5; LONG], &PutOptions::new()).map(drop)),
    ("copy", |array| array.copy("long", "copy", When::Always).map(drop)),
    ("lengthen a small file", |array| array.open_file("small")?.set_len(200_000)),
    ("lengthen a long file", |array| array.open_file("long")?.set_len(500_000)),
    ("shorten", |array| array.open_file("long")?.set_len(70_000)),
    ("write and sync", |array| {
        let file = array.open_file("small")?;
        file.write_at(&[6; 4096], 0)?;
        file.sync()
    }),
];

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20)
}

fn begin() -> (World, Array) {
    let world = World::new(7).with_drives(3, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    array.put("small", &[1; 5000], &PutOptions::new()).unwrap();
    array.put("long", &[2; LONG], &PutOptions::new()).unwrap();
    (world, array)
}

fn files(array: &Array) -> Files {
    let content = |name: &str| {
        let file = array.open_file(name).unwrap();
        let mut bytes = vec![0; file.len() as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        (bytes, array.stat(name).unwrap().attributes.get("key").cloned())
    };
    array.list("").names().unwrap().into_iter().map(|name| (name.clone(), content(&name))).collect()
}

/// The files after a change on healthy drives.
fn after(change: Change) -> Files {
    let (_world, array) = begin();
    change.1(&array).unwrap();
    files(&array)
}

/// Makes a change while a drive fails, and looks at the outcome. Returns whether the change succeeded.
fn change_on(drive: usize, ailment: Ailment, still: u64, change: Change, (before, after): (&Files, &Files)) -> bool {
    let (world, array) = begin();
    for &kind in ailment.0 {
        let injection = Injection::new(kind, Fault::Errno(ailment.1)).drive(drive).skip(still).times(u64::MAX);
        world.faults(|faults| faults.inject(injection));
    }
    let result = change.1(&array);
    let what = format!("{}, errno {}, after {still} operations of a kind: {result:?}", change.0, ailment.1);
    // The close reports the failure again.
    let _ = array.close();
    world.faults(|faults| faults.clear());
    world.crash_with(Survival::Nothing);
    world.reboot();
    let array = options(&world).open(world.path(0)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = files(&array);
    assert!(found == *after || (result.is_err() && found == *before), "{what}: {:?}", found.keys());
    let said = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    assert!(
        result.is_ok() || said.contains("/sim/") || said.contains("small") || said.contains("new"),
        "{what}: {said}"
    );
    assert_clean_beside(&world, array);
    result.is_ok()
}

/// The numbers of changes that succeeded and that failed.
fn count(changes: &[Change]) -> [usize; 2] {
    let before = files(&begin().1);
    let mut counts = [0, 0];
    for change in changes {
        let after = after(*change);
        for ailment in [(FULL, libc::ENOSPC), (READ_ONLY, libc::EROFS), (VANISHED, libc::EIO)] {
            for (drive, still) in (0..2).flat_map(|drive| (0..STILL).map(move |still| (drive, still))) {
                let is_well = change_on(drive, ailment, still, *change, (&before, &after));
                counts[usize::from(!is_well)] += 1;
            }
        }
    }
    counts
}

/// The other two drives have the log, too.
#[test]
fn names_change_while_a_drive_fails() {
    let [_well, failed] = count(&OF_NAMES);
    assert_eq!(failed, 0);
}

#[test]
fn a_drive_that_fails_in_the_middle_of_a_change_leaves_all_of_it_or_nothing() {
    let [well, failed] = count(&OF_CONTENTS);
    assert!(well > 20 && failed > 100, "{well} ended well, {failed} failed");
}
