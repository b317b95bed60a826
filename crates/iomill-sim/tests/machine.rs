//! The simulated machine: determinism, the rules of direct I/O, space, depth, faults, locks, the contract of engines.

use std::time::Duration;

use crate::common::{PAGE, PageBuf, Rig, engine, memory};
use iomill::engine::{EngineConfig, EngineKind, IoRequest, Memory, NOT_BEGUN, Op};
use iomill::sys::fs::{Access, Alignment, Lock};
use iomill_sim::{Death, DriveModel, Fault, Injection, Kind, Rates, World};

/// Random work under faults. Returns the trace's hash and the bytes that were read.
fn work(seed: u64) -> (u64, Vec<u8>) {
    let mut rig = Rig::new(seed, DriveModel { channels: 4, ..DriveModel::default() });
    let mut rng = fastrand::Rng::with_seed(99);
    rig.world.faults(|faults| {
        let rates = Rates { read_error: 20, write_error: 20, sync_error: 20, ..Rates::default() };
        faults.rates = Rates { short_read: 50, short_write: 50, interrupted: 50, catalog_error: 20, ..rates };
    });
    for _ in 0..60 {
        let mut buffers: Vec<_> = (0..8).map(|byte| memory(4, byte)).collect();
        let requests: Vec<_> = (0..8)
            .map(|slot| {
                let op = [Op::Read, Op::Write, Op::Sync][rng.usize(0..3)];
                let offset = rng.u64(0..64) * PAGE as u64;
                rig.request(slot, op, offset, &mut buffers[slot as usize])
            })
            .collect();
        // SAFETY: the buffers live until all requests have ended.
        unsafe { rig.engine.push(&requests) };
        assert_eq!(rig.reap(8).len(), 8);
        let _may_fail = rig.fs.list("");
    }
    rig.world.crash();
    (rig.world.trace_hash(), rig.world.read(0, "part").unwrap())
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..5 {
        assert_eq!(work(seed), work(seed));
        assert_ne!(work(seed).0, work(seed + 1).0);
    }
}

