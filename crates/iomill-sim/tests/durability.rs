//! The simulated drive against a plain model of the bytes that may be read after a crash.

use std::collections::BTreeSet;

use crate::common::{PAGE, Rig, memory};
use iomill::engine::Op;
use iomill::sys::fs::{Access, Alignment};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

const PAGES: usize = 8;

/// For each page the stamps that a crash may leave, newest last. The first one survives every crash.
struct Model {
    stamps: Vec<Vec<u8>>,
}

impl Model {
    fn written(&mut self, page: usize, stamp: u8) {
        self.stamps[page].push(stamp);
    }

    fn synced(&mut self, covered: &[usize]) {
        for (stamps, covered) in self.stamps.iter_mut().zip(covered) {
            stamps.drain(..covered - 1);
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.stamps.iter().map(Vec::len).collect()
    }
}

/// Random writes and syncs, a few requests at a time. It ends at some point, with some of the last requests still in
/// flight.
fn scribble(rig: &mut Rig, seed: u64) -> Model {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model { stamps: vec![vec![0]; PAGES] };
    let mut blank = memory(PAGES, 0);
    let request = rig.request(0, Op::Write, 0, &mut blank);
    assert_eq!(rig.run(request).unwrap(), (PAGES * PAGE) as i32);
    assert_eq!(rig.sync().unwrap(), 0);
    let mut stamp = 0;
    for round in 0..rng.usize(1..8) {
        // A batch writes each page at most once. It may contain a sync.
        let mut buffers: Vec<_> = (0..PAGES).map(|_| memory(1, 0)).collect();
        let mut requests = Vec::new();
        let completed = model.counts();
        let sync = rng.bool();
        for (page, buffer) in buffers.iter_mut().enumerate() {
            if rng.bool() {
                stamp += 1;
                buffer[0].0.fill(stamp);
                requests.push(rig.request(page as u32, Op::Write, (page * PAGE) as u64, buffer));
                model.written(page, stamp);
            }
        }
        if sync {
            requests.push(rig.request(PAGES as u32, Op::Sync, 0, &mut []));
        }
        // SAFETY: the buffers live until all requests have ended, or until the crash.
        unsafe { rig.engine.push(&requests) };
        if round > 2 && rng.u8(0..3) == 0 {
            let mut done = Vec::new();
            rig.engine.wait(requests.len() / 2, None, &mut done).unwrap();
            if done.iter().any(|completion| completion.slot == PAGES as u32) {
                model.synced(&completed);
            }
            rig.world.crash();
            return model;
        }
        let done = rig.reap(requests.len());
        assert!(done.iter().all(|completion| completion.result >= 0));
        if sync {
            model.synced(&completed);
        }
    }
    model
}

#[test]
fn a_crash_leaves_only_what_the_model_allows() {
    let mut old_seen = false;
    let mut new_seen = false;
    for seed in 0..400 {
        let mut rig = Rig::new(seed, DriveModel::default());
        let model = scribble(&mut rig, seed);
        rig.world.crash();
        rig.world.reboot();
        let left = rig.world.read(0, "part").unwrap();
        for (page, stamps) in model.stamps.iter().enumerate() {
            let bytes = &left[page * PAGE..(page + 1) * PAGE];
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed} page {page} is torn");
            assert!(stamps.contains(&bytes[0]), "seed {seed} page {page}: {} not in {stamps:?}", bytes[0]);
            old_seen |= stamps.len() > 1 && bytes[0] == stamps[0];
            new_seen |= stamps.len() > 1 && Some(&bytes[0]) == stamps.last();
        }
        assert_eq!(rig.world.violations(), Vec::<String>::new());
    }
    assert!(old_seen && new_seen);
}

#[test]
fn the_extremes_are_exact() {
    for seed in 0..100 {
        for survival in [Survival::Nothing, Survival::Everything] {
            let mut rig = Rig::new(seed, DriveModel::default());
            let model = scribble(&mut rig, seed);
            if rig.world.crashed() {
                continue;
            }
            rig.world.crash_with(survival);
            let left = rig.world.read(0, "part").unwrap();
            for (page, stamps) in model.stamps.iter().enumerate() {
                let expected = if survival == Survival::Nothing { stamps.first() } else { stamps.last() };
                assert_eq!(Some(&left[page * PAGE]), expected, "seed {seed} page {page} {survival:?}");
            }
        }
    }
}

