//! Several processes, processes that are killed, and parts that another program changed.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, FileOptions, Layout};
use iomill_sim::{DriveModel, World};

use super::crash::assert_clean_beside;
use super::harness::{
    Round, assert_same, assert_tidy, bytes, machine_with, open_with, options as options_by_chance, rounds,
    uncached_options,
};
use super::script::Script;

fn made(seed: u64, kind: Layout) -> (World, Vec<u8>) {
    let world = World::new(seed).with_drives(3, DriveModel::default());
    let array = ArrayOptions::new().platform(world.platform()).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().layout(kind).block_bytes(4096)).unwrap();
    let content = bytes(&mut Rng::with_seed(seed), 1_000_003);
    file.write_at(&content, 0).unwrap();
    array.close().unwrap();
    (world, content)
}

fn options(world: &World, read_only: bool) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).read_only(read_only)
}

fn assert_reads(array: &Array, content: &[u8]) {
    let file = array.open_file("file").unwrap();
    let mut got = vec![0; content.len() + 1];
    let read = file.read_at(&mut got, 0).unwrap();
    assert_same(&got[..read], content, || "file".into());
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let (world, content) = made(1, Layout::Hash);
    let first = options(&world, true).open(world.path(0)).unwrap();
    let second = options(&world, true).open(world.path(2)).unwrap();
    assert_reads(&first, &content);
    assert_reads(&second, &content);
    assert!(matches!(options(&world, false).open(world.path(1)), Err(Error::Locked { .. })));
    let file = first.open_file("file").unwrap();
    let before = world.effects();
    let refused = |result: iomill::Result<()>| assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
    refused(file.write_at(&[1], 0));
    refused(file.set_len(0));
    refused(file.preallocate(1 << 20));
    file.sync().unwrap();
    drop(file);
    refused(first.create_file("new", &FileOptions::new()).map(drop));
    refused(first.rename("file", "new"));
    refused(first.set_attribute("file", "key", Some("value")));
    refused(first.delete("file"));
    assert_eq!(world.effects(), before, "a reader changed something");
    first.close().unwrap();
    second.close().unwrap();
    let writer = options(&world, false).open(world.path(1)).unwrap();
    assert!(matches!(options(&world, true).open(world.path(1)), Err(Error::Locked { .. })));
    assert!(matches!(options(&world, false).open(world.path(1)), Err(Error::Locked { .. })));
    let peek = options(&world, true).peek([world.path(1)]).unwrap();
    assert_eq!(peek.stat("file").unwrap().len_bytes, content.len() as u64);
    drop(peek);
    writer.close().unwrap();
    assert_tidy(&world);
}

#[test]
fn a_killed_writer_leaves_what_it_wrote_and_no_lock() {
    rounds("a_killed_writer_leaves_what_it_wrote_and_no_lock", 30, &[], |round| {
        // A cache's dirty pages die with their process, so without a cache more is certain.
        let cached = round.rng.bool();
        let options = if cached { options_by_chance } else { uncached_options };
        let array = machine_with(round, options);
        let Round { rng, world } = round;
        let mut script = Script::new(array);
        script.options = options;
        let calls = rng.usize(5..30);
        script.run(rng, world, calls).unwrap();
        // A request is in flight at the end.
        let started = script.begin_writes(rng);
        world.kill_process();
        drop(started);
        let array = open_with(rng, world, options).unwrap();
        for (name, known) in &script.files {
            let file = array.open_file(name).unwrap();
            // A length that was not synced was only in the process's memory.
            let mut got = vec![0; known.versions.now.len() + 1];
            let read = file.read_at(&mut got, 0).unwrap();
            let whole = &known.versions.now[..read];
            let wrong = got[..read].chunks(4096).zip(whole.chunks(4096)).filter(|(got, wanted)| got != wanted);
            let allowed = if cached || script.in_flight_on(name) { usize::MAX } else { 0 };
            assert!(wrong.count() <= allowed, "{name} holds bytes that no call wrote");
            known.versions.fits(&got[..read], 4096).unwrap();
        }
        script.array = None;
        assert_clean_beside(world, array);
        assert_eq!(world.violations(), Vec::<String>::new());
    });
}

#[test]
fn a_part_that_was_cut_is_found_out() {
    for (seed, kind) in [Layout::Striping, Layout::Rotated, Layout::Hash].into_iter().enumerate() {
        let (world, content) = made(seed as u64, kind);
        let parts = |drive: usize| world.files(drive).into_iter().find(|path| path.starts_with("parts/")).unwrap();
        for (drive, read_only) in [(0, true), (1, false), (2, true)] {
            let (part, whole) = (parts(drive), world.read(drive, &parts(drive)).unwrap());
            world.cut(drive, &part, whole.len() as u64 - 4096).unwrap();
            let array = options(&world, read_only).open(world.path(0)).unwrap();
            let Err(Error::Corrupt { path, .. }) = array.open_file("file") else { panic!("a cut part was opened") };
            assert!(path.starts_with(world.path(drive)), "{}", path.display());
            assert_eq!(array.list("").names().unwrap(), ["file"]);
            array.close().unwrap();
            world.put(drive, &part, &whole).unwrap();
        }
        // While the file is open, a part that was cut gives errors for the missing bytes, and right bytes elsewhere.
        let array = options(&world, true).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        world.cut(1, &parts(1), 4096).unwrap();
        let mut failed = 0;
        for (block, wanted) in content.chunks(4096).enumerate() {
            let mut got = vec![0; wanted.len()];
            match file.read_at(&mut got, block as u64 * 4096) {
                Ok(_) => assert_same(&got, wanted, || format!("block {block}")),
                Err(Error::PartCut { path, .. }) => {
                    assert!(path.starts_with(world.path(1)));
                    failed += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let wanted = content.len().div_ceil(4096) / 3 - 1;
        assert!(failed + 40 > wanted && failed < wanted + 40, "{failed} of {wanted} blocks");
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
    }
}
