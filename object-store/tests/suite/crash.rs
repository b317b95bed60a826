//! A process that puts, uploads, copies and renames is killed, again and again on the same array. Each object is whole
//! then, and no space is lost.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::object_store::ObjectStoreExt;
use super::object_store::multipart::MultipartStore;
use super::object_store::path::Path;
use super::{IomillStore, PATIENCE, assert_clean, options, random};

/// The environment variable that makes this program the writer, with the directory of the drives and the seed.
const JOB: &str = "IOMILL_OBJECT_STORE_JOB";
const ROUNDS: u64 = 15;

/// The bytes of an object tell how they go on.
fn content(seed: u64) -> Vec<u8> {
    let len = fastrand::Rng::with_seed(seed).usize(..if seed.is_multiple_of(3) { 600_000 } else { 9_000 });
    [&seed.to_le_bytes()[..], &random(len, seed)].concat()
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes.get(..8).is_some_and(|seed| content(u64::from_le_bytes(seed.try_into().unwrap())) == bytes)
}

/// Works until it is killed.
async fn write(store: IomillStore, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        let (seed, path) = (rng.u64(..), Path::from(format!("{}", rng.u8(..20))));
        let bytes = content(seed);
        match rng.u8(..6) {
            0 | 1 => drop(store.put(&path, bytes.into()).await.unwrap()),
            2 => {
                let mut upload = store.put_multipart(&path).await.unwrap();
                let parts: Vec<_> = bytes.chunks(100_000).map(|part| upload.put_part(part.to_vec().into())).collect();
                futures_util::future::join_all(parts).await.into_iter().for_each(Result::unwrap);
                upload.complete().await.unwrap();
            }
            3 => {
                // Backwards, so that the parts are copied. One upload in three is left.
                let id = store.create_multipart(&path).await.unwrap();
                let mut parts = Vec::new();
                for (index, part) in bytes.chunks(70_000).enumerate().collect::<Vec<_>>().into_iter().rev() {
                    parts.insert(0, store.put_part(&path, &id, index, part.to_vec().into()).await.unwrap());
                }
                if rng.u8(..3) > 0 {
                    store.complete_multipart(&path, &id, parts).await.unwrap();
                }
            }
            4 => drop(store.copy(&Path::from("0"), &path).await),
            _ => drop(store.rename(&Path::from("1"), &path).await),
        }
    }
}

/// The kernel ends a killed process, and gives its locks back, a little later than the parent learns of the end.
fn open_when_free(drive: &std::path::Path) -> iomill::Array {
    let begun = Instant::now();
    loop {
        match options().open(drive) {
            Err(iomill::Error::Locked { .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn a_kill_leaves_whole_objects_and_no_lost_space() {
    if let Ok(job) = std::env::var(JOB) {
        let (drive, seed) = job.split_once('\n').unwrap();
        let store = IomillStore::array(options().open(drive).unwrap());
        iomill::block_on(write(store, seed.parse().unwrap())).unwrap();
    }
    let (dir, array) = super::fresh_array();
    array.close().unwrap();
    let drive = dir.path().join("ssd0");
    let (mut objects, begun) = (0, Instant::now());
    // On a slow machine more rounds, of writers that live longer.
    for round in 0.. {
        if round >= ROUNDS && objects > ROUNDS {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the writers have hardly begun: {objects} objects");
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["suite::crash::a_kill_leaves_whole_objects_and_no_lost_space", "--exact"])
            .env(JOB, format!("{}\n{round}", drive.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100 + 37 * round % 300 + 1000 * (round / ROUNDS)));
        writer.kill().unwrap();
        assert_eq!(writer.wait().unwrap().signal(), Some(9), "the writer ended by itself");
        let array = open_when_free(&drive);
        let store = IomillStore::array(array.clone());
        for name in array.list("").names().unwrap() {
            let got = iomill::block_on(async { store.get(&Path::from(name.as_str())).await?.bytes().await });
            assert!(is_whole(&got.unwrap().unwrap()), "{name} in round {round}");
            objects += 1;
        }
        drop(store);
        assert_clean(&dir, array);
    }
}
