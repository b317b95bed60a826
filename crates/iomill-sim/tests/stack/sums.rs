//! Files with sums: if a drive returns other bytes than were written, no call returns them, and the error names file,
//! page, drive and offset. After a crash no right page is called rotten.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, CacheOptions, Error, File, FileOptions, PutOptions, When};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, block_on, bytes};

const PAGE: usize = 4096;
/// Pages of a zone of a part.
pub const ZONE_PAGES: usize = 16 * 1022;

pub fn with_sums() -> FileOptions {
    FileOptions::new().block_bytes(PAGE as u32).checksums(true)
}

pub fn options(world: &World, cached: bool) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache(CacheOptions::new().set_pages(4)).cache_bytes(if cached {
        64 * PAGE as u64
    } else {
        0
    })
}

pub fn opened(world: &World, cached: bool) -> Array {
    options(world, cached).open(world.path(0)).unwrap()
}

/// A machine with a closed file of `pages` pages. Page p is on drive p mod 2, or on the next one.
pub fn made(pages: usize) -> (World, Vec<u8>) {
    let world = World::new(7).with_drives(2, DriveModel::default());
    let array = options(&world, true).create(world.paths()).unwrap();
    let content = bytes(&mut Rng::with_seed(3), pages * PAGE);
    let file = array.create_file("file", &with_sums()).unwrap();
    file.write_at(&content, 0).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    (world, content)
}

/// The drive and the path of the part with a page, and the page's offset there.
pub fn place(world: &World, page: usize) -> (usize, String, u64) {
    let array = opened(world, false);
    let drives = array.stat("file").unwrap().drives;
    array.close().unwrap();
    let drive = usize::from(drives[page % drives.len()]);
    let parts: Vec<String> = world.files(drive).into_iter().filter(|path| path.starts_with("parts/")).collect();
    let path = parts.into_iter().find(|path| !path.ends_with(".sums")).unwrap();
    (drive, path, (page / drives.len() * PAGE) as u64)
}

pub fn is_page(error: &Error, wanted: u64) -> bool {
    matches!(error, Error::CorruptPage { file, page, .. } if file == "file" && *page == wanted)
}

/// Every way to read finds that a page is wrong, and gives none of its bytes out. The others are as they were.
fn assert_found(world: &World, content: &[u8], page: usize) {
    for cached in [true, false] {
        let array = opened(world, cached);
        let file = array.open_file("file").unwrap();
        let mut got = vec![9; content.len()];
        let error = file.read_at(&mut got, 0).unwrap_err();
        assert!(is_page(&error, page as u64), "{error}");
        let wrong = page * PAGE..(page + 1) * PAGE;
        for (at, (got, right)) in got.chunks(PAGE).zip(content.chunks(PAGE)).enumerate() {
            let is_untouched = |byte: u8| got.iter().all(|got| *got == byte);
            assert!(got == right || is_untouched(0) || is_untouched(9), "page {at} has bytes of neither");
        }
        assert!(got[wrong.clone()].iter().all(|byte| matches!(byte, 0 | 9)), "a byte of the page was given out");
        let at = wrong.start as u64 + 5;
        let mut row = [9; 100];
        let error = file.read_at(&mut row, at).unwrap_err();
        assert!(is_page(&error, page as u64) && row.iter().all(|byte| matches!(byte, 0 | 9)), "{error}");
        let error = file.read_many(&mut row, &[at, 0], 50).unwrap_err();
        assert!(is_page(&error, page as u64), "{error}");
        let error = block_on(&array, file.read_async(at, 100)).unwrap_err();
        assert!(is_page(&error, page as u64), "{error}");
        if cached {
            assert!(is_page(&file.pin(page as u64).unwrap_err(), page as u64));
        }
        // A write of a part of a rotten page fails.
        let written = file.write_at(&[1], at).and_then(|()| file.sync());
        assert!(is_page(&written.unwrap_err(), page as u64));
        let other = (page + 1) * PAGE % content.len();
        file.read_at(&mut row, other as u64).unwrap();
        assert_same(&row, &content[other..other + 100], || "the next page".into());
        drop(file);
        drop(array);
    }
    // A page that is rewritten whole is right again.
    let array = opened(world, true);
    let file = array.open_file("file").unwrap();
    file.write_at(&content[page * PAGE..(page + 1) * PAGE], (page * PAGE) as u64).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    assert_right(world, content);
}

