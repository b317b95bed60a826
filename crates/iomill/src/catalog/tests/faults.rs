//! Each change under every fault: any one operation fails, a drive dies, a crash at any operation. Each crash is also
//! followed by a second one in the middle of the recovery.

use super::world::{Fault, Loss};
use super::*;

struct NamedChange {
    name: &'static str,
    run: fn(&Catalog) -> Result<()>,
}

const CHANGES: &[NamedChange] = &[
    NamedChange { name: "create", run: |catalog| catalog.create_file("c", &spec(&[1, 2])).map(drop) },
    NamedChange { name: "delete", run: |catalog| delete(catalog, "a") },
    NamedChange { name: "rename", run: |catalog| rename(catalog, "a", "c") },
    NamedChange { name: "rename over", run: |catalog| rename(catalog, "a", "b") },
    NamedChange {
        name: "length",
        run: |catalog| set_length(catalog, "a", 15_001).and_then(|()| set_length(catalog, "a", 15_000)),
    },
    NamedChange { name: "attribute", run: |catalog| catalog.set_attribute("a", "k", Some("v")) },
];

const LOSSES: &[Loss] = &[Loss::Kill, Loss::Power, Loss::Mix(1), Loss::Mix(2)];

const DISKS: usize = 3;

/// The array that all changes start from, closed and durable.
fn start() -> World {
    let (world, catalog) = array(DISKS);
    drop(catalog);
    world
}

fn before_and_after(start: &World, change: &NamedChange) -> (View, View) {
    let catalog = open(&start.fork(), OpenMode::Writer).unwrap();
    let before = view(&catalog);
    (change.run)(&catalog).unwrap();
    (before, view(&catalog))
}

/// Opens for writing, compares, closes, and looks for remaining traces.
fn assert_reopens(world: &World, allowed: &[&View], context: &str) {
    let catalog = open(world, OpenMode::Writer).unwrap_or_else(|error| panic!("{context}: {error}"));
    let found = view(&catalog);
    assert!(allowed.contains(&&found), "{context}: {found:?}, allowed were {allowed:?}");
    for record in catalog.records() {
        let expected = if record.name == "c" && record.attributes.is_empty() { 0 } else { 5000 * DISKS as u64 };
        let is_between = record.name == "a" && context.starts_with("length") && record.length == 15_001;
        assert!(record.length == expected || is_between, "{context}: {}", record.length);
    }
    assert_eq!(catalog.voters(), [0, 1, 2], "{context}");
    catalog.close().unwrap();
    assert_spotless(world, context);
}

/// Runs a change under a fault at its `k`th operation. `None` if it has fewer operations.
fn run_with(
    start: &World,
    change: &NamedChange,
    k: u64,
    fault: impl FnOnce(u64) -> Fault,
) -> Option<(World, Catalog, Result<()>)> {
    let world = start.fork();
    let catalog = open(&world, OpenMode::Writer).unwrap();
    world.arm(fault, k);
    let result = (change.run)(&catalog);
    world.disarm().then_some((world, catalog, result))
}

#[test]
fn any_operation_may_fail() {
    let start = start();
    for change in CHANGES {
        let (_, after) = before_and_after(&start, change);
        for (done, loss) in [false, true].into_iter().flat_map(|done| LOSSES.iter().map(move |&loss| (done, loss))) {
            for k in 1.. {
                let context = format!("{} with operation {k} failing, done {done}, then {loss:?}", change.name);
                let Some((world, catalog, result)) = run_with(&start, change, k, |at| Fault::Once { at, done }) else {
                    assert!(k > 6, "{context}");
                    break;
                };
                // Two more copies go on.
                result.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(view(&catalog), after, "{context}");
                if loss == LOSSES[0] {
                    // The catalog takes further changes.
                    catalog.create_file("later", &spec(&[0])).unwrap_or_else(|error| panic!("{context}: {error}"));
                    delete(&catalog, "later").unwrap();
                }
                world.crash(loss);
                drop(catalog);
                assert_reopens(&world, &[&after], &context);
            }
        }
    }
}

