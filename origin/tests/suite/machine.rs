//! A machine without free descriptors, and file systems that refuse writes. Gets continue, and notices report the
//! problem.

use std::path::Path;

use futures_executor::block_on;
use iomill_origin::{Cache, Options, Revalidate};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::drives::{in_namespace, options_at};
use super::fork::has_run_alone;
use super::object_store::ObjectStore;
use super::{Rig, drives, expected, options, random, rows};

const LEN: usize = 1 << 20;

/// Sets the most descriptors of this process.
fn limit(most: u64) {
    let was = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: was.maximum }).unwrap();
}

/// Each number of descriptors fails an opening at another place. None causes a panic or spoils the drives: each is an
/// error.
#[test]
fn an_opening_without_descriptors_is_an_error_and_the_next_one_is_right() {
    if has_run_alone() {
        return;
    }
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    block_on(rig.behind("a", bytes.clone()));
    let wanted = rows(LEN as u64);
    block_on(rig.ranges("a", &wanted)).unwrap();
    rig.cache.flush();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let most = getrlimit(Resource::Nofile).current.unwrap();
    let (mut failed, mut whole) = (0, 0);
    for more in 0..40 {
        limit(used + more);
        let opened = Cache::open(drives(&rig.dir), options(&rig.dir));
        // The open cache continues, with and without its drives.
        let got = block_on(rig.ranges("a", &wanted));
        limit(most);
        assert_eq!(got.unwrap(), expected(&bytes, &wanted), "{more}");
        match opened {
            Ok(cache) if cache.notices().is_empty() => whole += 1,
            // One of its drives is left out.
            Ok(cache) => assert!(cache.notices()[0].contains("os error 24"), "{:?}", cache.notices()),
            Err(error) => {
                assert!(error.to_string().contains("os error 24"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && whole > 0, "{failed} {whole}");
    assert_eq!(rig.cache.notices(), [""; 0], "that is no failure of a drive");
    let rig = rig.reopened(|options| options.revalidate("", Revalidate::Never), |_| {});
    assert_eq!(rig.cache.notices(), [""; 0]);
    assert_eq!(block_on(rig.ranges("a", &wanted)).unwrap(), expected(&bytes, &wanted));
    let counters = rig.cache.counters();
    assert_eq!(counters.gets, 0, "the drives are as they were: {counters:?}");
}

/// The environment variable with the directory of the file system that takes no writes.
const READ_ONLY: &str = "IOMILL_ORIGIN_READ_ONLY";

/// After an error a file system often refuses writes. A drive on it is left out with a notice, and its share goes to
/// the others.
#[test]
fn a_read_only_file_system_is_left_out() {
    let Some(dir) = std::env::var_os(READ_ONLY) else {
        let dir = super::scratch();
        drives(&dir);
        let script = r#"mount -t tmpfs -o size=40m tmpfs "$0/ssd0" || exit 77; exec "$@""#;
        in_namespace(script, dir.path(), READ_ONLY, dir.path());
        return;
    };
    let dir = Path::new(&dir);
    let (dirs, index) = ([dir.join("ssd0"), dir.join("ssd1")], super::scratch());
    let given = || Options::revalidate(options_at(index.path()), "", Revalidate::Never).bytes(32 << 20);
    let memory = std::sync::Arc::new(super::InMemory::new());
    let (path, bytes, wanted) = (super::Path::from("a"), random(LEN, 1), rows(LEN as u64));
    use super::object_store::ObjectStoreExt;
    block_on(memory.put(&path, bytes.clone().into())).unwrap();
    for is_read_only in [false, true] {
        if is_read_only {
            let mount = std::process::Command::new("mount").args(["-o", "remount,ro"]).arg(&dirs[0]).status().unwrap();
            assert!(mount.success());
        }
        let cache = Cache::open(&dirs, given()).unwrap();
        let notices = cache.notices();
        assert_eq!(notices.len(), usize::from(is_read_only), "{notices:?}");
        assert!(notices.iter().all(|notice| notice.contains("ssd0")), "{notices:?}");
        let store = cache.over(memory.clone() as std::sync::Arc<dyn ObjectStore>, "memory://");
        for _ in 0..2 {
            assert_eq!(block_on(store.get_ranges(&path, &wanted)).unwrap(), expected(&bytes, &wanted));
            cache.flush();
        }
        assert!(cache.counters().hits >= wanted.len() as u64);
    }
    // An only drive is an error, and not a panic.
    let error = Cache::open(&dirs[..1], given()).unwrap_err();
    assert!(error.to_string().contains("os error 30"), "{error}");
}
