//! Parts of an array that another program cuts or removes: no change of a part's length and no sync hides the loss.

use iomill::{Array, ArrayOptions, Error, File, FileOptions, PutOptions};
use iomill_sim::{DriveModel, World};

const PAGE: usize = 4096;
const SHARED: &str = "shared/0000";

fn world() -> World {
    World::new(5).with_drives(1, DriveModel::default())
}

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(0)
}

fn content(index: usize) -> Vec<u8> {
    vec![1 + (index % 250) as u8; PAGE]
}

/// An array with `count` files of one page, closed. 256 fill the shared part.
fn with_small_files(count: usize) -> World {
    let world = world();
    let array = options(&world).create(world.paths()).unwrap();
    for index in 0..count {
        array.put(&format!("f{index}"), &content(index), &PutOptions::new()).unwrap();
    }
    array.close().unwrap();
    world
}

/// The number of files that have their bytes. All others are errors.
fn intact(array: &Array, count: usize, context: &str) -> usize {
    let holds = |index: usize| {
        let file = array.open_file(&format!("f{index}")).ok()?;
        let mut got = vec![0; PAGE];
        let read = file.read_at(&mut got, 0).ok()?;
        assert_eq!(got[..read], content(index), "{context}: file {index} has bytes that no call wrote");
        Some(())
    };
    (0..count).filter_map(holds).count()
}

/// Cuts the shared part of an array with `count` files to `left` pages, or removes it. Then no call turns lost bytes
/// into zeros.
fn loses_no_error(count: usize, left: Option<usize>) {
    let context = format!("{count} files, {left:?} pages left");
    let world = with_small_files(count);
    match left {
        Some(pages) => world.cut(0, SHARED, (pages * PAGE) as u64).unwrap(),
        None => world.remove(0, SHARED).unwrap(),
    }
    let array = options(&world).open(world.path(0)).unwrap();
    for index in 0..300 {
        let put = array.put(&format!("new{index}"), &content(index), &PutOptions::new());
        let error = put.expect_err(&context);
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(SHARED), "{context}: {error}");
    }
    // Files beyond the cut do not open, so nothing is written beyond it.
    let last = array.open_file(&format!("f{}", count - 1));
    assert!(matches!(last, Err(Error::Corrupt { .. })), "{context}: {last:?}");
    assert_eq!(intact(&array, count, &context), left.unwrap_or(0), "{context}");
    array.close().unwrap();
    let array = options(&world).read_only(true).open(world.path(0)).unwrap();
    assert_eq!(intact(&array, count, &context), left.unwrap_or(0), "{context}");
    array.close().unwrap();
    // `check` reports the loss.
    let report = options(&world).check([world.path(0)], false).unwrap();
    assert_eq!(report.problems.len(), count - left.unwrap_or(0), "{context}: {report:?}");
}

#[test]
fn a_shared_part_that_was_cut_does_not_grow() {
    for count in [256, 200] {
        for left in [None, Some(0), Some(100), Some(count - 1)] {
            loses_no_error(count, left);
        }
    }
}

/// The same while the array is open.
#[test]
fn a_shared_part_that_is_cut_in_use_takes_no_new_files() {
    for count in [256, 200] {
        let world = with_small_files(count);
        let array = options(&world).open(world.path(0)).unwrap();
        let file = array.open_file("f50").unwrap();
        array.put("before", &content(7), &PutOptions::new()).unwrap();
        world.cut(0, SHARED, 100 * PAGE as u64).unwrap();
        let put = array.put("after", &content(7), &PutOptions::new());
        assert!(matches!(put, Err(Error::Corrupt { .. })), "{put:?}");
        // The part is not whole, so no sync of a file in it succeeds.
        file.write_at(&content(50), 0).unwrap();
        assert!(file.sync().is_err());
        assert_eq!(intact(&array, count, "cut in use"), 100);
        drop(file);
        let _ = array.close();
    }
}

/// A long file of `pages` pages in one part, which is cut to `left` while the file is open.
fn cut_in_use(pages: usize, left: usize) -> (World, Array, File, String) {
    let world = world();
    let array = options(&world).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&vec![7; pages * PAGE], 0).unwrap();
    file.sync().unwrap();
    let part = world.files(0).into_iter().find(|path| path.starts_with("parts/")).unwrap();
    world.cut(0, &part, (left * PAGE) as u64).unwrap();
    (world, array, file, part)
}

fn assert_cut(result: iomill::Result<()>, what: &str) {
    assert!(matches!(result, Err(Error::PartCut { .. })), "{what}: {result:?}");
}

/// Every call that changes the size of a part measures it first. Lost bytes stay an error.
#[test]
fn a_part_that_was_cut_does_not_change_its_size() {
    let (pages, left) = (600, 20);
    let end = (pages * PAGE) as u64;
    type Call = fn(&File, u64) -> iomill::Result<()>;
    let calls: [(&str, Call); 7] = [
        ("append", |file, end| file.write_at(&[1; 3 << 20], end)),
        ("append far behind the end", |file, end| file.write_at(&[1; 10], end + (2 << 30))),
        ("longer", |file, end| file.set_len(end + 9_000_000)),
        ("shorter", |file, end| file.set_len(end / 2)),
        ("preallocate", |file, end| file.preallocate(end + 9_000_000)),
        ("sync", |file, _| {
            file.write_at(&[1; 10], 5)?;
            file.sync()
        }),
        ("many", |file, end| file.write_many(&[3; 2 * (2 << 20)], &[end, end + (2 << 20)], 2 << 20)),
    ];
    for (what, call) in calls {
        let (world, array, file, part) = cut_in_use(pages, left);
        assert_cut(call(&file, end), what);
        assert_eq!(world.read(0, &part).unwrap().len(), left * PAGE, "{what}");
        let mut byte = [0];
        assert_cut(file.read_at(&mut byte, end - 1).map(drop), what);
        // The end of the file does not hide it either.
        drop(file);
        assert_eq!(world.read(0, &part).unwrap().len(), left * PAGE, "{what}");
        let _ = array.close();
    }
}

/// A segment of the log that was cut takes no more groups: they would lie beyond a hole. Its copy is left behind, or
/// the outcome is not known.
#[test]
fn a_segment_that_was_cut_takes_no_groups() {
    for drives in [1, 2] {
        let world = World::new(5).with_drives(drives, DriveModel::default());
        let array = options(&world).create(world.paths()).unwrap();
        array.create_file("before", &FileOptions::new()).unwrap();
        let segments = world.files(0).into_iter().filter(|path| path.ends_with(".segment"));
        let segment = segments.max().unwrap();
        world.cut(0, &segment, PAGE as u64).unwrap();
        let created = array.create_file("after", &FileOptions::new()).map(drop);
        assert_eq!(world.read(0, &segment).unwrap().len(), PAGE, "{drives} drives");
        if drives == 1 {
            assert!(matches!(created, Err(Error::OutcomeUnknown { .. })), "{created:?}");
            continue;
        }
        created.unwrap();
        let notices = array.notices();
        assert!(notices.iter().any(|notice| notice.contains("it was cut")), "{notices:?}");
        array.close().unwrap();
        let array = options(&world).open(world.path(0)).unwrap();
        assert_eq!(array.list("").names().unwrap(), ["after", "before"]);
        array.close().unwrap();
    }
}