pub fn assert_right(world: &World, content: &[u8]) {
    for cached in [true, false] {
        let array = opened(world, cached);
        let file = array.open_file("file").unwrap();
        let mut got = vec![0; content.len()];
        assert_eq!(file.read_at(&mut got, 0).unwrap(), content.len());
        assert_same(&got, content, || "the file".into());
        drop(file);
        array.close().unwrap();
    }
}

#[test]
fn a_page_that_rots_is_found() {
    let (world, content) = made(40);
    for page in [0, 17, 39] {
        let (drive, path, offset) = place(&world, page);
        world.corrupt(drive, &path, offset + 77, 1).unwrap();
        let array = opened(&world, true);
        let error = array.open_file("file").unwrap().read_at(&mut [0; 1], (page * PAGE) as u64).unwrap_err();
        let Error::CorruptPage { drive: named, path: whole, offset: at, .. } = &error else { panic!("{error}") };
        assert!(usize::from(*named) == drive && whole.ends_with(&path) && *at == offset, "{error}");
        array.close().unwrap();
        assert_found(&world, &content, page);
    }
}

/// The pages of a rotten page of sums cannot be read, and the error names the page of sums.
#[test]
fn a_page_of_sums_that_rots_is_found() {
    let (world, content) = made(40);
    let (drive, path, _) = place(&world, 4);
    world.corrupt(drive, &format!("{path}.sums"), 2 * PAGE as u64 + 900, 1).unwrap();
    for cached in [true, false] {
        let array = opened(&world, cached);
        let file = array.open_file("file").unwrap();
        let mut got = vec![9; PAGE];
        let error = file.read_at(&mut got, 4 * PAGE as u64).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { .. }) && got.iter().all(|byte| matches!(byte, 0 | 9)), "{error}");
        file.read_at(&mut got, 5 * PAGE as u64).unwrap();
        assert_same(&got, &content[5 * PAGE..6 * PAGE], || "a page of the other drive".into());
        drop(file);
        array.close().unwrap();
    }
}

/// A part that lost its sums is not read as one without sums.
#[test]
fn sums_that_are_lost_are_missed() {
    let (world, _) = made(4);
    let (drive, path, _) = place(&world, 0);
    world.remove(drive, &format!("{path}.sums")).unwrap();
    let array = opened(&world, true);
    let error = array.open_file("file").unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if path.ends_with("0000000000000001.sums")), "{error}");
    array.close().unwrap();
    let found = iomill_sim::testing::check_clean(&world).unwrap_err();
    assert!(found.contains("the sums of the part of \\\"file\\\" are missing"), "{found}");
}

/// Overwrites a page while its write meets a fault.
fn overwrite(world: &World, content: &mut [u8], page: usize, fault: Fault, cached: bool) {
    let array = opened(world, cached);
    let file = array.open_file("file").unwrap();
    let new = bytes(&mut Rng::with_seed(99), PAGE);
    // The first write marks the zone.
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, fault).path("parts/").skip(1)));
    file.write_at(&new, (page * PAGE) as u64).unwrap();
    content[page * PAGE..(page + 1) * PAGE].copy_from_slice(&new);
    file.sync().unwrap();
    assert_eq!(world.faults(|faults| faults.pending()), 0, "no write met the fault");
    file.close().unwrap();
    array.close().unwrap();
}

#[test]
fn a_write_that_is_lost_is_found() {
    for cached in [true, false] {
        let (world, mut content) = made(40);
        overwrite(&world, &mut content, 11, Fault::Lost, cached);
        assert_found(&world, &content, 11);
    }
}

/// Both the page that was not written and the one that was written over are wrong.
#[test]
fn a_write_to_another_place_is_found() {
    for cached in [true, false] {
        let (world, mut content) = made(40);
        overwrite(&world, &mut content, 11, Fault::Misplaced, cached);
        let array = opened(&world, cached);
        let file = array.open_file("file").unwrap();
        for page in [9, 11] {
            let error = file.read_at(&mut [0; PAGE], page * PAGE as u64).unwrap_err();
            assert!(is_page(&error, page), "{error}");
        }
        drop(file);
        array.close().unwrap();
        let array = opened(&world, true);
        let file = array.open_file("file").unwrap();
        file.write_at(&content[9 * PAGE..10 * PAGE], 9 * PAGE as u64).unwrap();
        file.close().unwrap();
        array.close().unwrap();
        assert_found(&world, &content, 11);
    }
}

