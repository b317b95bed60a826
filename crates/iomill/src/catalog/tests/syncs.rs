//! What a sync of all changes covers: each change that can be seen when it begins.

use std::path::Path;

use super::super::log::header::{Features, FileHeader, FileKind};
use super::super::log::place::{Making, segment_path};
use super::super::log::record::LogRecord;
use super::super::store::LOG;
use super::world::{Fault, Loss};
use super::*;
use crate::engine::platform::{DurableWrite, write_durably};
use crate::sys::fs::{Access, DriveFile, DriveFs};

/// The value that a reader finds after a crash.
fn after_a_crash(world: &World) -> Option<String> {
    let world = world.fork();
    world.crash(Loss::Power);
    let catalog = open(&world, OpenMode::Reader).unwrap();
    view(&catalog)["a"].get("seen").cloned()
}

/// Another thread sees a change before the one that makes it has noted it. A sync then makes it durable, too.
#[test]
fn a_sync_covers_a_change_that_is_seen_and_not_noted() {
    for syncs in [false, true] {
        let (world, mut catalog) = array(2);
        catalog.set_syncs_changes(syncs);
        let number = catalog.number("a").unwrap();
        let queued = catalog.naming(|| {
            let (_open, journal) = catalog.begin()?;
            let (result, ticket) = catalog.queue(journal, true, |_, change| {
                change.push(&LogRecord::Attribute { number, key: "seen", value: Some("yes") });
                Ok(())
            })?;
            // Here the other thread runs.
            assert_eq!(view(&catalog)["a"]["seen"], "yes");
            catalog.sync_changes()?;
            assert_eq!(after_a_crash(&world).as_deref(), Some("yes"), "changes wait: {syncs}");
            Ok(Queued { result, ticket })
        });
        catalog.settle(queued.unwrap()).unwrap();
    }
}

/// A change that its own thread has not made durable yet is covered, also where all threads wait for their changes.
#[test]
fn a_sync_covers_a_change_of_another_thread() {
    for syncs in [false, true] {
        let (world, mut catalog) = array(2);
        catalog.set_syncs_changes(syncs);
        let queued = catalog.queue_attribute("a", "seen", Some("yes")).unwrap();
        assert_eq!(after_a_crash(&world), None);
        catalog.sync_changes().unwrap();
        assert_eq!(after_a_crash(&world).as_deref(), Some("yes"), "changes wait: {syncs}");
        catalog.settle(queued).unwrap();
        // Nothing is left to do, so it costs nothing.
        let before = world.inner().ops;
        catalog.sync_changes().unwrap();
        assert_eq!(world.inner().ops, before);
    }
}

/// A drive with a directory for logs.
fn drive(world: &World) -> Arc<dyn DriveFs> {
    let fs = world.platform().attach(Path::new("/d0"), true).unwrap();
    fs.make_dir(LOG).unwrap();
    fs
}

/// An fsync that fails may have lost each write to its drive that was not synced yet.
#[test]
fn a_write_beside_an_fsync_that_fails_is_not_durable() {
    let world = World::new(1);
    let fs = drive(&world);
    let files = ["a", "b"].map(|name| DriveFile::open(&fs, name, Access::CREATE).unwrap());
    let write = |file: &'_ DriveFile| DurableWrite { fs: &*fs, handle: file.handle(), bytes: b"bytes", offset: 0 };
    let writes = [write(&files[0]), write(&files[1])];
    let ends = |failing: Option<u64>| {
        if let Some(nth) = failing {
            world.arm(|at| Fault::Once { at, done: false }, nth);
        }
        let ends = write_durably(&*world.platform(), &writes);
        world.disarm();
        ends.iter().map(Result::is_ok).collect::<Vec<_>>()
    };
    assert_eq!(ends(None), [true, true]);
    // Two writes, each with its fsync: the last fsync fails.
    assert_eq!(ends(Some(4)), [false, false]);
    assert_eq!(ends(None), [true, true], "what is written again is durable");
}

#[test]
fn a_file_that_was_being_made_when_an_fsync_failed_gets_no_name() {
    let world = World::new(1);
    let fs = drive(&world);
    let kind = FileKind::Segment { bytes: 1 << 20 };
    let header = FileHeader { kind, array: Id([1; 16]), number: 1, salt: 1, features: Features::default() };
    for fails in [false, true] {
        let mut making = Making::begin(&fs, segment_path(1), &header).unwrap();
        making.fill_to(1 << 20).unwrap();
        if fails {
            fs.fsync_failures().note(Some(libc::EIO));
        }
        let made = making.finish();
        assert_eq!(made.is_ok(), !fails, "{made:?}");
        assert_eq!(fs.unlink(&segment_path(1)).is_ok(), !fails);
    }
}
