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
    let catalog = Catalog::create(&machine(), &places, &[10, 11, 12], None).unwrap();
    for name in ["a", "b", "c/d"] {
        let record = catalog.create_file(name, &spec(&[2, 1, 0])).unwrap();
        catalog.publish(record.number, 7, None, None).unwrap();
    }
    rename(&catalog, "a", "b").unwrap();
    catalog.set_attribute("b", "key", Some("value")).unwrap();
    delete(&catalog, "c/d").unwrap();
    let before = view(&catalog);
    let locked = Catalog::open(&machine(), &places[1..2], OpenMode::Reader).unwrap_err();
    assert!(matches!(locked, Error::Locked { holder: Some(_), .. }) && locked.to_string().contains("by this process"));
    drop(catalog);
    let twice = Catalog::create(&machine(), &places, &[], None).unwrap_err();
    assert!(matches!(twice, Error::ArrayExists { .. }) && twice.to_string().contains("already"), "{twice}");
    // The whole array moves, under another path and through a symbolic link.
    let moved = dir.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    places.iter().for_each(|place| std::fs::rename(place, moved.join(place.file_name().unwrap())).unwrap());
    symlink(&moved, dir.path().join("link")).unwrap();
    let catalog = Catalog::open(&machine(), &[dir.path().join("link/d1")], OpenMode::Writer).unwrap();
    assert_eq!((view(&catalog), catalog.epoch()), (before, 2));
    assert_eq!(catalog.record("b").unwrap().length, 7);
    catalog.close().unwrap();
    let report = check(&machine(), &[dir.path().join("link/d0")], false, &|_, _, _| 0, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((report.drives, report.files, report.bytes), (3, 1, 7));
}

#[test]
fn links_in_the_place_of_the_log_are_refused() {
    let dir = scratch();
    let places = drives(dir.path(), 1);
    let catalog = Catalog::create(&machine(), &places, &[], None).unwrap();
    catalog.create_file("a", &spec(&[0])).unwrap();
    catalog.close().unwrap();
    let segment = places[0].join("iomill/log/0000000000000001.segment");
    std::fs::rename(&segment, dir.path().join("segment")).unwrap();
    symlink(dir.path().join("segment"), &segment).unwrap();
    let error = Catalog::open(&machine(), &places, OpenMode::Reader).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ELOOP));
    assert!(error.to_string().contains("symbolic links"), "{error}");
}

/// The number of files changes only how many blocks of the log are read.
#[test]
fn opening_looks_at_no_file() {
    let opened = |files: u32| {
        let (world, catalog) = array(2);
        for number in 0..files {
            let record = catalog.create_file(&format!("many/{number}"), &spec(&[0, 1])).unwrap();
            world.put(0, &part_path(record.number), Some(&[1; 5000]));
        }
        catalog.close().unwrap();
        [OpenMode::Writer, OpenMode::Reader].map(|mode| {
            let before = world.inner().ops;
            assert_eq!(open(&world, mode).unwrap().list("many/").len() as u32, files);
            world.inner().ops - before
        })
    };
    // All fit into the first segment of a test.
    let (few, many) = (opened(0), opened(2));
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= few, "{few} operations with no file, and {many} with 2");
    }
}