#[test]
fn a_write_in_flight_at_a_crash_may_be_there_or_not() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let mut rig = Rig::new(seed, DriveModel::default());
        rig.write(0, 1).unwrap();
        rig.sync().unwrap();
        let mut buf = memory(1, 2);
        let request = rig.request(0, Op::Write, 0, &mut buf);
        // SAFETY: the buffer lives until the crash, after which nothing is in flight.
        unsafe { rig.engine.push(&[request]) };
        rig.world.crash();
        seen.insert(rig.world.read(0, "part").unwrap()[0]);
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
}

/// A program that replaces a record correctly. At every crash the record has the old or the new bytes.
fn replace(world: &World) -> std::io::Result<()> {
    let fs = world.platform().attach(&world.path(0), true)?;
    fs.make_dir("files")?;
    fs.sync_dir("")?;
    for version in 1..=3 {
        let file = fs.open("files/new", Access::CREATE)?;
        fs.write_at(file, &[version; 600], 0)?;
        fs.sync_data(file)?;
        fs.close(file);
        fs.rename("files/new", "files/record")?;
        fs.sync_dir("files")?;
    }
    Ok(())
}

#[test]
fn a_careful_replacement_is_atomic_at_every_crash_point() {
    let world = World::new(0).with_drives(1, DriveModel::default());
    replace(&world).unwrap();
    let effects = world.effects();
    assert!(effects > 15);
    let mut seen = BTreeSet::new();
    for point in 1..=effects {
        for seed in 0..20 {
            let world = World::new(seed).with_drives(1, DriveModel::default());
            world.faults(|faults| {
                faults.crash_at_effect = Some(point);
                faults.torn_sectors = true;
            });
            assert!(replace(&world).is_err());
            assert!(world.crashed());
            world.reboot();
            match world.read(0, "files/record") {
                Ok(bytes) => {
                    assert_eq!(bytes, [bytes[0]; 600], "point {point} seed {seed}\n{}", world.trace_tail());
                    seen.insert(bytes[0]);
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
                    // Once a replacement is reported as done, there is a record.
                    assert!(point <= 8, "point {point} seed {seed}\n{}", world.trace_tail());
                }
            }
        }
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_replacement_without_a_sync_is_found_out() {
    let broken = (0..50).any(|seed| {
        let world = World::new(seed).with_drives(1, DriveModel::default());
        let fs = world.platform().attach(&world.path(0), true).unwrap();
        let file = fs.open("record", Access::CREATE).unwrap();
        fs.write_at(file, &[1; 600], 0).unwrap();
        fs.sync_dir("").unwrap();
        world.crash();
        world.read(0, "record").unwrap() != [1; 600]
    });
    assert!(broken);
}

#[test]
fn data_dropped_by_a_failed_sync_is_not_saved_by_the_next() {
    let lost = (0..40).any(|seed| {
        let mut rig = Rig::new(seed, DriveModel::default());
        rig.world.faults(|faults| faults.inject(Injection::new(Kind::Sync, Fault::Errno(libc::EIO))));
        rig.write(0, 7).unwrap();
        assert_eq!(rig.sync().unwrap(), -libc::EIO);
        assert_eq!(rig.sync().unwrap(), 0);
        assert_eq!(rig.world.read(0, "part").unwrap(), [7; PAGE]);
        rig.world.crash_with(Survival::Everything);
        rig.world.read(0, "part").unwrap() == [0; PAGE]
    });
    assert!(lost);
}

#[test]
fn killing_the_process_loses_nothing_that_completed() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed, DriveModel::default());
        rig.write(0, 3).unwrap();
        rig.world.kill_process();
        assert_eq!(rig.sync().unwrap(), -libc::EIO, "a request of a dead process fails");
        assert_eq!(rig.world.read(0, "part").unwrap(), [3; PAGE]);
        // The write is as volatile as before, and a sync by the next process covers it.
        let fs = rig.world.platform().attach(&rig.world.path(0), false).unwrap();
        let file = fs.open("part", Access::READ).unwrap();
        fs.sync_data(file).unwrap();
        rig.world.crash_with(Survival::Nothing);
        assert_eq!(rig.world.read(0, "part").unwrap(), [3; PAGE]);
    }
}