#[test]
fn direct_files_demand_alignment() {
    let mut rig = Rig::new(1, DriveModel::default());
    assert_eq!(rig.fs.alignment(rig.file).unwrap(), Alignment { offset: 512, memory: 512 });
    let mut buf = memory(2, 1);
    let start = buf.as_mut_ptr().cast::<u8>();
    let good = rig.request(0, Op::Write, 512, &mut buf);
    assert_eq!(rig.run(good).unwrap(), 2 * PAGE as i32);
    for (offset, len, shift) in [(1, 512, 0), (0, 100, 0), (0, 512, 8)] {
        for op in [Op::Read, Op::Write] {
            // The memory stays inside the buffer.
            let memory = Memory::one(start.wrapping_add(shift));
            let bad = IoRequest { op, offset, len, memory, ..good };
            assert_eq!(rig.run(bad).unwrap(), -libc::EINVAL, "{offset} {len} {shift}");
        }
    }
    let error = rig.fs.write_at(rig.file, b"misaligned", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    // Buffered files have no demands. Files on a file system that refuses direct I/O have none either.
    let buffered = rig.fs.open("part", Access::WRITE).unwrap();
    rig.fs.write_at(buffered, b"anything", 3).unwrap();
    let model = DriveModel { alignment: Alignment::NONE, ..DriveModel::default() };
    let rig = Rig::new(1, model);
    assert!(!rig.fs.alignment(rig.file).unwrap().is_direct());
    rig.fs.write_at(rig.file, b"misaligned", 1).unwrap();
}

#[test]
fn a_full_drive_says_so_and_space_comes_back() {
    let model = DriveModel { capacity_bytes: Some(4 * PAGE as u64), ..DriveModel::default() };
    let mut rig = Rig::new(1, model);
    for page in 0..3 {
        assert_eq!(rig.write(page * 10, 1).unwrap(), PAGE as i32);
    }
    // One page still fits: a write of two is short, and the next has no room.
    let mut buf = memory(2, 2);
    let request = rig.request(0, Op::Write, 40 * PAGE as u64, &mut buf);
    assert_eq!(rig.run(request).unwrap(), PAGE as i32);
    assert_eq!(rig.write(41, 2).unwrap(), -libc::ENOSPC);
    assert_eq!(rig.fs.ground().unwrap().free_bytes, 0);
    assert_eq!(rig.world.used_bytes(0), 4 * PAGE as u64);
    // A write to pages that have space needs no more.
    assert_eq!(rig.write(10, 3).unwrap(), PAGE as i32);
    assert_eq!(rig.fs.allocate(rig.file, 0, 2 * PAGE as u64).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    rig.fs.set_len(rig.file, PAGE as u64).unwrap();
    rig.fs.allocate(rig.file, 0, 4 * PAGE as u64).unwrap();
    assert_eq!(rig.fs.len(rig.file).unwrap(), 4 * PAGE as u64);
    // An unlinked file keeps its space while it is open.
    rig.fs.unlink("part").unwrap();
    assert_eq!(rig.world.used_bytes(0), 4 * PAGE as u64);
    drop(rig.engine);
    rig.fs.close(rig.file);
    assert_eq!(rig.world.used_bytes(0), 0);
    assert_eq!(rig.world.violations(), Vec::<String>::new());
}

/// Reads 256 pages with `depth` in flight; returns the virtual time and whether completions came out of order.
fn timed(depth: u32) -> (u64, bool) {
    let mut rig = Rig::new(5, DriveModel::default());
    let mut buffers: Vec<_> = (0..depth).map(|_| memory(1, 0)).collect();
    let start_ns = rig.world.now_ns();
    let mut reordered = false;
    for _ in 0..256 / depth {
        let requests: Vec<_> =
            buffers.iter_mut().zip(0..).map(|(buffer, slot)| rig.request(slot, Op::Read, 0, buffer)).collect();
        // SAFETY: the buffers live until all requests have ended.
        unsafe { rig.engine.push(&requests) };
        let slots: Vec<u32> = rig.reap(depth as usize).iter().map(|completion| completion.slot).collect();
        reordered |= !slots.is_sorted();
    }
    assert_eq!(rig.world.stats(0).peak_in_flight, u64::from(depth));
    (rig.world.now_ns() - start_ns, reordered)
}

#[test]
fn depth_matters_up_to_the_channels_and_ends_come_out_of_order() {
    let (one_ns, _) = timed(1);
    let (eight_ns, reordered) = timed(8);
    let (sixteen_ns, _) = timed(16);
    let (sixtyfour_ns, _) = timed(64);
    assert!(reordered);
    assert!(one_ns > 5 * eight_ns);
    assert!(eight_ns > sixteen_ns * 3 / 2);
    assert!(sixteen_ns < sixtyfour_ns * 2);
    assert_eq!(timed(8).0, eight_ns);
}

#[test]
fn a_slow_drive_takes_longer() {
    let mut rig = Rig::new(1, DriveModel { latency_ns: 100_000..100_001, ..DriveModel::default() });
    rig.world.faults(|faults| faults.slow(0, 10));
    let start_ns = rig.world.now_ns();
    rig.write(0, 1).unwrap();
    assert!(rig.world.now_ns() - start_ns > 1_000_000);
}

#[test]
fn targeted_faults_strike_what_they_aim_at() {
    let mut rig = Rig::new(1, DriveModel::default());
    rig.world.faults(|faults| {
        faults.inject(Injection::new(Kind::Write, Fault::Errno(libc::ENOSPC)).path("part").skip(1).times(2));
        faults.inject(Injection::new(Kind::Write, Fault::Errno(libc::EIO)).drive(1));
        faults.inject(Injection::new(Kind::Read, Fault::Short));
    });
    let results: Vec<i32> = (0..4).map(|page| rig.write(page, 1).unwrap()).collect();
    assert_eq!(results, [PAGE as i32, -libc::ENOSPC, -libc::ENOSPC, PAGE as i32]);
    let mut buf = memory(1, 0);
    let request = rig.request(0, Op::Read, 0, &mut buf);
    let short = rig.run(request).unwrap();
    assert!(short > 0 && short < PAGE as i32 && short % 512 == 0);
    assert!(buf[0].0[..short as usize].iter().all(|byte| *byte == 1));
    assert!(buf[0].0[short as usize..].iter().all(|byte| *byte == 0));
    // Only requests of engines can be short.
    rig.world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Short)));
    rig.fs.write_at(rig.file, &buf[0].0, 0).unwrap();
    assert!(rig.write(0, 1).unwrap() < PAGE as i32);
    let next = rig.world.operations() + 1;
    rig.world.faults(|faults| faults.fail_at_operation(next, libc::EMFILE));
    assert_eq!(rig.fs.open("part", Access::READ).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    rig.world.faults(|faults| faults.inject(Injection::new(Kind::Rename, Fault::Crash)));
    assert!(rig.fs.rename("part", "other").is_err());
    assert!(rig.world.crashed());
    assert_eq!(rig.world.files(0), ["part"]);
}

