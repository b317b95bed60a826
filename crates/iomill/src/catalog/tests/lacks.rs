//! What passes: a process without descriptors, a machine without memory. No drive is at fault then. And what callers of
//! one group hear.

use super::world::Fault;
use super::*;

const LACKS: [i32; 2] = [libc::EMFILE, libc::ENFILE];

/// Sets attributes until one fails. Returns how many did not, and the error.
fn change_until_refused(catalog: &Catalog, most: usize) -> (usize, Error) {
    let value = "v".repeat(3000);
    for done in 0..most {
        if let Err(error) = catalog.set_attribute("a", &format!("k{}", done % 9), Some(&format!("{done} {value}"))) {
            return (done, error);
        }
    }
    panic!("no change needed a descriptor");
}

/// Without descriptors a change that needs one is refused before anything of it is applied, and no copy of the log is
/// left behind.
#[test]
fn changes_fail_and_copies_stay_where_there_are_no_descriptors() {
    for (lack, disks) in LACKS.into_iter().flat_map(|lack| [(lack, 1), (lack, 3)]) {
        let (world, catalog) = array(disks);
        for round in 0..4 {
            world.inner().no_descriptors = Some(lack);
            // More than a segment, so that another must be made.
            let (done, error) = change_until_refused(&catalog, 2000);
            assert!(done > 0 && error.errno() == Some(lack), "round {round}, after {done}: {error}");
            assert!(!matches!(error, Error::OutcomeUnknown { .. }), "{error}");
            let before = view(&catalog);
            assert_eq!(catalog.set_attribute("b", "k", Some("refused")).unwrap_err().errno(), Some(lack));
            assert_eq!(delete(&catalog, "b").unwrap_err().errno(), Some(lack));
            assert_eq!(view(&catalog), before, "a change that was refused is seen");
            world.inner().no_descriptors = None;
            assert_eq!(catalog.voters().len(), disks, "a copy was left behind");
            catalog.set_attribute("b", "k", Some(&format!("round {round}"))).unwrap();
        }
        let wanted = view(&catalog);
        world.crash(super::world::Loss::Power);
        drop(catalog);
        let catalog = open(&world, OpenMode::Writer).unwrap();
        assert_eq!((view(&catalog), catalog.voters().len()), (wanted, disks));
        assert_eq!(catalog.notices().all(), Vec::<String>::new());
    }
}

/// A checkpoint that finds no descriptors is put off, and no copy is left behind for it.
#[test]
fn a_checkpoint_waits_for_descriptors() {
    let (world, catalog) = array(3);
    // Changes that fit into the segments that are there, while checkpoints are tried.
    for _ in 0..40 {
        world.inner().no_descriptors = Some(libc::EMFILE);
        let (_, error) = change_until_refused(&catalog, 20_000);
        assert_eq!(error.errno(), Some(libc::EMFILE));
        world.inner().no_descriptors = None;
        for at in 0..200 {
            catalog.set_attribute("b", &format!("k{}", at % 20), Some(&format!("{at}{}", "x".repeat(3000)))).unwrap();
        }
    }
    assert_eq!(catalog.voters(), [0, 1, 2]);
    catalog.close().unwrap();
    assert_spotless(&world, "after lacks");
}

/// An opening that finds no descriptor at some operation is refused, or does without. It leaves no copy behind.
#[test]
fn an_opening_without_descriptors_leaves_no_copy_behind() {
    let (world, catalog) = array(3);
    drop(catalog);
    world.crash(super::world::Loss::Kill);
    for at in 0.. {
        let world = world.fork();
        world.inner().lacks_after = (at, 1 + at % 3);
        let opened = open(&world, OpenMode::Writer);
        let has_struck = world.inner().lacks_after.0 == 0;
        world.inner().lacks_after = (0, 0);
        if let Ok(catalog) = &opened {
            assert_eq!(catalog.voters(), [0, 1, 2], "operation {at}");
        }
        let is_done = !has_struck;
        drop(opened);
        let catalog = open(&world, OpenMode::Writer).unwrap();
        assert_eq!((catalog.voters(), catalog.list("")), (vec![0, 1, 2], vec!["a".to_owned(), "b".to_owned()]), "{at}");
        if is_done {
            assert!(at > 30, "an opening takes more calls than {at}");
            break;
        }
    }
}

/// A write to one copy or to all finds no memory, a few times or many. The copies stay, and a group that a copy may
/// have is written again before any other.
#[test]
fn a_group_that_finds_no_memory_is_put_off() {
    for (times, of) in [(1, Some(1)), (5, Some(2)), (9, None), (200, Some(0)), (200, None)] {
        let (world, catalog) = array(3);
        world.inner().no_memory = (times, of);
        let changed = catalog.set_attribute("a", "k", Some("first"));
        let is_put_off = times > 100;
        match changed {
            Ok(()) => assert!(!is_put_off),
            Err(error) => {
                assert!(is_put_off && matches!(error, Error::OutcomeUnknown { .. }), "{times} {of:?}: {error}");
                assert_eq!(error.errno(), Some(libc::ENOMEM));
            }
        }
        assert_eq!(catalog.voters(), [0, 1, 2], "{times} {of:?}: a copy was left behind");
        let world_of_crash = world.fork();
        world_of_crash.inner().no_memory = (0, None);
        // A crash now has the group, or it does not.
        let reopened = open(&world_of_crash, OpenMode::Writer).unwrap();
        assert_eq!(reopened.voters(), [0, 1, 2]);
        drop(reopened);
        world.inner().no_memory = (0, None);
        catalog.set_attribute("b", "k", Some("second")).unwrap();
        let wanted = view(&catalog);
        assert_eq!((wanted["a"]["k"].as_str(), wanted["b"]["k"].as_str()), ("first", "second"));
        world.crash(super::world::Loss::Power);
        drop(catalog);
        let catalog = open(&world, OpenMode::Writer).unwrap();
        assert_eq!((view(&catalog), catalog.voters()), (wanted, vec![0, 1, 2]), "{times} {of:?}");
        assert_eq!(catalog.notices().all(), Vec::<String>::new());
        catalog.close().unwrap();
        assert_spotless(&world, "put off");
    }
}

