//! What a sync of all changes covers: each change that can be seen when it begins.

use super::super::log::record::LogRecord;
use super::world::Loss;
use super::*;

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