/// While the file is open, too, and no page of sums was written yet.
#[test]
fn a_write_that_is_lost_is_found_at_once() {
    let (world, content) = made(40);
    let array = opened(&world, false);
    let file = array.open_file("file").unwrap();
    file.write_at(&content[..PAGE], 0).unwrap();
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Lost).path("parts/")));
    file.write_at(&[5; PAGE], 2 * PAGE as u64).unwrap();
    assert!(is_page(&file.read_at(&mut [0; 9], 2 * PAGE as u64).unwrap_err(), 2));
    // A lost write of a part of a page is found by the next one.
    file.write_at(&[5; PAGE], 2 * PAGE as u64).unwrap();
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Lost).path("parts/")));
    file.write_at(&[6; 10], 2 * PAGE as u64 + 100).unwrap();
    assert!(is_page(&file.write_at(&[7], 2 * PAGE as u64).unwrap_err(), 2));
}

/// A small file has its sums in its record.
#[test]
fn a_small_file_that_rots_is_found() {
    for cached in [true, false] {
        let world = World::new(8).with_drives(1, DriveModel::default());
        let array = options(&world, cached).create(world.paths()).unwrap();
        let layout = FileOptions::new().checksums(true);
        let content = bytes(&mut Rng::with_seed(4), 3 * PAGE + 5);
        array.put("file", &content, &PutOptions::new().file(layout.clone())).unwrap();
        block_on(&array, array.put_async("other", content.clone(), &PutOptions::new().file(layout.clone()))).unwrap();
        let made = array.create_file("made", &layout).unwrap();
        made.write_at(&content, 0).unwrap();
        made.sync().unwrap();
        // Their sums were durable before their names.
        world.crash_with(Survival::Nothing);
        drop((array, made));
        world.reboot();
        let array = opened(&world, cached);
        for name in ["file", "other", "made"] {
            let file = array.open_file(name).unwrap();
            let mut got = vec![0; content.len()];
            file.read_at(&mut got, 0).unwrap();
            assert_same(&got, &content, || name.to_owned());
        }
        array.close().unwrap();
        let pages = world.read(0, "shared/0000").unwrap();
        let starts: Vec<usize> =
            (0..pages.len() / PAGE).filter(|at| pages[at * PAGE..].starts_with(&content[..64])).collect();
        assert_eq!(starts.len(), 3);
        for start in starts {
            world.corrupt(0, "shared/0000", ((start + 1) * PAGE) as u64, 9).unwrap();
        }
        let array = opened(&world, cached);
        for name in ["file", "other", "made"] {
            let file = array.open_file(name).unwrap();
            let mut got = vec![9; content.len()];
            let error = file.read_at(&mut got, 0).unwrap_err();
            assert!(matches!(&error, Error::CorruptPage { page: 1, .. }), "{error}");
            assert!(got[PAGE..2 * PAGE].iter().all(|byte| matches!(byte, 0 | 9)));
            file.read_at(&mut got[..PAGE], 0).unwrap();
            assert_same(&got[..PAGE], &content[..PAGE], || "the page before".into());
            // It does not move with a page that is wrong.
            assert!(matches!(file.set_len(200_000).unwrap_err(), Error::CorruptPage { page: 1, .. }));
        }
    }
}

