//! Damage in a run: to files of drives and indexes, and to whole drives. The cache finds all of it by itself.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use super::program::{HANDS, Step};
use super::world::World;
use crate::notices::locked;

fn data(drive: &Path) -> PathBuf {
    drive.join("iomill-origin/data")
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Flips some bits of a file.
fn flip(path: &Path, seed: u64) {
    let (file, mut rng) = (open(path), fastrand::Rng::with_seed(seed));
    let len = file.metadata().unwrap().len();
    for _ in 0..1 << rng.u32(..10) {
        let (at, mut byte) = (rng.u64(..len), [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << rng.u32(..8);
        file.write_all_at(&byte, at).unwrap();
    }
}

/// The files of the index, in an order of their own.
fn indexes(world: &World) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(world.index_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// After a crash of the machine: some of the last pages have their earlier bytes, and memory is empty.
pub fn lose_pages(world: &mut World, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let pages = std::mem::take(&mut *locked(&world.unsynced));
    let share = rng.u32(..100);
    for page in pages.iter().rev().filter(|_| rng.u32(..100) < share) {
        // The file of a drive that is away, or was exchanged, may be shorter.
        if page.path.exists() {
            open(&page.path).write_all_at(&page.bytes, page.offset).unwrap();
        }
    }
    indexes(world).iter().for_each(|file| fs::remove_file(file).unwrap());
}

pub fn step(world: &mut World, step: &Step) {
    world.knows_pins = false;
    let drives = world.drives();
    match step {
        Step::FlipData { drive, seed } if world.away != Some(*drive) => flip(&data(&drives[*drive]), *seed),
        Step::FlipIndex { drive, seed } => {
            let files = indexes(world);
            flip(&files[drive % files.len()], *seed);
            world.may_be_split = true;
        }
        Step::Cut { drive, seed } if world.away != Some(*drive) => {
            let file = open(&data(&drives[*drive]));
            let len = file.metadata().unwrap().len();
            file.set_len(fastrand::Rng::with_seed(*seed).u64(..=len)).unwrap();
        }
        Step::FlipLabel { drive, seed } if drives.len() > 1 && world.away.is_none() && world.label.is_none() => {
            world.close_all();
            let path = drives[*drive].join("iomill-origin/label");
            let (label, mut rng) = (fs::read(&path).unwrap(), fastrand::Rng::with_seed(*seed));
            let mut flipped = label.clone();
            flipped[rng.usize(..label.len() - 1)] ^= 1 << rng.u32(..8);
            fs::write(&path, flipped).unwrap();
            world.label = Some((*drive, label));
            world.open_all();
        }
        Step::Exchange { data_only } if drives.len() > 1 && world.away.is_none() && world.label.is_none() => {
            world.close_all();
            let spare = world.dir.path().join("spare");
            let [one, two] = match data_only {
                true => [data(&drives[0]), data(&drives[1])],
                false => [drives[0].clone(), drives[1].clone()],
            };
            fs::rename(&one, &spare).unwrap();
            fs::rename(&two, &one).unwrap();
            fs::rename(&spare, &two).unwrap();
            world.open_all();
        }
        Step::Save { drive } if world.away != Some(*drive) => {
            world.saved.insert(*drive, fs::read(data(&drives[*drive])).unwrap());
        }
        Step::Restore { drive } if world.away != Some(*drive) => {
            if let Some(bytes) = world.saved.get(drive) {
                open(&data(&drives[*drive])).write_all_at(bytes, 0).unwrap();
            }
        }
        Step::Away { drive, leaves_place } if drives.len() > 1 && world.away.is_none() && world.label.is_none() => {
            world.close_all();
            fs::rename(&drives[*drive], world.dir.path().join("away")).unwrap();
            if *leaves_place {
                fs::create_dir(&drives[*drive]).unwrap();
            }
            world.away = Some(*drive);
            world.open_all();
        }
        Step::Back => back(world, &drives),
        Step::FailWrites { drive, errno, count } => fail_writes(world, *drive, *errno, *count),
        Step::AllocatesNothing(on) => {
            world.allocates_nothing = *on;
            for hand in world.hands.iter().flatten() {
                let drives = &hand.cache.here().unwrap().drives;
                drives.iter().for_each(|drive| drive.faults.allocates_nothing.store(*on, Relaxed));
            }
        }
        // The drive is not there.
        _ => {}
    }
}

/// All drives are mounted and have their labels again.
fn back(world: &mut World, drives: &[PathBuf]) {
    if world.away.is_none() && world.label.is_none() {
        return;
    }
    world.close_all();
    if let Some(drive) = world.away.take() {
        let _none_was_left = fs::remove_dir(&drives[drive]);
        fs::rename(world.dir.path().join("away"), &drives[drive]).unwrap();
    }
    if let Some((drive, label)) = world.label.take() {
        fs::write(drives[drive].join("iomill-origin/label"), label).unwrap();
    }
    world.open_all();
}

fn fail_writes(world: &World, drive: usize, errno: Errno, count: u32) {
    for hand in (0..HANDS).map(|hand| world.hand(hand)) {
        if let Some(drive) = hand.cache.here().unwrap().drives.get(drive) {
            *locked(&drive.faults.failing) = Some((errno, count));
        }
    }
}
