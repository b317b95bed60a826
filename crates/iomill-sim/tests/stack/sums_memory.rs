//! Pages of sums: few of them in memory, those that have rotted, and those that a full drive does not take.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, File, FileOptions, PutOptions};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, block_on, bytes};
use super::sums::{is_page, options, place, with_sums};

const PAGE: usize = 4096;
/// Pages of a part with sums in one page of sums.
const CHUNK_PAGES: usize = 1022;

/// Two pages of sums in memory.
fn small(world: &World, cached: bool) -> ArrayOptions {
    options(world, cached).with_tuning(|tuning| tuning.sums_pages(2))
}

fn open(world: &World, cached: bool) -> (Array, File) {
    let array = small(world, cached).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    (array, file)
}

fn close(array: Array, file: File) {
    file.close().unwrap();
    array.close().unwrap();
}

/// The offset of a page of a file on one drive, by the number of its page of sums.
fn at(chunk: usize, page: usize) -> u64 {
    ((chunk * CHUNK_PAGES + page) * PAGE) as u64
}

/// A file that is 40 pages of sums long, and full of holes.
fn sparse(seed: u64, cached: bool) -> (World, Array, File) {
    let world = World::new(seed).with_drives(1, DriveModel::default());
    let array = small(&world, cached).create(world.paths()).unwrap();
    let file = array.create_file("file", &with_sums()).unwrap();
    file.set_len(at(40, 0)).unwrap();
    (world, array, file)
}

/// Random pages of a file with far more pages of sums than memory has room for, by calls and futures, with syncs,
/// reopenings and crashes. Each page is what was written, and its sum right.
#[test]
fn a_file_of_many_pages_of_sums_keeps_them_all() {
    for (seed, cached) in (0..6).flat_map(|seed| [(seed, true), (seed, false)]) {
        let (world, mut array, mut file) = sparse(seed, cached);
        let mut random = Rng::with_seed(seed);
        let mut content = std::collections::BTreeMap::new();
        for round in 0..300 {
            let place = at(random.usize(0..40), random.usize(0..2));
            match random.u8(0..40) {
                0 => file.sync().unwrap(),
                1 => {
                    world.pass(std::time::Duration::from_secs(11));
                    file.sync().unwrap();
                }
                2 => {
                    close(array, file);
                    (array, file) = open(&world, cached);
                }
                3 => {
                    file.sync().unwrap();
                    world.crash_with(Survival::Nothing);
                    drop((array, file));
                    world.reboot();
                    (array, file) = open(&world, cached);
                }
                4..20 => {
                    let page = bytes(&mut random, PAGE);
                    file.write_at(&page, place).unwrap();
                    content.insert(place, page);
                }
                20..24 => {
                    file.write_at(&[7; 10], place + 9).unwrap();
                    content.entry(place).or_insert_with(|| vec![0; PAGE])[9..19].fill(7);
                }
                24..30 => {
                    let read = block_on(&array, file.read_async(place, PAGE)).unwrap();
                    let wanted = content.get(&place).map_or(&[0; PAGE][..], |page| page);
                    assert_same(&read, wanted, || format!("round {round} of seed {seed}"));
                }
                _ => {
                    let mut got = vec![9; PAGE];
                    file.read_at(&mut got, place).unwrap();
                    let wanted = content.get(&place).map_or(&[0; PAGE][..], |page| page);
                    assert_same(&got, wanted, || format!("round {round} of seed {seed}"));
                }
            }
        }
        // Each page is proved, and not only accepted.
        close(array, file);
        let damaged = *content.keys().nth(3).unwrap();
        let (drive, path, _) = place(&world, 0);
        world.corrupt(drive, &path, damaged + 70, 1).unwrap();
        let (array, file) = open(&world, cached);
        for (offset, page) in &content {
            let mut got = vec![9; PAGE];
            let read = file.read_at(&mut got, *offset);
            if *offset == damaged {
                assert!(is_page(&read.unwrap_err(), damaged / PAGE as u64));
            } else {
                read.unwrap();
                assert_same(&got, page, || format!("the end of seed {seed}"));
            }
        }
        drop((array, file));
    }
}