/// Files that `put`, `copy` and `publish` name have their sums before their names: a crash right after leaves them
/// proved.
#[test]
fn a_content_is_proved_from_its_name_on() {
    for how in ["put", "copy", "publish"] {
        let world = World::new(9).with_drives(2, DriveModel::default());
        let array = options(&world, true).create(world.paths()).unwrap();
        let content = bytes(&mut Rng::with_seed(5), 60 * PAGE + 100);
        match how {
            "put" => drop(array.put("file", &content, &PutOptions::new().file(with_sums())).unwrap()),
            "copy" => {
                array.put("first", &content, &PutOptions::new().file(with_sums())).unwrap();
                array.copy("first", "file", When::Absent).unwrap();
                array.delete("first").unwrap();
            }
            _ => {
                let draft = array.draft(&with_sums()).unwrap();
                for (at, chunk) in content.chunks(10_000).enumerate() {
                    draft.file().write_at(chunk, at as u64 * 10_000).unwrap();
                    draft.file().sync().unwrap();
                }
                draft.publish("file", When::Absent).unwrap();
            }
        }
        world.crash_with(Survival::Nothing);
        drop(array);
        world.reboot();
        assert_right(&world, &content);
        let (drive, path, offset) = place(&world, 33);
        world.corrupt(drive, &path, offset, 1).unwrap();
        assert_found(&world, &content, 33);
    }
}

/// Writes to a published draft are marked as in any file: after a crash their pages are proved, or get new sums.
#[test]
fn writes_behind_a_publication_are_marked() {
    let world = World::new(12).with_drives(2, DriveModel::default());
    let array = options(&world, true).create(world.paths()).unwrap();
    let mut content = bytes(&mut Rng::with_seed(6), 40 * PAGE);
    let draft = array.draft(&with_sums()).unwrap();
    draft.file().write_at(&content, 0).unwrap();
    draft.publish("file", When::Absent).unwrap();
    content[3 * PAGE..4 * PAGE].fill(8);
    draft.file().write_at(&[8; PAGE], 3 * PAGE as u64).unwrap();
    draft.file().sync().unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, draft));
    world.reboot();
    assert_right(&world, &content);
}

/// A page that has rotted gets no new sum by a cut within it.
#[test]
fn a_cut_within_a_page_proves_it() {
    let (world, content) = made(40);
    rot(&world, 7);
    let array = opened(&world, true);
    let file = array.open_file("file").unwrap();
    assert!(is_page(&file.set_len(7 * PAGE as u64 + 100).unwrap_err(), 7));
    assert_eq!(file.len(), content.len() as u64);
    drop(file);
    array.close().unwrap();
    assert_found(&world, &content, 7);
}

/// A file of two zones on one drive, with a page in each.
fn two_zones() -> (World, Array, File) {
    let world = World::new(10).with_drives(1, DriveModel::default());
    let array = options(&world, true).create(world.paths()).unwrap();
    let file = array.create_file("file", &with_sums()).unwrap();
    for page in [1, 3000, ZONE_PAGES + 2] {
        file.write_at(&[page as u8 | 1; PAGE], (page * PAGE) as u64).unwrap();
    }
    (world, array, file)
}

fn rot(world: &World, page: usize) {
    let (drive, path, offset) = place(world, page);
    world.corrupt(drive, &path, offset + 1, 1).unwrap();
}

fn is_found(world: &World, page: usize) -> bool {
    let array = opened(world, true);
    let read = array.open_file("file").unwrap().read_at(&mut [0; PAGE], (page * PAGE) as u64);
    let found = read.as_ref().is_err_and(|error| is_page(error, page as u64));
    assert!(found || read.is_ok(), "{read:?}");
    found
}

/// After a crash the sums of written zones are made again, and no others.
#[test]
fn a_crash_makes_only_dirty_zones_doubtful() {
    let (world, array, file) = two_zones();
    file.close().unwrap();
    array.close().unwrap();
    let array = opened(&world, true);
    let file = array.open_file("file").unwrap();
    file.write_at(&[8; PAGE], 2 * PAGE as u64).unwrap();
    file.sync().unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    rot(&world, ZONE_PAGES + 2);
    rot(&world, 3000);
    assert!(is_found(&world, ZONE_PAGES + 2), "its zone was clean");
    let reader = options(&world, true).read_only(true).open(world.path(0)).unwrap();
    let mut got = [0; PAGE];
    reader.open_file("file").unwrap().read_at(&mut got, 2 * PAGE as u64).unwrap();
    assert_eq!(got, [8; PAGE], "a reader makes sums anew in memory");
    reader.close().unwrap();
    assert!(!is_found(&world, 2) && !is_found(&world, 3000), "the zone was dirty, so what is there counts");
    // The last opening has made it clean.
    rot(&world, 1);
    assert!(is_found(&world, 1));
}