/// A drive that dies is left behind. Nothing that was acknowledged is lost, and its copy comes back with the next
/// writer.
#[test]
fn a_drive_may_die() {
    let start = start();
    for change in CHANGES {
        let (_, after) = before_and_after(&start, change);
        for disk in 0..DISKS {
            for k in 1.. {
                let context = format!("{} with drive {disk} dying at operation {k}", change.name);
                let Some((world, catalog, result)) = run_with(&start, change, k, |at| Fault::Dead { at, disk }) else {
                    break;
                };
                result.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(view(&catalog), after, "{context}");
                world.crash(Loss::Power);
                drop(catalog);
                let seen = view(&open(&world, OpenMode::Reader).unwrap());
                assert_eq!(seen, after, "{context}");
                assert_reopens(&world, &[&after], &context);
            }
        }
    }
}

/// Without a copy of the log that can be written the outcome is not known, and no name is believed any more.
#[test]
fn without_a_copy_the_outcome_is_unknown() {
    let start = {
        let (world, catalog) = array(1);
        catalog.close().unwrap();
        world
    };
    let (mut unknown, all) = (0, [("delete", "b"), ("rename", "c")]);
    for (what, name) in all {
        for k in 1.. {
            let context = format!("{what}, operation {k}");
            let world = start.fork();
            let catalog = open(&world, OpenMode::Writer).unwrap();
            world.arm(|at| Fault::Dead { at, disk: 0 }, k);
            let result = if what == "delete" { catalog.delete(name).map(drop) } else { rename(&catalog, "a", name) };
            if !world.disarm() {
                break;
            }
            if let Err(Error::OutcomeUnknown { .. }) = result {
                assert!(matches!(catalog.record("a"), Err(Error::ReadOnly { .. })), "{context}");
                assert!(matches!(catalog.delete("a"), Err(Error::ReadOnly { .. })), "{context}");
                unknown += 1;
            }
            world.crash(Loss::Mix(k));
            drop(catalog);
            let names = open(&world, OpenMode::Writer).unwrap().list("");
            let after = if what == "delete" { ["a"].as_slice() } else { &["b", "c"] };
            assert!(names == after || (result.is_err() && names == ["a", "b"]), "{context}: {names:?}");
        }
    }
    assert!(unknown > 2, "{unknown}");
}

#[test]
fn a_crash_may_come_at_any_operation() {
    let start = start();
    for change in CHANGES {
        let (before, after) = before_and_after(&start, change);
        for &loss in LOSSES {
            for k in 1.. {
                let context = format!("{} with a crash at operation {k}, {loss:?}", change.name);
                let Some((world, catalog, result)) = run_with(&start, change, k, |at| Fault::Crash { at }) else {
                    break;
                };
                world.crash(loss);
                drop(catalog);
                let allowed: &[&View] = if result.is_ok() { &[&after] } else { &[&before, &after] };
                assert_reopens(&world, allowed, &context);
            }
        }
    }
}

