//! Tests of the catalog as a whole, over drives in memory that fail and crash, and over real ones.

mod checking;
mod disk;
mod faults;
mod format;
mod lacks;
mod model;
mod opening;
mod openings;
mod real;
mod syncs;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::sys::fs::Alignment;
use world::World;

/// Names and attributes: what a user sees of the files.
pub(super) type View = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn places(count: usize) -> Vec<PathBuf> {
    (0..count).map(|disk| PathBuf::from(format!("/d{disk}"))).collect()
}

pub(super) fn spec(drives: &[u16]) -> FileSpec {
    FileSpec {
        sums: false,
        layout: crate::layout::Layout::Hash,
        block_bytes: 65536,
        drives: drives.to_vec(),
        key: u64::MAX,
        weights: None,
    }
}

pub(super) fn view(catalog: &Catalog) -> View {
    catalog.records().iter().map(|record| (record.name.clone(), record.attributes.clone())).collect()
}

pub(super) fn open(world: &World, mode: OpenMode) -> Result<Catalog> {
    Catalog::open(&world.platform(), &places(1), mode)
}

pub(super) fn create(world: &World, disks: usize) -> Result<Catalog> {
    Catalog::create(&world.platform(), &places(disks), &[], None)
}

impl Catalog {
    /// A new array for which nothing else is made ready.
    pub(crate) fn create(
        platform: &Arc<dyn Platform>,
        drives: &[PathBuf],
        weights: &[u32],
        copies: Option<usize>,
    ) -> Result<Catalog> {
        Catalog::create_with(platform, drives, weights, copies, |_, _| Ok(())).map(|(catalog, ())| catalog)
    }
}

/// Changes that are durable when they return.
impl Catalog {
    pub(crate) fn create_file(&self, name: &str, spec: &FileSpec) -> Result<Arc<Record>> {
        let number = self.settle(self.queue_create(name, spec)?)?;
        self.numbered(number).ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    pub(crate) fn delete(&self, name: &str) -> Result<u64> {
        self.settle(self.queue_delete(name)?)
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<Option<u64>> {
        self.settle(self.queue_rename(from, to, When::Always)?)
    }

    pub(crate) fn set_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.settle(self.queue_attribute(name, key, value)?)
    }
}

/// Deletes a file that no handle has.
pub(super) fn delete(catalog: &Catalog, name: &str) -> Result<()> {
    catalog.delete(name).map(|number| catalog.remove_if_dying(number))
}

/// Renames a file. No handle has the one that it replaces.
pub(super) fn rename(catalog: &Catalog, from: &str, to: &str) -> Result<()> {
    catalog.rename(from, to).map(|victim| victim.into_iter().for_each(|number| catalog.remove_if_dying(number)))
}

pub(super) fn set_length(catalog: &Catalog, name: &str, length: u64) -> Result<()> {
    catalog.publish(catalog.record(name)?.number, length, None, None)
}

/// An array of `disks` drives with the files `a` and `b`, which hold 5,000 bytes in each part, and have lengths that
/// fit.
pub(super) fn array(disks: usize) -> (World, Catalog) {
    let world = World::new(disks);
    let catalog = create(&world, disks).unwrap();
    let drives: Vec<u16> = (0..disks as u16).collect();
    for name in ["a", "b"] {
        let record = catalog.create_file(name, &spec(&drives)).unwrap();
        catalog.set_attribute(name, "origin", Some(name)).unwrap();
        catalog.announce_parts(record.number).unwrap();
        for disk in 0..disks {
            world.put(disk, &part_path(record.number), Some(&[1; 5000]));
        }
        catalog.publish(record.number, 5000 * disks as u64, None, None).unwrap();
    }
    (world, catalog)
}

/// Checks the array and its parts, which are all as long as `array` made them.
pub(super) fn checked(world: &World, repair: bool) -> Result<Report> {
    let part_extent = |record: &Record, length: u64, _| length / record.drives.len() as u64;
    check(&world.platform(), &places(1), repair, &part_extent, &mut |_, _| ())
}

/// No problem at all, and every file belongs to a live one.
pub(super) fn assert_spotless(world: &World, context: &str) {
    let report = checked(world, false).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.problems.is_empty(), "{context}: {:#?}", report.problems);
}

#[test]
fn a_file_lives_and_dies() {
    let (world, catalog) = array(4);
    assert_eq!(catalog.list(""), ["a", "b"]);
    let record = catalog.create_file("graph/edges", &spec(&[2, 0])).unwrap();
    assert_eq!((record.drives.as_slice(), record.weights.as_slice()), ([2, 0].as_slice(), [10, 10].as_slice()));
    assert!(!record.has_parts && record.number > catalog.record("b").unwrap().number);
    assert!(matches!(catalog.create_file("graph/edges", &spec(&[0])), Err(Error::Exists { .. })));
    assert_eq!(catalog.list("graph/"), ["graph/edges"]);
    assert_eq!(catalog.list("c"), Vec::<String>::new());
    rename(&catalog, "graph/edges", "nodes").unwrap();
    rename(&catalog, "nodes", "nodes").unwrap();
    catalog.set_attribute("nodes", "kind", Some("u32\n")).unwrap();
    rename(&catalog, "a", "b").unwrap();
    assert_eq!(view(&catalog)["b"]["origin"], "a");
    assert!(matches!(catalog.delete("a"), Err(Error::NotFound { .. })));
    let before = view(&catalog);
    catalog.close().unwrap();
    assert!(matches!(catalog.delete("b"), Err(Error::Closed)));
    catalog.close().unwrap();
    drop(catalog);
    assert_spotless(&world, "closed");
    let catalog = open(&world, OpenMode::Writer).unwrap();
    assert_eq!(view(&catalog), before);
    assert_eq!(catalog.notices().all(), Vec::<String>::new());
    for name in catalog.list("") {
        delete(&catalog, &name).unwrap();
    }
    for disk in 0..4 {
        assert_eq!(world.names(disk, "parts"), Vec::<String>::new());
    }
    drop(catalog);
    assert_eq!(world.open_files(), 0);
}