/// A page of sums that has left memory is lost by the failed fsync of another file. Its zone does not become clean
/// without it, so no sound page is reported as rotten.
#[test]
fn a_failed_fsync_makes_sums_that_left_memory_doubtful() {
    let (world, array, file) = sparse(31, false);
    let other = array.create_file("other", &FileOptions::new()).unwrap();
    for chunk in 0..10 {
        file.write_at(&[8; PAGE], at(chunk, 1)).unwrap();
    }
    file.sync().unwrap();
    other.write_at(&[1; 10], 0).unwrap();
    world.faults(|faults| faults.loses_beside = true);
    world.faults(|faults| faults.inject(Injection::new(Kind::Sync, Fault::Errno(libc::EIO)).path("shared/")));
    other.sync().unwrap_err();
    assert_eq!(world.faults(|faults| faults.pending()), 0);
    file.close().unwrap();
    // All that the failed flush has not lost.
    world.crash_with(Survival::Everything);
    drop((array, other));
    world.reboot();
    let (array, file) = open(&world, false);
    for chunk in 0..10 {
        let mut got = [0; PAGE];
        file.read_at(&mut got, at(chunk, 1)).unwrap();
        assert_eq!(got, [8; PAGE], "page of sums {chunk}");
    }
    close(array, file);
}

/// The flush of a zone's pages of sums fails, and loses those that have left memory. The next sync makes them anew
/// before the zone becomes clean.
#[test]
fn sums_that_left_memory_and_were_lost_are_made_anew() {
    let (world, array, file) = sparse(37, false);
    (0..10).for_each(|chunk| file.write_at(&[8; PAGE], at(chunk, 1)).unwrap());
    file.sync().unwrap();
    world.faults(|faults| faults.inject(Injection::new(Kind::Sync, Fault::Errno(libc::EIO)).path(".sums")));
    // The first of these finds no zone that was idle since the one before.
    for is_failing in [false, true, false] {
        world.pass(std::time::Duration::from_secs(11));
        assert_eq!(file.sync().is_err(), is_failing);
    }
    // All that the failed flush has not lost.
    world.crash_with(Survival::Everything);
    drop((array, file));
    world.reboot();
    let (drive, path, _) = place(&world, 0);
    world.corrupt(drive, &path, at(5, 1), 1).unwrap();
    let (array, file) = open(&world, false);
    for chunk in 0..10 {
        let mut got = [0; PAGE];
        match file.read_at(&mut got, at(chunk, 1)) {
            Err(error) => assert!(chunk == 5 && is_page(&error, at(5, 1) / PAGE as u64), "{error}"),
            Ok(_) => assert!(chunk != 5 && got == [8; PAGE], "page of sums {chunk}"),
        }
    }
    drop((array, file));
}

/// In a zone that a crash has left doubtful, a page of sums that this opening has written and dropped is read again. One
/// made anew would be right for the old page that a lost write has left.
#[test]
fn sums_of_a_doubtful_zone_that_left_memory_are_read_again() {
    let (world, array, file) = sparse(38, false);
    file.write_at(&[8; PAGE], at(0, 1)).unwrap();
    file.sync().unwrap();
    world.crash_with(Survival::Nothing);
    drop((array, file));
    world.reboot();
    let (array, file) = open(&world, false);
    file.write_at(&[8; PAGE], at(0, 2)).unwrap();
    let lost = Injection::new(Kind::Write, Fault::Lost).path("parts/").except(".sums");
    world.faults(|faults| faults.inject(lost));
    file.write_at(&[9; PAGE], at(0, 1)).unwrap();
    (1..9).for_each(|chunk| _ = file.read_at(&mut [0; PAGE], at(chunk, 0)).unwrap());
    let error = file.read_at(&mut [0; PAGE], at(0, 1)).unwrap_err();
    assert!(is_page(&error, 1), "{error}");
    drop((array, file));
}

/// The sums behind a cut are gone for good, also those that were not in memory, and those that an earlier crash has left
/// behind the end. So nothing is wrong with holes that the file gets there.
#[test]
fn sums_behind_a_cut_do_not_come_back_by_a_crash() {
    for is_left in [false, true] {
        let (world, array, file) = sparse(39, false);
        (0..40).for_each(|chunk| file.write_at(&[8; PAGE], at(chunk, 1)).unwrap());
        close(array, file);
        let (drive, path, _) = place(&world, 0);
        let sums = format!("{path}.sums");
        let long = world.read(drive, &sums).unwrap();
        let (mut array, mut file) = open(&world, false);
        file.set_len(at(2, 0)).unwrap();
        if is_left {
            close(array, file);
            world.put(drive, &sums, &long).unwrap();
            (array, file) = open(&world, false);
        }
        file.set_len(at(40, 0)).unwrap();
        world.crash_with(Survival::Nothing);
        drop((array, file));
        world.reboot();
        let (array, file) = open(&world, false);
        for chunk in 0..40 {
            let mut got = [9; PAGE];
            file.read_at(&mut got, at(chunk, 1)).unwrap_or_else(|error| panic!("{is_left}: {error}"));
            assert_eq!(got, [if chunk < 2 { 8 } else { 0 }; PAGE]);
        }
        close(array, file);
    }
}

