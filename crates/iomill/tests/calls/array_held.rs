//! A closed array holds no drive: the drives' file systems can be unmounted.

use std::sync::mpsc;
use std::thread;

use iomill::{Array, ArrayOptions, EngineKind, Error, FileOptions, Request, Tuning};

use super::disks::{Disk, skipped};
use super::{PAGE, random};
use crate::executor::block_on;

const LEN: usize = 3 << 20;

/// The number of unmounts, each a process, in which the kernel drops the references of ended requests. After a mere
/// close of a ring it takes about a hundred.
const TRIES: usize = 10;

/// One thread that used the array has ended. Others live on, and the kernel takes down their rings later.
#[test]
fn nothing_holds_the_drives_of_a_closed_array() {
    alone!();
    let Some(disk) = Disk::ext4(64, &[]) else { return skipped("no ext4 on a loop device here") };
    ArrayOptions::new().create([disk.path()]).unwrap().close().unwrap();
    for engine in
        [None, Some(EngineKind::Uring), Some(EngineKind::Aio), Some(EngineKind::Posix), Some(EngineKind::Mmap)]
    {
        for drive_threads in [false, true] {
            for read_only in [false, true] {
                let about = format!("{engine:?} drive threads {drive_threads}, read only {read_only}");
                let options = ArrayOptions::new()
                    .cache_bytes(1 << 20)
                    .tuning(Tuning::new().drive_threads(drive_threads))
                    .read_only(read_only);
                let options = engine.map_or(options.clone(), |engine| options.engine(engine));
                let array = match options.open(disk.path()) {
                    Ok(array) => array,
                    Err(error @ Error::Drive { .. }) => {
                        println!("skipped: {about}: {error}");
                        continue;
                    }
                    Err(error) => panic!("{about}: {error}"),
                };
                thread::scope(|scope| scope.spawn(|| use_array(&array)).join().unwrap());
                use_array(&array);
                array.close().unwrap();
                assert!((0..TRIES).any(|_| disk.unmount()), "{about}: the drive is held");
                assert!(disk.mount_again());
            }
        }
    }
}

fn use_array(array: &Array) {
    let is_there = array.list("").names().unwrap().iter().any(|name| name == "file");
    let file = if is_there { array.open_file("file") } else { array.create_file("file", &FileOptions::new()) }.unwrap();
    if file.write_at(&random(LEN, 1), 0).is_ok() {
        file.sync().unwrap();
    }
    let mut bytes = vec![0; 300_000];
    assert_eq!(file.read_at(&mut bytes, 5).unwrap(), 300_000);
    file.read_many(&mut bytes[..50 * PAGE], &(0..50).map(|at| at * 9999).collect::<Vec<_>>(), PAGE).unwrap();
    drop(block_on(file.read_async(5000, 100_000)).unwrap());
    let (sender, receiver) = mpsc::channel();
    file.submit(vec![Request::Read { offset: 700_000, len: PAGE }], move |result| sender.send(result.is_ok()).unwrap())
        .unwrap();
    assert!(receiver.recv().unwrap());
}