/// Changes that are made while there is no memory are all there later: each in a group of its own, also where the log
/// goes on in another segment.
#[test]
fn all_groups_that_were_put_off_come_later() {
    let (world, catalog) = array(3);
    let value = "v".repeat(3000);
    // More than two segments.
    for round in 0..120 {
        world.inner().no_memory = (u32::MAX, None);
        for at in 0..3 {
            let error = catalog.set_attribute("a", &format!("k{at}"), Some(&format!("{round}{value}"))).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOMEM), "round {round}");
        }
        world.inner().no_memory = (0, None);
        catalog.sync_changes().unwrap();
        let (wanted, forked) = (view(&catalog), world.fork());
        assert!((0..3).all(|at| wanted["a"][&format!("k{at}")] == format!("{round}{value}")), "round {round}");
        forked.crash(super::world::Loss::Power);
        let reopened = open(&forked, OpenMode::Reader).unwrap();
        assert_eq!(view(&reopened), wanted, "round {round}");
    }
    assert_eq!(catalog.voters(), [0, 1, 2]);
    catalog.close().unwrap();
    assert_spotless(&world, "put off again and again");
}

/// Labels that leave a copy behind find no descriptors. The group waits for them: until they are durable the old ones
/// name that copy (C13).
#[test]
fn labels_that_leave_a_copy_behind_wait_for_descriptors() {
    let (world, catalog) = array(3);
    let labels = |world: &World| [0, 2].map(|disk| world.read(disk, "label"));
    let before = labels(&world);
    world.arm(|at| Fault::Dead { at, disk: 1 }, 0);
    world.inner().no_descriptors = Some(libc::EMFILE);
    let error = catalog.set_attribute("a", "k", Some("first")).unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }) && error.errno() == Some(libc::EMFILE), "{error}");
    assert_eq!(labels(&world), before);
    world.inner().no_descriptors = None;
    catalog.set_attribute("b", "k", Some("second")).unwrap();
    assert_eq!(catalog.voters(), [0, 2]);
    assert!(labels(&world).iter().zip(&before).all(|(label, before)| label != before), "the labels name a lost copy");
    let wanted = view(&catalog);
    assert_eq!((wanted["a"]["k"].as_str(), wanted["b"]["k"].as_str()), ("first", "second"));
    world.crash(super::world::Loss::Power);
    drop(catalog);
    world.disarm();
    assert_eq!(view(&open(&world, OpenMode::Writer).unwrap()), wanted);
}

/// Parts of a deleted file go with the next change, if the process lacked a descriptor at first.
#[test]
fn parts_of_deleted_files_wait_for_descriptors() {
    let (world, catalog) = array(2);
    let number = catalog.delete("a").unwrap();
    world.inner().no_descriptors = Some(libc::EMFILE);
    catalog.remove_if_dying(number);
    assert_eq!(world.names(0, "parts").len(), 2);
    world.inner().no_descriptors = None;
    catalog.set_attribute("b", "k", Some("v")).unwrap();
    assert_eq!(world.names(0, "parts").len(), 1);
    catalog.close().unwrap();
    drop(catalog);
    assert_spotless(&world, "removed");
}

/// All callers of a group that fails hear that the outcome is not known: their changes may be on a drive. Later callers
/// hear that nothing was done.
#[test]
fn all_callers_of_a_failed_group_hear_that_its_outcome_is_unknown() {
    for done in [false, true] {
        let (world, catalog) = array(1);
        let first = catalog.queue_attribute("a", "k", Some("1")).unwrap();
        let follower = catalog.queue_attribute("b", "k", Some("2")).unwrap();
        let renamed = catalog.queue_rename("b", "c", When::Always).unwrap();
        // The fsync of the group fails.
        world.arm(|at| Fault::Once { at, done }, 3);
        assert!(matches!(catalog.settle(first), Err(Error::OutcomeUnknown { .. })));
        assert!(world.disarm());
        let heard = catalog.settle(follower).unwrap_err();
        assert!(matches!(heard, Error::OutcomeUnknown { .. }), "{heard}");
        assert!(heard.to_string().contains("/d0"), "{heard}");
        assert!(matches!(catalog.settle(renamed), Err(Error::OutcomeUnknown { .. })));
        assert!(matches!(catalog.sync_changes(), Err(Error::OutcomeUnknown { .. })));
        let later = catalog.set_attribute("a", "k", Some("3")).unwrap_err();
        assert!(matches!(later, Error::ReadOnly { .. }), "{later}");
        assert!(matches!(catalog.delete("a"), Err(Error::ReadOnly { .. })));
        world.crash(super::world::Loss::Kill);
        drop(catalog);
        // They happened, as the kernel has the group.
        let names = open(&world, OpenMode::Reader).unwrap().list("");
        assert_eq!(names, ["a", "c"]);
    }
}