#[test]
fn each_rate_strikes_its_operations() {
    let all = 1000;
    let none = Rates::default();
    let page = PAGE as i32;
    let cases: [(Rates, [i32; 3]); 6] = [
        (Rates { read_error: all, ..none }, [-libc::EIO, page, 0]),
        (Rates { write_error: all, ..none }, [page, -libc::EIO, 0]),
        (Rates { sync_error: all, ..none }, [page, page, -libc::EIO]),
        (Rates { no_space: all, ..none }, [page, -libc::ENOSPC, 0]),
        (Rates { catalog_error: all, ..none }, [page, page, 0]),
        (none, [page, page, 0]),
    ];
    for (rates, expected) in cases {
        let mut rig = Rig::new(1, DriveModel::default());
        rig.write(0, 1).unwrap();
        rig.world.faults(|faults| faults.rates = rates);
        let mut buf = memory(1, 0);
        let read = rig.request(0, Op::Read, 0, &mut buf);
        let results = [rig.run(read).unwrap(), rig.write(0, 1).unwrap(), rig.sync().unwrap()];
        assert_eq!(results, expected, "{rates:?}");
        assert_eq!(rig.fs.list("").is_err(), rates.catalog_error > 0);
        assert_eq!(rig.fs.make_dir("d").is_err(), rates.catalog_error + rates.no_space > 0);
    }
    let mut rig = Rig::new(1, DriveModel::default());
    rig.world.faults(|faults| faults.rates = Rates { interrupted: all, ..none });
    let results: std::collections::BTreeSet<i32> = (0..20).map(|_| rig.write(0, 1).unwrap()).collect();
    assert_eq!(results, [-libc::EINTR, -libc::EAGAIN].into());
    assert!((0..20).all(|_| rig.sync().unwrap() == NOT_BEGUN), "a sync that ends with an errno may have lost pages");
    rig.world.faults(|faults| faults.rates = Rates { short_read: all, short_write: all, ..none });
    assert!(rig.write(0, 1).unwrap() < page);
}