/// Cuts and growth of a file with more pages of sums than memory has room for.
#[test]
fn cuts_find_sums_that_have_left_memory() {
    for cached in [true, false] {
        let (world, array, file) = sparse(32, cached);
        for chunk in 0..40 {
            file.write_at(&[8; 2 * PAGE], at(chunk, 0)).unwrap();
        }
        file.set_len(at(20, 0) + 100).unwrap();
        file.set_len(at(30, 0)).unwrap();
        let mut got = [9; PAGE];
        // Among these are the sums that memory had before the cut.
        (20..30).for_each(|chunk| _ = file.read_at(&mut got, at(chunk, 1)).unwrap());
        close(array, file);
        let (array, file) = open(&world, cached);
        for chunk in 0..30 {
            let mut got = [9; PAGE];
            file.read_at(&mut got, at(chunk, 0)).unwrap();
            let written = [PAGE, 100, 0][usize::from(chunk >= 20) + usize::from(chunk > 20)];
            assert!(got[..written].iter().all(|byte| *byte == 8) && got[written..].iter().all(|byte| *byte == 0));
        }
        close(array, file);
    }
}

/// A drive takes no more pages of sums. Writes that need more of them in memory fail, and no sum is lost.
#[test]
fn sums_that_no_drive_takes_stop_writes() {
    let (world, array, file) = sparse(33, false);
    file.write_at(&[8; PAGE], at(0, 0)).unwrap();
    let full = Injection::new(Kind::Write, Fault::Errno(libc::ENOSPC)).path(".sums").times(u64::MAX);
    // The marks of the three zones are there.
    (0..3).for_each(|zone| file.write_at(&[8; PAGE], at(16 * zone, 0)).unwrap());
    world.faults(|faults| faults.inject(full));
    let written = (1..40).take_while(|chunk| match file.write_at(&[7; PAGE], at(*chunk, 1)) {
        Ok(()) => true,
        Err(Error::Io { path, source, .. }) => {
            assert!(path.to_string_lossy().ends_with(".sums") && source.raw_os_error() == Some(libc::ENOSPC));
            false
        }
        Err(error) => panic!("{error}"),
    });
    let written = written.count();
    assert!(written < 8, "{written} writes");
    let mut got = [0; PAGE];
    file.read_at(&mut got, at(39, 0)).unwrap();
    world.faults(|faults| faults.clear());
    for chunk in 1..=written {
        file.read_at(&mut got, at(chunk, 1)).unwrap();
        assert_eq!(got, [7; PAGE]);
    }
    for zone in 0..3 {
        file.read_at(&mut got, at(16 * zone, 0)).unwrap();
        assert_eq!(got, [8; PAGE]);
    }
    close(array, file);
}