/// A zone that nothing is written to becomes clean while the file stays open.
#[test]
fn an_idle_zone_becomes_clean_by_a_sync() {
    for idle in [false, true] {
        let (world, array, file) = two_zones();
        file.sync().unwrap();
        world.pass(std::time::Duration::from_secs(if idle { 11 } else { 1 }));
        file.write_at(&[8; PAGE], 2 * PAGE as u64).unwrap();
        file.sync().unwrap();
        world.pass(std::time::Duration::from_secs(if idle { 11 } else { 1 }));
        file.write_at(&[9; PAGE], 2 * PAGE as u64).unwrap();
        file.sync().unwrap();
        world.crash_with(Survival::Everything);
        drop((array, file));
        world.reboot();
        rot(&world, ZONE_PAGES + 2);
        assert_eq!(is_found(&world, ZONE_PAGES + 2), idle);
        assert!(!is_found(&world, 2));
    }
}

/// A scrub finds latent damage, also of pages that the cache holds. It names each damaged page, and
/// goes on behind a file.
#[test]
fn a_scrub_finds_latent_damage() {
    let (world, content) = made(3000);
    let places = [2, 3, 2047].map(|page| place(&world, page));
    let array = opened(&world, true);
    array.put("a small one", &[5; 9000], &PutOptions::new()).unwrap();
    array.put("empty", b"", &PutOptions::new()).unwrap();
    let file = array.open_file("file").unwrap();
    file.read_at(&mut [0; PAGE], 2 * PAGE as u64).unwrap();
    for (drive, path, offset) in &places {
        world.corrupt(*drive, path, offset + 9, 1).unwrap();
    }
    for _ in 0..2 {
        let found: Vec<_> = array.scrub("").map(|range| range.unwrap()).collect();
        let of: Vec<_> =
            found.iter().map(|range| (&*range.name, range.len, range.unproved_bytes, range.is_end)).collect();
        let (step, rest) = (4 << 20, content.len() as u64 % (4 << 20));
        let all = [("a small one", 9000, 9000, true), ("empty", 0, 0, true)];
        let all = [&all[..], &[("file", step, 0, false), ("file", step, 0, false), ("file", rest, 0, true)]];
        assert_eq!(of, all.concat());
        let damage: Vec<_> = found.iter().flat_map(|range| &range.damage).collect();
        assert_eq!(damage.len(), 3, "{damage:?}");
        assert!(damage.iter().zip([2, 3, 2047]).all(|(error, page)| is_page(error, page)), "{damage:?}");
    }
    assert_eq!(array.scrub("empty").count(), 3);
    assert_eq!(array.scrub("file").count(), 0);
    drop(file);
    array.clone().close().unwrap();
    assert!(array.scrub("").next().unwrap().is_err());
}

/// Sums that could not be made durable are written again before their zone becomes clean.
/// A page of sums that could not be loaded for want of memory was called damaged, with the advice to write the page
/// again.
#[test]
fn sums_that_cannot_be_loaded_now_are_not_damaged() {
    type Read = fn(&Array, &File, &mut [u8]) -> iomill::Result<()>;
    let ways: [Read; 3] = [
        |_, file, page| file.read_at(page, 0).map(drop),
        |_, file, page| file.read_many(page, &[0], PAGE).map(drop),
        |array, file, page| block_on(array, file.read_async(0, PAGE)).map(|bytes| page.copy_from_slice(&bytes)),
    ];
    let (world, content) = made(100);
    for (cached, errno) in [(true, libc::ENOMEM), (false, libc::ENOMEM), (true, libc::EIO), (false, libc::EIO)] {
        for (way, read) in ways.into_iter().enumerate() {
            let array = opened(&world, cached);
            let file = array.open_file("file").unwrap();
            let mut page = [0; PAGE];
            world.faults(|faults| faults.inject(Injection::new(Kind::Read, Fault::Errno(errno)).path(".sums")));
            let error = read(&array, &file, &mut page).unwrap_err();
            let is_it = matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(errno));
            assert!(is_it, "{cached} {way}: {error}");
            read(&array, &file, &mut page).unwrap();
            assert_same(&page, &content[..PAGE], || "the page".into());
            file.close().unwrap();
            array.close().unwrap();
        }
    }
}

