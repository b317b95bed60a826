//! The catalog on real directories, and how much it reads.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::engine::platform::Choice;
use crate::engine::{Engine, EngineConfig, EngineKind};
use crate::sys::clock::{Clock, MonotonicClock};
use crate::sys::fs::DriveFs;
use crate::sys::real_fs::{RealFs, tests::scratch};

#[derive(Debug)]
struct Machine;

impl Platform for Machine {
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>> {
        Ok(Arc::new(RealFs::attach(path, create)?))
    }

    fn neighbours(&self, near: &Path) -> Vec<PathBuf> {
        let siblings = near.parent().and_then(|parent| parent.read_dir().ok());
        siblings.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }

    fn choose(&self, _: &dyn DriveFs, _: Handle, _: Option<EngineKind>) -> io::Result<Choice> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn engine(&self, _: EngineKind, _: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(MonotonicClock::default())
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(())
    }

    fn threads(&self) -> bool {
        true
    }
}

fn machine() -> Arc<dyn Platform> {
    Arc::new(Machine)
}

/// Directories for drives in a scratch directory.
fn drives(dir: &Path, count: usize) -> Vec<PathBuf> {
    let drives: Vec<PathBuf> = (0..count).map(|drive| dir.join(format!("d{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    drives
}

#[test]
fn an_array_on_real_directories() {
    let dir = scratch();
    let places = drives(dir.path(), 3);
    let catalog = Catalog::create(&machine(), &places, &[10, 11, 12]).unwrap();
    for name in ["a", "b", "c/d"] {
        let record = catalog.create_file(name, &spec(&[2, 1, 0])).unwrap();
        catalog.open_length(&record).unwrap().publish(7).unwrap();
    }
    catalog.rename("a", "b").unwrap();
    catalog.set_attribute("b", "key", Some("value")).unwrap();
    catalog.delete("c/d").unwrap();
    let before = view(&catalog);
    let locked = Catalog::open(&machine(), &places[1..2], OpenMode::Reader).unwrap_err();
    assert!(matches!(locked, Error::Locked { holder: Some(_), .. }) && locked.to_string().contains("by this process"));
    drop(catalog);
    let twice = Catalog::create(&machine(), &places, &[]).unwrap_err().to_string();
    assert!(twice.contains("already"), "{twice}");
    // The whole array moves, under another path and through a symbolic link.
    let moved = dir.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    places.iter().for_each(|place| std::fs::rename(place, moved.join(place.file_name().unwrap())).unwrap());
    symlink(&moved, dir.path().join("link")).unwrap();
    let catalog = Catalog::open(&machine(), &[dir.path().join("link/d1")], OpenMode::Writer).unwrap();
    assert_eq!((view(&catalog), catalog.epoch()), (before, 2));
    assert_eq!(catalog.open_length(&catalog.record("b").unwrap()).unwrap().current(), 7);
    drop(catalog);
    let report = check(&machine(), &[dir.path().join("link/d0")], false, &|_, _, _| 0).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((report.drives, report.files, report.bytes), (3, 1, 7));
}

#[test]
fn links_in_the_place_of_records_are_refused() {
    let dir = scratch();
    let places = drives(dir.path(), 1);
    let catalog = Catalog::create(&machine(), &places, &[]).unwrap();
    let id = catalog.create_file("a", &spec(&[0])).unwrap().id;
    drop(catalog);
    let record = places[0].join("iomill").join(record_path(&id));
    std::fs::rename(&record, dir.path().join("record")).unwrap();
    symlink(dir.path().join("record"), &record).unwrap();
    let error = Catalog::open(&machine(), &places, OpenMode::Reader).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ELOOP));
    assert!(error.to_string().contains("symbolic links"), "{error}");
}

/// Each record costs one open and one read on each drive, and nothing else grows with the number of files.
#[test]
fn opening_reads_each_record_once_and_no_length() {
    let opened = |files: u32| {
        let (world, catalog) = array(2);
        let template = catalog.record("a").unwrap();
        for number in 0..files {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            let record = Record { id: Id(id), name: format!("many/{number}"), ..(*template).clone() };
            for disk in 0..2 {
                world.put(disk, &record_path(&record.id), Some(&record.to_bytes().unwrap()));
                world.put(disk, &part_path(&record.id), Some(&[1; 5000]));
            }
        }
        drop(catalog);
        [OpenMode::Writer, OpenMode::Reader].map(|mode| {
            let before = world.inner().ops;
            assert_eq!(open(&world, mode).unwrap().list("many/").len() as u32, files);
            world.inner().ops - before
        })
    };
    let (few, many) = (opened(10), opened(110));
    assert_eq!([many[0] - few[0], many[1] - few[1]], [100 * 2 * 2; 2]);
}