/// A page of sums has rotted. Its pages are refused, until they are written again as a whole. Each of these is right
/// from then on, also after the next opening, and the others stay refused.
#[test]
fn a_rotten_page_of_sums_heals_page_by_page() {
    for cached in [true, false] {
        let world = World::new(34).with_drives(1, DriveModel::default());
        let array = options(&world, cached).create(world.paths()).unwrap();
        let mut content = bytes(&mut Rng::with_seed(8), 40 * PAGE + 100);
        let file = array.create_file("file", &with_sums()).unwrap();
        file.write_at(&content, 0).unwrap();
        close(array, file);
        let (drive, path, _) = place(&world, 0);
        world.corrupt(drive, &format!("{path}.sums"), 2 * PAGE as u64 + 900, 1).unwrap();
        // A program that only reads leaves all as it is.
        let reader = small(&world, cached).read_only(true).open(world.path(0)).unwrap();
        reader.open_file("file").unwrap().read_at(&mut [0; 10], 0).unwrap_err();
        reader.close().unwrap();
        let mut healed = std::collections::BTreeSet::new();
        for opening in 0..3 {
            let (array, file) = open(&world, cached);
            for page in [opening, 10 + 3 * opening, 11 + 3 * opening] {
                let range = page * PAGE..(page + 1) * PAGE;
                let part = file.write_at(&[1], range.start as u64).and_then(|()| file.sync());
                assert!(matches!(part, Err(Error::Corrupt { .. })), "a write of a part of page {page}: {part:?}");
            }
            let (array, file) = {
                drop((array, file));
                open(&world, cached)
            };
            for page in [opening, 10 + 3 * opening, 11 + 3 * opening] {
                let range = page * PAGE..(page + 1) * PAGE;
                content[range.clone()].fill(page as u8 + 1);
                file.write_at(&content[range.clone()], range.start as u64).unwrap();
                healed.insert(page);
            }
            file.sync().unwrap();
            assert_healed(&file, &content, &healed);
            close(array, file);
            let (array, file) = open(&world, cached);
            assert_healed(&file, &content, &healed);
            close(array, file);
        }
        // It grows, although its last page cannot be verified. Then everything is written again.
        let (array, file) = open(&world, cached);
        file.write_at(&[3; PAGE], 45 * PAGE as u64).unwrap();
        content.resize(45 * PAGE, 0);
        content.extend([3; PAGE]);
        healed.extend(41..46);
        assert_healed(&file, &content, &healed);
        file.write_at(&content, 0).unwrap();
        healed.extend(0..46);
        close(array, file);
        let (array, file) = open(&world, cached);
        assert_healed(&file, &content, &healed);
        close(array, file);
    }
}

/// Pages that were written again are right, and all others are refused.
fn assert_healed(file: &File, content: &[u8], healed: &std::collections::BTreeSet<usize>) {
    for (page, wanted) in content.chunks(PAGE).enumerate() {
        let mut got = vec![9; wanted.len()];
        match file.read_at(&mut got, (page * PAGE) as u64) {
            Ok(_) => {
                assert!(healed.contains(&page), "page {page} has no sum, and was read");
                assert_same(&got, wanted, || format!("page {page}"));
            }
            Err(error @ Error::Corrupt { .. }) => {
                assert!(!healed.contains(&page), "page {page}: {error}");
                assert!(got.iter().all(|byte| matches!(byte, 0 | 9)), "bytes of page {page} were given out");
            }
            Err(error) => panic!("page {page}: {error}"),
        }
    }
}

/// A drive with room for each number of pages, while a file with sums is written. A failed write says that the drive is
/// full. After a write that has ended well, the sync and the end of the file do, too.
#[test]
fn a_full_drive_fails_writes_and_not_syncs() {
    let (mut failed, mut kept) = (0, 0);
    for (cached, room) in [true, false].into_iter().flat_map(|cached| (0..24).map(move |room| (cached, room))) {
        let world = World::new(35).with_drives(1, DriveModel::default());
        let array = options(&world, cached).create(world.paths()).unwrap();
        let file = array.create_file("file", &with_sums()).unwrap();
        let content = bytes(&mut Rng::with_seed(8), (CHUNK_PAGES - 3) * PAGE);
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        close(array, file);
        let array = options(&world, cached).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        let more = bytes(&mut Rng::with_seed(9), 6 * PAGE);
        world.set_capacity(0, Some(world.used_bytes(0) + (room * PAGE) as u64));
        let written = file.write_at(&more, content.len() as u64);
        let is_full = |error: &Error| error.to_string().contains("No space left");
        match &written {
            Ok(()) => {
                let settled = file.sync().and_then(|()| settle(&world, &file));
                settled.unwrap_or_else(|error| panic!("room for {room} pages: {error}"));
            }
            Err(error) => assert!(is_full(error), "room for {room} pages: {error}"),
        }
        file.close().unwrap_or_else(|error| panic!("room for {room} pages: {error}"));
        failed += usize::from(written.is_err());
        kept += usize::from(written.is_ok());
        world.crash_with(Survival::Nothing);
        drop(array);
        world.set_capacity(0, None);
        world.reboot();
        let (array, file) = open(&world, cached);
        let wanted = if written.is_ok() { [content, more].concat() } else { content };
        let mut got = vec![0; wanted.len()];
        assert_eq!(file.len(), wanted.len() as u64);
        file.read_at(&mut got, 0).unwrap();
        assert_same(&got, &wanted, || format!("room for {room} pages"));
        close(array, file);
        assert!(iomill_sim::testing::check_clean(&world).is_ok());
    }
    assert!(failed > 4 && kept > 4, "{failed} writes failed, and {kept} did not");
}