/// A failed write leaves its page without a checksum. A scrub said that the page was proved.
#[test]
fn a_scrub_counts_pages_without_a_checksum() {
    let (world, content) = made(100);
    let array = opened(&world, false);
    let file = array.open_file("file").unwrap();
    let unproved = || array.scrub("").map(|range| range.unwrap().unproved_bytes).sum::<u64>();
    // The first write marks the zones of both parts.
    file.write_at(&content[..2 * PAGE], 0).unwrap();
    assert_eq!(unproved(), 0);
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Errno(libc::EIO)).path("parts/")));
    file.write_at(&content[PAGE..2 * PAGE], PAGE as u64).unwrap_err();
    assert_eq!(unproved(), PAGE as u64);
    file.write_at(&content[PAGE..2 * PAGE], PAGE as u64).unwrap();
    assert_eq!(unproved(), 0);
}

#[test]
fn sums_that_could_not_be_written_are_written_by_a_later_sync() {
    for kind in [Kind::Write, Kind::Sync] {
        let (world, array, file) = two_zones();
        file.sync().unwrap();
        world.faults(|faults| faults.inject(Injection::new(kind, Fault::Errno(libc::EIO)).path(".sums")));
        let mut failed = 0;
        for _ in 0..5 {
            world.pass(std::time::Duration::from_secs(11));
            file.write_at(&[8; PAGE], 2 * PAGE as u64).unwrap();
            failed += u32::from(file.sync().is_err());
        }
        assert_eq!(failed, 1, "{kind:?}");
        world.crash_with(Survival::Everything);
        drop((array, file));
        world.reboot();
        assert!(!is_found(&world, ZONE_PAGES + 2), "{kind:?}: its sum is not that of its bytes");
        rot(&world, ZONE_PAGES + 2);
        assert!(is_found(&world, ZONE_PAGES + 2), "{kind:?}: its zone is not clean");
    }
}

/// A draft with bytes of a failed write past its length has no clean zones. It is named all the same, and a crash
/// takes no page for rotten.
#[test]
fn a_draft_with_a_stale_tail_is_marked() {
    let world = World::new(12).with_drives(2, DriveModel::default());
    let array = options(&world, false).create(world.paths()).unwrap();
    let content = bytes(&mut Rng::with_seed(5), 40 * PAGE);
    let draft = array.draft(&with_sums()).unwrap();
    draft.file().write_at(&content, 0).unwrap();
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Errno(libc::EIO)).path("parts/").drive(1)));
    draft.file().write_at(&content[..4 * PAGE], content.len() as u64).unwrap_err();
    draft.publish("file", When::Absent).unwrap();
    world.crash_with(Survival::Everything);
    drop((draft, array));
    world.reboot();
    assert_right(&world, &content);
}

/// Bytes that a killed process has left without an fsync are durable before their sums, so a power cut then takes no
/// page for rotten.
#[test]
fn what_a_killed_process_has_left_is_durable_before_its_sums() {
    for is_small in [false, true] {
        let world = World::new(13).with_drives(1, DriveModel::default());
        let array = options(&world, false).create(world.paths()).unwrap();
        let file = array.create_file("file", &FileOptions::new().checksums(true)).unwrap();
        let old = vec![1; if is_small { 3 } else { 40 } * PAGE];
        file.write_at(&old, 0).unwrap();
        file.sync().unwrap();
        file.write_at(&[2; PAGE], PAGE as u64).unwrap();
        world.kill_process();
        drop((array, file));
        let array = opened(&world, false);
        array.open_file("file").unwrap().read_at(&mut [0; 1], PAGE as u64).unwrap();
        array.close().unwrap();
        world.crash_with(Survival::Nothing);
        world.reboot();
        let array = opened(&world, false);
        let mut got = vec![0; PAGE];
        array.open_file("file").unwrap().read_at(&mut got, PAGE as u64).unwrap();
        assert!(got == [1; PAGE] || got == [2; PAGE]);
        array.close().unwrap();
    }
}