#[test]
fn a_dead_drive_reads_empty_or_fails_and_comes_back() {
    let mut rig = Rig::new(1, DriveModel::default());
    rig.write(0, 1).unwrap();
    let mut buf = memory(1, 0);
    let read = rig.request(0, Op::Read, 0, &mut buf);
    for (death, expected) in [(Death::Empty, 0), (Death::Error, -libc::EIO)] {
        rig.world.faults(|faults| faults.kill(0, death));
        assert_eq!(rig.run(read).unwrap(), expected);
        assert_eq!(rig.write(0, 2).unwrap(), -libc::EIO);
        assert_eq!(rig.sync().unwrap(), -libc::EIO);
        assert!(rig.fs.list("").is_err());
    }
    rig.world.faults(|faults| faults.revive(0));
    assert_eq!(rig.run(read).unwrap(), PAGE as i32);
    assert_eq!(buf[0].0, [1; PAGE]);
    rig.world.unplug(0);
    assert_eq!(rig.run(read).unwrap(), -libc::EIO);
    assert_eq!(rig.world.platform().attach(&rig.world.path(0), true).unwrap_err().raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn what_would_wait_for_ever_is_an_error() {
    let mut rig = Rig::new(1, DriveModel::default());
    let error = rig.engine.wait(1, None, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("simulated deadlock"), "{error}");
    // Instead a timeout or a wake ends the wait. An early wake counts once.
    let before_ns = rig.world.now_ns();
    rig.engine.wait(1, Some(Duration::from_millis(3)), &mut Vec::new()).unwrap();
    assert!(rig.world.now_ns() - before_ns >= 3_000_000);
    rig.engine.waker().wake();
    rig.engine.waker().wake();
    rig.engine.wait(1, None, &mut Vec::new()).unwrap();
    assert!(rig.engine.wait(1, None, &mut Vec::new()).is_err());
    // Polling for completions and reading the clock let time pass.
    let mut buf = memory(1, 1);
    let request = rig.request(0, Op::Write, 0, &mut buf);
    // SAFETY: the buffer lives until the request has ended.
    unsafe { rig.engine.push(&[request]) };
    let mut done = Vec::new();
    let polls = (0..10_000).take_while(|_| {
        rig.engine.wait(0, None, &mut done).unwrap();
        done.is_empty()
    });
    assert!(polls.count() < 10_000);
    assert_eq!(done[0].result, PAGE as i32);
    let clock = rig.world.platform().clock();
    assert!(clock.now_ns() < clock.now_ns());
}

#[test]
fn breaches_of_the_contract_are_found() {
    let with = |requests: fn(&Rig, &mut [PageBuf]) -> Vec<IoRequest>| {
        let mut rig = Rig::new(1, DriveModel::default());
        let mut buf = memory(2, 1);
        let requests = requests(&rig, &mut buf);
        // SAFETY: the memory outlives the engine. Slots and sharing break the contract, and the engine refuses to act
        // on such requests.
        unsafe { rig.engine.push(&requests) };
        let error = rig.engine.wait(1, None, &mut Vec::new()).unwrap_err().to_string();
        let violations = rig.world.violations();
        drop(rig);
        assert!(error.contains(&violations[0]), "{error}");
        violations[0].clone()
    };
    let far = with(|rig, buf| vec![rig.request(64, Op::Read, 0, buf)]);
    assert!(far.contains("capacity"), "{far}");
    let twice = with(|rig, buf| vec![rig.request(0, Op::Write, 0, buf), rig.request(0, Op::Sync, 0, buf)]);
    assert!(twice.contains("in flight already"), "{twice}");
    let shared = with(|rig, buf| vec![rig.request(0, Op::Write, 0, buf), rig.request(1, Op::Read, 0, buf)]);
    assert!(shared.contains("in use by slot 0"), "{shared}");
    let region = with(|rig, buf| {
        let memory = Memory::One { buf: buf.as_mut_ptr().cast(), region: 3 };
        vec![IoRequest { memory, ..rig.request(0, Op::Read, 0, buf) }]
    });
    assert!(region.contains("region 3"), "{region}");
}

#[test]
fn a_key_that_outlives_its_file_is_found() {
    let mut rig = Rig::new(1, DriveModel::default());
    rig.write(0, 1).unwrap();
    rig.fs.close(rig.file);
    // The lowest free handle is used again, now for another file, under the old key.
    assert_eq!(rig.fs.open("other", Access::CREATE.direct()).unwrap(), rig.file);
    assert_eq!(rig.write(0, 2).unwrap(), -libc::EBADF);
    assert_eq!(rig.world.violations().len(), 1);
    rig.engine.forget(1);
    assert_eq!(rig.write(0, 2).unwrap(), PAGE as i32);
    assert_eq!(rig.world.read(0, "other").unwrap(), [2; PAGE]);
}

#[test]
fn a_file_that_is_closed_lives_on_while_io_is_in_flight() {
    let mut rig = Rig::new(1, DriveModel::default());
    let mut buf = memory(1, 9);
    let request = rig.request(0, Op::Write, 0, &mut buf);
    // SAFETY: the buffer lives until the request has ended.
    unsafe { rig.engine.push(&[request]) };
    rig.fs.close(rig.file);
    assert_eq!(rig.reap(1)[0].result, PAGE as i32);
    assert_eq!(rig.world.read(0, "part").unwrap(), [9; PAGE]);
    assert_eq!(rig.world.open_files(), 1);
    rig.engine.forget(1);
    assert_eq!(rig.world.open_files(), 0);
}

#[test]
fn locks_belong_to_open_files_and_to_engines_that_hold_them() {
    let world = World::new(1).with_drives(1, DriveModel::default());
    let fs = world.platform().attach(&world.path(0), true).unwrap();
    let first = fs.open("lock", Access::CREATE).unwrap();
    let second = fs.open("lock", Access::READ).unwrap();
    assert!(fs.lock(first, Lock::Shared).unwrap());
    assert!(fs.lock(second, Lock::Shared).unwrap());
    assert!(!fs.lock(first, Lock::Exclusive).unwrap());
    fs.unlock(second).unwrap();
    assert!(fs.lock(first, Lock::Exclusive).unwrap());
    let config = EngineConfig { capacity: 1, poll: false, hold: vec![first], shared: false };
    let engine = world.platform().engine(EngineKind::Simulated, &config).unwrap();
    fs.close(first);
    assert!(!fs.lock(second, Lock::Shared).unwrap());
    drop(engine);
    assert!(fs.lock(second, Lock::Exclusive).unwrap());
    world.crash();
    world.reboot();
    let fs = world.platform().attach(&world.path(0), true).unwrap();
    assert!(fs.list("").unwrap().is_empty(), "the lock file was never durable");
    let third = fs.open("lock", Access::CREATE).unwrap();
    assert!(fs.lock(third, Lock::Exclusive).unwrap());
}

#[test]
fn drives_move_and_double_and_rot() {
    let world = World::new(1).with_drives(2, DriveModel::default());
    world.put(0, "label", b"one").unwrap();
    world.put(0, "a/b/deep", b"two").unwrap();
    world.move_drive(0, "/mnt/a");
    let copy = world.duplicate_drive(0, "/mnt/b");
    world.corrupt(copy, "label", 0, 1).unwrap();
    world.cut(copy, "label", 2).unwrap();
    assert_eq!(world.read(0, "label").unwrap(), b"one");
    assert_eq!(world.read(copy, "label").unwrap(), [!b'o', b'n']);
    assert_eq!(world.drive_at("/mnt/b"), Some(copy));
    let near: Vec<_> = world.platform().neighbours("/mnt/c".as_ref());
    assert_eq!(near, ["/mnt/a", "/mnt/b", "/sim/1"].map(std::path::PathBuf::from));
    world.remove(copy, "label").unwrap();
    world.crash();
    world.reboot();
    assert_eq!(world.files(copy), ["a/b/deep"]);
    assert_eq!(world.files(0), ["a/b/deep", "label"]);
    world.platform().attach("/mnt/a".as_ref(), false).unwrap();
    world.erase(0);
    let error = world.platform().attach("/mnt/a".as_ref(), false).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn requests_of_a_dropped_engine_are_counted() {
    let mut rig = Rig::new(1, DriveModel::default());
    let mut other = engine(&rig.world, 4);
    let mut buf = memory(1, 1);
    let request = rig.request(0, Op::Write, 0, &mut buf);
    // SAFETY: the buffer outlives the engine.
    unsafe { other.push(&[request]) };
    assert_eq!(rig.world.in_flight(), 1);
    drop(other);
    assert_eq!((rig.world.in_flight(), rig.world.abandoned()), (0, 1));
    assert_eq!(rig.write(0, 2).unwrap(), PAGE as i32);
}

#[test]
fn other_engines_are_refused() {
    let world = World::new(1).with_drives(1, DriveModel::default());
    let fs = world.platform().attach(&world.path(0), true).unwrap();
    let probe = fs.open("probe", Access::CREATE).unwrap();
    let choice = world.platform().choose(fs.as_ref(), probe, None).unwrap();
    assert_eq!((choice.kind, choice.why), (EngineKind::Simulated, None));
    let error = world.platform().choose(fs.as_ref(), probe, Some(EngineKind::Uring)).unwrap_err();
    assert!(error.to_string().contains("io_uring"), "{error}");
    assert!(!world.platform().threads());
}