/// Makes all zones of an open file clean, which writes their sums.
fn settle(world: &World, file: &File) -> iomill::Result<()> {
    (0..2).try_for_each(|_| {
        world.pass(std::time::Duration::from_secs(11));
        file.sync()
    })
}

/// Each way in which a part gets longer takes the space for its sums, too. So what has ended well needs no more space.
#[test]
fn every_growth_of_a_part_has_room_for_its_sums() {
    type Grow = fn(&File) -> iomill::Result<()>;
    const NEAR: usize = CHUNK_PAGES - 3;
    let ways: [(&str, usize, std::ops::Range<u64>, Grow); 4] = [
        ("a move to a part", 3, 16..32, |file| file.write_at(&[7; 17 * PAGE], 3 * PAGE as u64)),
        ("room ahead", NEAR, 252..262, |file| file.write_at(&[7; 6 * PAGE], at(0, NEAR))),
        ("preallocate", NEAR, 2..12, |file| {
            file.preallocate(at(0, NEAR + 6))?;
            file.write_at(&[7; 6 * PAGE], at(0, NEAR))
        }),
        ("a batch", NEAR, 4..14, |file| {
            file.write_ranges(&[7; 7 * PAGE], &[(at(0, NEAR), 6 * PAGE), (300 << 20, PAGE)])
        }),
    ];
    for (how, pages, rooms, grow) in ways {
        let (mut failed, mut kept) = (0, 0);
        for room in rooms {
            let world = World::new(40).with_drives(1, DriveModel::default());
            let array = options(&world, false).create(world.paths()).unwrap();
            let file = array.create_file("file", &with_sums()).unwrap();
            file.write_at(&vec![8; pages * PAGE], 0).unwrap();
            close(array, file);
            let array = options(&world, false).open(world.path(0)).unwrap();
            let file = array.open_file("file").unwrap();
            world.set_capacity(0, Some(world.used_bytes(0) + room * PAGE as u64));
            match grow(&file) {
                Ok(()) => {
                    settle(&world, &file).unwrap_or_else(|error| panic!("{how}, room for {room} pages: {error}"));
                    kept += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("No space left"), "{how}, room for {room} pages: {error}");
                    failed += 1;
                }
            }
            world.set_capacity(0, None);
            close(array, file);
        }
        assert!(kept > 0 && (failed > 0 || how == "room ahead"), "{how}: {failed} failed, and {kept} did not");
    }
}

/// A content that has no room for its sums gets no name.
#[test]
fn a_content_without_room_for_its_sums_has_no_name() {
    let (mut failed, mut named) = (0, 0);
    for room in 30..60 {
        let world = World::new(36).with_drives(1, DriveModel::default());
        let array = options(&world, true).create(world.paths()).unwrap();
        let content = bytes(&mut Rng::with_seed(8), 40 * PAGE);
        world.set_capacity(0, Some(world.used_bytes(0) + (room * PAGE) as u64));
        let put = array.put("file", &content, &PutOptions::new().file(with_sums()));
        world.crash_with(Survival::Nothing);
        drop(array);
        world.set_capacity(0, None);
        world.reboot();
        let array = options(&world, true).open(world.path(0)).unwrap();
        assert_eq!(array.exists("file").unwrap(), put.is_ok(), "room for {room} pages");
        if let Err(error) = &put {
            assert!(error.to_string().contains("No space left"), "{error}");
            failed += 1;
        } else {
            let (drive, path, offset) = place_of(&world, 33);
            world.corrupt(drive, &path, offset, 1).unwrap();
            let error = array.open_file("file").unwrap().read_at(&mut [0; PAGE], 33 * PAGE as u64).unwrap_err();
            assert!(is_page(&error, 33), "{error}");
            named += 1;
        }
        array.close().unwrap();
    }
    assert!(failed > 4 && named > 4, "{failed} contents had no room, and {named} had");
}

/// The place of a page of the only file with parts of an array of one drive.
fn place_of(world: &World, page: usize) -> (usize, String, u64) {
    let part = world.files(0).into_iter().find(|path| path.starts_with("parts/") && !path.ends_with(".sums"));
    (0, part.unwrap(), (page * PAGE) as u64)
}