#[test]
fn arguments_are_refused_before_anything_is_made() {
    let (world, catalog) = array(2);
    let refused = |name: &str, spec: &FileSpec| {
        assert!(matches!(catalog.create_file(name, spec), Err(Error::Invalid { .. })), "{name:?} {spec:?}");
    };
    refused("../a", &spec(&[0]));
    refused("x", &spec(&[]));
    refused("x", &spec(&[0, 0]));
    refused("x", &spec(&[2]));
    refused("x", &FileSpec { block_bytes: 0, ..spec(&[0]) });
    refused("x", &FileSpec { block_bytes: 5000, ..spec(&[0]) });
    assert!(matches!(catalog.rename("a", "a/"), Err(Error::Invalid { .. })));
    assert!(matches!(catalog.set_attribute("a", "", Some("")), Err(Error::Invalid { .. })));
    let long = "x".repeat(64 << 10);
    assert!(matches!(catalog.set_attribute("a", "k", Some(&long)), Err(Error::Invalid { .. })));
    assert!(matches!(catalog.record("x"), Err(Error::NotFound { .. })));
    drop(catalog);
    assert_spotless(&world, "nothing was made");
    let create =
        |drives: &[PathBuf], weights: &[u32]| Catalog::create(&World::new(3).platform(), drives, weights, None);
    assert!(matches!(create(&[], &[]), Err(Error::Invalid { .. })));
    assert!(matches!(create(&places(2), &[1]), Err(Error::Invalid { .. })));
    assert!(matches!(create(&places(2), &[1, 0]), Err(Error::Invalid { .. })));
    assert!(matches!(create(&places(2), &[1, 1001]), Err(Error::Invalid { .. })));
    assert!(matches!(create(&places(257), &[]), Err(Error::Invalid { .. })));
    assert_eq!(create(&places(2), &[1, 1000]).unwrap().drives()[1].weight, 1000);
    let copies = |copies| Catalog::create(&World::new(4).platform(), &places(4), &[], copies);
    assert!(
        matches!(copies(Some(0)), Err(Error::Invalid { .. })) && matches!(copies(Some(4)), Err(Error::Invalid { .. }))
    );
    assert_eq!((copies(Some(1)).unwrap().voters(), copies(None).unwrap().voters()), (vec![0], vec![0, 1, 2]));
}

#[test]
fn readers_change_nothing() {
    let (world, catalog) = array(2);
    drop(catalog);
    let reader = open(&world, OpenMode::Reader).unwrap();
    let peek = open(&world, OpenMode::Peek).unwrap();
    for catalog in [&reader, &peek] {
        assert!(matches!(catalog.delete("a"), Err(Error::ReadOnly { .. })));
        assert_eq!(catalog.record("a").unwrap().length, 10_000);
        assert!(matches!(set_length(catalog, "a", 1), Err(Error::ReadOnly { .. })));
    }
    assert_eq!(reader.lock_handles().len(), 2);
    assert_eq!(peek.lock_handles().len(), 0);
}

/// Pages that had a file do not read as zero, also where their next file began before the first page that no file had.
#[test]
fn pages_that_had_a_file_are_never_said_to_be_zero() {
    let (_world, catalog) = array(2);
    let first = catalog.give_pages(0, 1, Alignment::NONE).unwrap();
    assert!(first.is_zero);
    catalog.take_pages_back(first.extent);
    let across = catalog.give_pages(0, 4, Alignment::NONE).unwrap();
    assert_eq!((across.extent.page, across.is_zero), (first.extent.page, false));
    catalog.take_pages_back(across.extent);
    let again = catalog.give_pages(0, 1, Alignment::NONE).unwrap();
    let behind = catalog.give_pages(0, 3, Alignment::NONE).unwrap();
    assert_eq!((again.extent.page, behind.extent.page), (first.extent.page, first.extent.page + 1));
    assert!(!again.is_zero && !behind.is_zero);
    assert!(catalog.give_pages(0, 1, Alignment::NONE).unwrap().is_zero, "no file had the page behind them");
}

/// Two callers find a deleted file closed before its deletion is durable. It is removed once, and its pages are free
/// once.
#[test]
fn a_deleted_file_is_removed_once() {
    let (world, mut catalog) = array(2);
    catalog.set_syncs_changes(false);
    let given = catalog.give_pages(0, 2, crate::sys::fs::Alignment::NONE).unwrap().extent;
    let small = catalog.create_file("small", &spec(&[0])).unwrap().number;
    catalog.publish(small, 5000, Some(given), None).unwrap();
    for name in ["small", "a"] {
        let number = catalog.delete(name).unwrap();
        catalog.remove_if_dying(number);
        catalog.remove_if_dying(number);
    }
    catalog.sync_changes().unwrap();
    assert_eq!(catalog.unnamed_pages(), 0);
    drop(catalog);
    let catalog = open(&world, OpenMode::Writer).unwrap();
    assert_eq!(catalog.list(""), ["b"]);
    catalog.close().unwrap();
    assert_spotless(&world, "both are gone");
}