#[test]
fn recovery_may_crash_too() {
    let start = start();
    for change in CHANGES {
        let (before, after) = before_and_after(&start, change);
        for (first, second) in [(Loss::Kill, Loss::Power), (Loss::Mix(7), Loss::Mix(8)), (Loss::Kill, Loss::Mix(9))] {
            for k in (1..).step_by(5) {
                let Some((crashed, catalog, result)) = run_with(&start, change, k, |at| Fault::Crash { at }) else {
                    break;
                };
                crashed.crash(first);
                drop(catalog);
                for j in (1 + k % 31..).step_by(31) {
                    let context = format!("{}: crash at {k}, {first:?}, again at {j}, {second:?}", change.name);
                    let world = crashed.fork();
                    world.arm(|at| Fault::Crash { at }, j);
                    let opened = open(&world, OpenMode::Writer);
                    let struck = world.disarm();
                    // Once a reader has seen the outcome, it never changes.
                    let seen = opened.as_ref().ok().map(view);
                    world.crash(second);
                    drop(opened);
                    match &seen {
                        Some(seen) => assert_reopens(&world, &[seen], &context),
                        None if result.is_ok() => assert_reopens(&world, &[&after], &context),
                        None => assert_reopens(&world, &[&before, &after], &context),
                    }
                    if !struck {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn init_may_fail_or_crash_anywhere() {
    for loss in LOSSES {
        for crash in [true, false] {
            for k in 1.. {
                let context = format!("init, operation {k}, crash {crash}, {loss:?}");
                let world = World::new(DISKS);
                world.arm(|at| if crash { Fault::Crash { at } } else { Fault::Once { at, done: k % 2 == 0 } }, k);
                let made = create(&world, DISKS);
                if !world.disarm() {
                    break;
                }
                let acknowledged = made.is_ok();
                if !crash && let Err(error) = &made {
                    assert!(matches!(error, Error::Io { .. }), "{context}: {error}");
                    let opened = open(&world, OpenMode::Writer).map(drop);
                    assert!(opened.is_err(), "{context}: the array is there after {error}");
                }
                world.crash(*loss);
                drop(made);
                // Either it is an array, or the same command turns it into one.
                let catalog = match open(&world, OpenMode::Writer) {
                    Ok(catalog) => catalog,
                    Err(error) => {
                        assert!(!acknowledged, "{context}: {error}");
                        create(&world, DISKS).unwrap_or_else(|error| panic!("{context}: {error}"))
                    }
                };
                catalog.create_file("a", &spec(&[0, 1, 2])).unwrap();
                world.crash(Loss::Power);
                drop(catalog);
                assert_eq!(open(&world, OpenMode::Writer).unwrap().list(""), ["a"], "{context}");
                assert_spotless(&world, &context);
            }
        }
    }
}

/// A length that a call has acknowledged is there after a crash, and the outcome of another one does not change after
/// it was seen.
#[test]
fn a_length_is_durable_when_it_is_acknowledged() {
    let start = start();
    for &loss in LOSSES {
        for k in 1.. {
            let context = format!("operation {k}, {loss:?}");
            let world = start.fork();
            let catalog = open(&world, OpenMode::Writer).unwrap();
            world.arm(|at| Fault::Crash { at }, k);
            let result = set_length(&catalog, "a", 6000);
            if !world.disarm() {
                break;
            }
            world.crash(loss);
            drop(catalog);
            let catalog = open(&world, OpenMode::Writer).unwrap();
            let seen = catalog.record("a").unwrap().length;
            assert!(seen == 6000 || (result.is_err() && seen == 15_000), "{context}: {seen}");
            world.crash(Loss::Power);
            drop(catalog);
            assert_eq!(open(&world, OpenMode::Reader).unwrap().record("a").unwrap().length, seen, "{context}");
        }
    }
}

#[test]
fn a_full_drive_refuses_changes_and_can_be_emptied() {
    let (world, catalog) = array(DISKS);
    {
        let mut inner = world.inner();
        let used = inner.disks[1].used_bytes();
        inner.disks[1].capacity_bytes = Some(used);
    }
    let mut made = 0;
    let error = loop {
        match catalog.create_file(&format!("full/{made:0500}"), &spec(&[0, 1, 2])) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 5000, "the drive is never full");
    };
    assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
    assert!(error.to_string().contains("/iomill/log"), "{error}");
    assert!(made > 0);
    let refused = catalog.rename("a", "c").unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ENOSPC), "{refused}");
    assert_eq!(catalog.list("").len(), made + 2);
    for name in catalog.list("") {
        delete(&catalog, &name).unwrap();
    }
    assert_eq!(catalog.list(""), Vec::<String>::new());
    catalog.close().unwrap();
    drop(catalog);
    let catalog = open(&world, OpenMode::Writer).unwrap();
    catalog.create_file("c", &spec(&[0, 1, 2])).unwrap();
    catalog.close().unwrap();
    assert_spotless(&world, "emptied");
}

#[test]
fn a_read_only_file_system_says_so() {
    let (world, catalog) = array(DISKS);
    drop(catalog);
    world.inner().disks[2].read_only = true;
    let error = open(&world, OpenMode::Writer).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EROFS));
    assert!(error.to_string().contains("/d2/iomill/lock"), "{error}");
    assert_eq!(open(&world, OpenMode::Reader).unwrap().list(""), ["a", "b"]);
}