/// A process is killed before its mark of a zone, or its record of a small file, is durable. The next process makes
/// that durable before it writes to the pages, so a power cut then takes no page for rotten.
#[test]
fn a_mark_that_a_killed_process_has_left_is_durable_before_it_counts() {
    for (pages, path) in [(40, ".sums"), (3, "log/")] {
        for cached in [true, false] {
            let world = World::new(14).with_drives(1, DriveModel::default());
            let array = options(&world, cached).create(world.paths()).unwrap();
            let mut content = bytes(&mut Rng::with_seed(3), pages * PAGE);
            let made = array.create_file("file", &FileOptions::new().checksums(true)).unwrap();
            made.write_at(&content, 0).unwrap();
            made.close().unwrap();
            array.close().unwrap();
            // The head without marks is durable, too.
            world.crash_with(Survival::Everything);
            world.reboot();
            let array = opened(&world, cached);
            let file = array.open_file("file").unwrap();
            // The fsync ends by nothing but the kill.
            world.faults(|faults| faults.inject(Injection::new(Kind::Sync, Fault::Errno(libc::EINTR)).path(path)));
            let written = file.write_at(&[8; PAGE], PAGE as u64).and_then(|()| file.sync());
            assert!(written.is_err() && world.faults(|faults| faults.pending()) == 0, "{path}: {written:?}");
            world.kill_process();
            drop((array, file));
            let array = opened(&world, cached);
            let file = array.open_file("file").unwrap();
            content[PAGE..2 * PAGE].fill(9);
            file.write_at(&[9; PAGE], PAGE as u64).unwrap();
            file.sync().unwrap();
            world.crash_with(Survival::Nothing);
            drop((array, file));
            world.reboot();
            assert_right(&world, &content);
        }
    }
}

/// A crash at each change of the drives, while pages and their sums change in every way: no page is taken for rotten.
#[test]
fn a_crash_between_a_page_and_its_sum_is_no_rot() {
    for cached in [true, false] {
        let mut at = 0;
        loop {
            at += 1;
            let world = World::new(11).with_drives(2, DriveModel::default());
            let array = options(&world, cached).create(world.paths()).unwrap();
            let before = world.effects();
            world.faults(|faults| faults.crash_at_effect = Some(before + at));
            let ended = change_everything(&array);
            if !world.crashed() {
                ended.unwrap();
                assert!(at > 30, "only {at} changes");
                break;
            }
            drop(array);
            world.reboot();
            for _ in 0..2 {
                read_all(&world, cached, at);
            }
        }
    }
}

fn change_everything(array: &Array) -> iomill::Result<()> {
    let put = PutOptions::new().file(with_sums());
    array.put("put", &[3; 40 * PAGE], &put)?;
    array.put("small", &[4; 3 * PAGE], &PutOptions::new().file(FileOptions::new().checksums(true)))?;
    let file = array.create_file("file", &with_sums())?;
    file.write_at(&[1; 20 * PAGE + 9], 0)?;
    file.sync()?;
    file.write_at(&[2; 5 * PAGE], 3 * PAGE as u64 + 70)?;
    file.sync()?;
    file.set_len(7 * PAGE as u64 + 100)?;
    file.set_len(30 * PAGE as u64)?;
    file.write_at(&[5; 10], 29 * PAGE as u64)?;
    file.close()?;
    let small = array.open_file("small")?;
    small.write_at(&[6; 100], 50)?;
    small.sync()?;
    small.write_at(&[7; 2 * PAGE], 2 * PAGE as u64)?;
    small.sync()?;
    small.set_len(PAGE as u64 + 11)?;
    small.close()?;
    let small = array.open_file("small")?;
    small.write_at(&[8; 100], 30 * PAGE as u64)?;
    small.close()?;
    array.copy("file", "copy", When::Always)?;
    array.delete("put")
}

fn read_all(world: &World, cached: bool, at: u64) {
    let array = opened(world, cached);
    for name in array.list("").names().unwrap() {
        let file = array.open_file(&name).unwrap_or_else(|error| panic!("crash {at}: {error}"));
        let mut got = vec![0; file.len() as usize];
        file.read_at(&mut got, 0).unwrap_or_else(|error| panic!("crash {at}: {error}"));
        file.write_at(&[1], 0).and_then(|()| file.close()).unwrap_or_else(|error| panic!("crash {at}: {error}"));
    }
    array.close().unwrap();
}