#[test]
fn a_write_in_flight_when_the_process_is_killed_can_be_synced_by_the_next() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let mut rig = Rig::new(seed, DriveModel::default());
        rig.write(0, 1).unwrap();
        rig.sync().unwrap();
        let mut buf = memory(1, 2);
        let request = rig.request(0, Op::Write, 0, &mut buf);
        // SAFETY: the buffer lives until the process is killed, after which nothing is in flight.
        unsafe { rig.engine.push(&[request]) };
        rig.world.kill_process();
        let found = rig.world.read(0, "part").unwrap();
        let fs = rig.world.platform().attach(&rig.world.path(0), false).unwrap();
        let file = fs.open("part", Access::READ).unwrap();
        fs.sync_data(file).unwrap();
        rig.world.crash_with(Survival::Nothing);
        assert_eq!(rig.world.read(0, "part").unwrap(), found);
        seen.insert(found[0]);
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
}

/// The files that 30 worlds may have after one operation fails with EIO.
fn left_after(kind: Kind, act: impl Fn(&mut Rig)) -> BTreeSet<Option<Vec<u8>>> {
    let left = (0..30).map(|seed| {
        let mut rig = Rig::new(seed, DriveModel { alignment: Alignment::NONE, ..DriveModel::default() });
        rig.fs.write_at(rig.file, &[1; 1024], 0).unwrap();
        rig.world.faults(|faults| faults.inject(Injection::new(kind, Fault::Errno(libc::EIO))));
        act(&mut rig);
        rig.world.crash_with(Survival::Everything);
        rig.world.read(0, "part").ok()
    });
    left.collect()
}

#[test]
fn what_fails_with_eio_may_have_happened_in_part() {
    let pages = |first: u8, second: u8| Some([[first; 512], [second; 512]].concat());
    let mixed = BTreeSet::from([pages(1, 1), pages(1, 2), pages(2, 1), pages(2, 2)]);
    let by_fs = left_after(Kind::Write, |rig| {
        rig.fs.write_at(rig.file, &[2; 1024], 0).unwrap_err();
    });
    assert_eq!(by_fs, mixed);
    let by_engine = left_after(Kind::Write, |rig| {
        let mut buf = memory(1, 2);
        let request = iomill::engine::IoRequest { len: 1024, ..rig.request(0, Op::Write, 0, &mut buf) };
        assert_eq!(rig.run(request).unwrap(), -libc::EIO);
    });
    assert_eq!(by_engine, mixed);
    let synced = left_after(Kind::Sync, |rig| {
        rig.fs.sync_data(rig.file).unwrap_err();
    });
    assert_eq!(synced, BTreeSet::from([pages(0, 0), pages(1, 1)]));
    let unlinked = left_after(Kind::Unlink, |rig| {
        rig.fs.unlink("part").unwrap_err();
    });
    assert_eq!(unlinked, BTreeSet::from([None, pages(1, 1)]));
    let renamed = left_after(Kind::Rename, |rig| {
        rig.fs.rename("part", "other").unwrap_err();
    });
    assert_eq!(renamed, BTreeSet::from([None, pages(1, 1)]));
}

#[test]
fn an_orderly_reboot_keeps_everything_and_ends_all_handles() {
    let mut rig = Rig::new(1, DriveModel::default());
    rig.write(1, 3).unwrap();
    rig.world.reboot();
    assert!(rig.fs.len(rig.file).is_err());
    assert!(rig.engine.wait(0, None, &mut Vec::new()).is_err());
    rig.world.crash_with(Survival::Nothing);
    assert_eq!(rig.world.read(0, "part").unwrap()[PAGE..], [3; PAGE]);
}
