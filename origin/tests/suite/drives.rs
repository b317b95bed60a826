//! Drives that are missing, new, named twice or in another order. Non-goals: full file systems (`full`).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use iomill_origin::{Cache, Error, Options, Revalidate};

use super::object_store::ObjectStore;
use super::{Rig, drives, expected, options, random, rows, scratch};

const LEN: usize = 4 << 20;
/// The bound of a wait. No machine is that slow.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The first bound of a call on a drive that hangs. On a slow machine the call of another drive may take longer: then
/// the bound is doubled.
const HANGS: Duration = Duration::from_millis(500);

/// Bounds from [`HANGS`] on, to be tried until the other drives keep one.
pub fn bounds() -> impl Iterator<Item = Duration> {
    (0..).map(|doubled| {
        let within = HANGS * 2u32.pow(doubled);
        assert!(within < PATIENCE, "the other drives hang, too");
        within
    })
}

fn never(options: Options) -> Options {
    options.revalidate("", Revalidate::Never)
}

async fn filled() -> (Rig, Vec<u8>) {
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.ranges("a", &rows(LEN as u64)).await.unwrap();
    rig.cache.flush();
    (rig, bytes)
}

#[tokio::test]
async fn a_missing_drive_takes_its_share_and_gives_it_back_when_it_comes() {
    let (rig, bytes) = filled().await;
    let away = rig.dir.path().join("away");
    let wanted = rows(LEN as u64);
    let rig = {
        let Rig { store, cache, scripted, memory, dir } = rig;
        drop((store, cache));
        fs::rename(dir.path().join("ssd1"), &away).unwrap();
        let dirs = [dir.path().join("ssd0"), dir.path().join("ssd1")];
        let cache = Cache::open(&dirs, never(options(&dir))).unwrap();
        assert!(cache.notices().len() == 1 && cache.notices()[0].contains("mount"), "{:?}", cache.notices());
        let store = cache.over(scripted.clone() as std::sync::Arc<dyn ObjectStore>, "memory://");
        Rig { store, cache, scripted, memory, dir }
    };
    // Half is cached, and the other half is cached on the remaining drive.
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    let hits = rig.cache.counters().hits;
    assert!(hits > 64 && hits < 192, "{hits} of 256 rows were hits");
    rig.cache.flush();
    let before = rig.cache.counters();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(rig.since(&before).gets, 0);
    let rig = rig.reopened(never, |dir| fs::rename(&away, dir.path().join("ssd1")).unwrap());
    let before = rig.cache.counters();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(rig.since(&before).gets, 0, "the drive has its share again");
}

/// A directory that others can write to is not trusted, and their links are not followed.
#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let dir = scratch();
    let dirs = drives(&dir);
    let home = dirs[0].join("iomill-origin");
    drop(Cache::open(&dirs[..1], options(&dir)).unwrap());
    fs::set_permissions(&home, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Cache::open(&dirs[..1], options(&dir)).unwrap_err().to_string();
    assert!(error.contains("others may write") && error.contains("ssd0"), "{error}");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(home.join("data"), dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), home.join("data")).unwrap();
    Cache::open(&dirs[..1], options(&dir)).unwrap_err();
    std::os::unix::fs::symlink(&home, dirs[1].join("iomill-origin")).unwrap();
    let error = Cache::open(&dirs[1..], options(&dir)).unwrap_err().to_string();
    assert!(error.contains("no directory"), "{error}");
}

/// Processes that first open the same directories at the same time, each in an order of its own, end with one cache.
#[test]
fn the_order_of_new_directories_does_not_matter() {
    for _ in 0..20 {
        let dir = scratch();
        let forward = drives(&dir);
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        let open = |dirs: &[std::path::PathBuf]| Cache::open(dirs, options(&dir)).map(drop);
        let start = std::sync::Barrier::new(2);
        let begin = |dirs| {
            start.wait();
            open(dirs)
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| begin(&backward));
            (begin(&forward), other.join().unwrap())
        });
        one.and(other).unwrap();
        open(&forward).unwrap();
    }
}

/// The mount point of an unmounted drive is on the file system of `/`, where it must not become a drive.
#[test]
fn an_unmounted_drive_is_left_out_and_makes_nothing() {
    let dir = scratch();
    if fs::metadata(dir.path()).unwrap().dev() != fs::metadata("/").unwrap().dev() {
        println!("skipped: scratch directories are on a file system of their own");
        return;
    }
    let [one, two] = [&drives(&dir)[0], &drives(&dir)[1]].map(Clone::clone);
    let mounted = options(&dir).on_root(false);
    let error = Cache::open([&one, &two], mounted.clone()).unwrap_err();
    assert!(matches!(error, Error::Unmounted { .. }) && error.to_string().contains("mount the drive"), "{error}");
    assert_eq!(fs::read_dir(&one).unwrap().count() + fs::read_dir(&two).unwrap().count(), 0);
    // A directory with a label is a drive anywhere. The other one has a notice.
    drop(Cache::open([&one], options(&dir)).unwrap());
    let cache = Cache::open([&one, &two], mounted).unwrap();
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("ssd1") && notices[0].contains("mount"), "{notices:?}");
    assert_eq!(fs::read_dir(&two).unwrap().count(), 0);
}

/// The mount point of an unmounted drive is an empty directory. The rosters of the other drives have it.
#[tokio::test]
async fn a_drive_that_is_empty_is_left_out_until_it_is_begun_anew() {
    let (rig, _) = filled().await;
    let Rig { store, cache, dir, .. } = rig;
    drop((store, cache));
    let dirs = drives(&dir);
    fs::rename(&dirs[1], dir.path().join("away")).unwrap();
    fs::create_dir(&dirs[1]).unwrap();
    for _ in 0..2 {
        let cache = Cache::open(&dirs, never(options(&dir))).unwrap();
        let notices = cache.notices();
        assert!(notices.len() == 1 && notices[0].contains("ssd1: a drive of this cache was here"), "{notices:?}");
        assert_eq!(fs::read_dir(&dirs[1]).unwrap().count(), 0);
    }
    // A new directory gets its share, and so does a drive that is mounted again.
    let third = dir.path().join("ssd2");
    fs::create_dir(&third).unwrap();
    drop(Cache::open([&dirs[0], &third], never(options(&dir))).unwrap());
    fs::remove_dir(&dirs[1]).unwrap();
    fs::rename(dir.path().join("away"), &dirs[1]).unwrap();
    let cache = Cache::open([&dirs[0], &dirs[1], &third], never(options(&dir))).unwrap();
    assert_eq!((cache.notices(), cache.stat().len()), (vec![], 3));
    drop(cache);
    // The third one knows the others, and they know the third one.
    for lost in [&third, &dirs[0]] {
        fs::remove_dir_all(lost.join("iomill-origin")).unwrap();
        let cache = Cache::open([&dirs[0], &dirs[1], &third], never(options(&dir))).unwrap();
        assert!(cache.notices().len() == 1 && cache.stat().len() == 2, "{:?}", cache.notices());
        drop(cache);
        let anew = Cache::open([&dirs[0], &dirs[1], &third], never(options(&dir)).anew(true)).unwrap();
        assert_eq!((anew.notices(), anew.stat().len()), (vec![], 3));
    }
}

/// A new drive beside a drive of an unknown cache would begin another cache, and neither could join the other later.
#[test]
fn no_cache_begins_beside_a_drive_that_cannot_be_examined() {
    let (dir, index) = (scratch(), scratch());
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    fs::create_dir(&old).unwrap();
    drop(Cache::open([&old], options_at(index.path())).unwrap());
    let (label, away) = (old.join("iomill-origin/label"), dir.path().join("away"));
    fs::create_dir(&new).unwrap();
    let refused = |cannot: &str| {
        let error = Cache::open([&new, &old], options_at(index.path())).unwrap_err().to_string();
        assert!(error.contains(old.to_str().unwrap()), "{cannot}: {error}");
        assert_eq!(fs::read_dir(&new).unwrap().count(), 0, "{cannot}: nothing is made");
    };
    let text = fs::read(&label).unwrap();
    fs::write(&label, "iomill-origin 1\n").unwrap();
    refused("a damaged label");
    fs::remove_file(&label).unwrap();
    fs::create_dir(&label).unwrap();
    refused("a label that cannot be read");
    fs::remove_dir(&label).unwrap();
    fs::write(&label, text).unwrap();
    fs::rename(&old, &away).unwrap();
    refused("no directory");
    fs::rename(&away, &old).unwrap();
    let both = Cache::open([&new, &old], options_at(index.path())).unwrap();
    assert_eq!(both.notices(), Vec::<String>::new());
    assert!(format!("{both:?}").len() < 1000, "a cache is named in short");
}

/// The environment variable with the directory of a file system that has a mount point.
const NESTED: &str = "IOMILL_ORIGIN_NESTED";

/// The only drive of a cache is mounted below another file system than that of `/`. That file system must not be filled
/// instead.
#[test]
fn an_only_drive_that_is_not_mounted_is_refused() {
    let Some(dir) = std::env::var_os(NESTED) else {
        let dir = scratch();
        let script = r#"mount -t tmpfs -o size=16m tmpfs "$0" && mkdir "$0/ssd0" && mount -t tmpfs -o size=16m tmpfs "$0/ssd0" || exit 77; exec "$@""#;
        in_namespace(script, dir.path(), NESTED, dir.path());
        return;
    };
    let (drive, index) = (std::path::Path::new(&dir).join("ssd0"), scratch());
    let opened = |anew| Cache::open([&drive], options_at(index.path()).on_root(false).anew(anew));
    let run = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).arg(&drive).status().unwrap().success(), "{program}");
    };
    // The first use of a fresh drive needs no more than this, and neither does the next one.
    (0..2).for_each(|_| drop(opened(false).unwrap()));
    run("umount", &[]);
    let error = opened(false).unwrap_err();
    assert!(matches!(error, Error::Gone { .. }) && error.to_string().contains("mount the drive"), "{error}");
    assert_eq!(fs::read_dir(&drive).unwrap().count(), 0, "nothing is made");
    // Another drive in its place.
    run("mount", &["-t", "tmpfs", "-o", "size=16m", "tmpfs"]);
    assert!(matches!(opened(false).unwrap_err(), Error::Gone { .. }));
    drop(opened(true).unwrap());
    drop(opened(false).unwrap());
}

/// A file of a drive that is a pipe: the call that opens it does not end until [`Hung::answer`] opens the other end.
pub struct Hung {
    file: std::path::PathBuf,
    away: std::path::PathBuf,
}

impl Hung {
    pub fn new(drive: &std::path::Path, name: &str) -> Hung {
        let file = drive.join("iomill-origin").join(name);
        let away = file.with_extension("away");
        let _not_there = fs::rename(&file, &away);
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        Hung { file, away }
    }

    /// The drive answers, and is unchanged.
    pub fn answer(self) {
        let pipe = fs::OpenOptions::new().read(true).write(true).open(&self.file).unwrap();
        fs::remove_file(&self.file).unwrap();
        let _not_there = fs::rename(&self.away, &self.file);
        drop(pipe);
    }
}

/// Calls that hang in each part of an opening. Seen to fail without a bound in any of the three: the opening did not
/// end.
#[tokio::test]
async fn an_opening_goes_on_without_a_drive_that_hangs() {
    for name in ["label", "lock", "roster.new"] {
        // Anew, because an opening that is late leaves a part of a new drive.
        for within in bounds() {
            if goes_on_without_a_drive_that_hangs(name, within).await {
                break;
            }
        }
    }
}

/// `false`: the bound is too short for another drive.
async fn goes_on_without_a_drive_that_hangs(name: &str, within: Duration) -> bool {
    let (rig, bytes) = filled().await;
    let Rig { store, cache, scripted, dir, .. } = rig;
    drop((store, cache));
    let mut dirs = drives(&dir);
    // The others note it, so that each writes its roster.
    dirs.push(dir.path().join("ssd2"));
    fs::create_dir(&dirs[2]).unwrap();
    let hung = Hung::new(&dirs[0], name);
    let given = never(options(&dir));
    let error = Cache::open(&dirs[..1], given.clone().open_within(within));
    // Alone it writes no roster.
    assert!(name == "roster.new" || matches!(error, Err(Error::Late { .. })), "{name}: {error:?}");
    drop(error);
    let Ok(cache) = Cache::open(&dirs, given.clone().open_within(within)) else { return false };
    let notices = cache.notices();
    assert!(!notices.is_empty(), "{name}: it is not left out");
    if notices.len() > 1 || !notices[0].contains("ssd0: no answer") {
        return false;
    }
    let store = cache.over(scripted as std::sync::Arc<dyn ObjectStore>, "memory://");
    let (path, wanted) = (super::Path::from("a"), rows(LEN as u64));
    for _ in 0..2 {
        assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
        cache.flush();
    }
    assert!(cache.counters().hits >= wanted.len() as u64, "the others go on: {:?}", cache.counters());
    hung.answer();
    // A drive that answers too late is closed: it does not hold the lock.
    let again = Cache::open(&dirs, given.open_within(PATIENCE)).unwrap();
    assert_eq!((again.notices(), again.stat().len()), (vec![], 3), "{name}");
    true
}

/// Opens drives within a bound that only one of them misses.
fn opened_without(dirs: &[std::path::PathBuf], given: &Options, hangs: &str) -> Cache {
    for within in bounds() {
        match Cache::open(dirs, given.clone().open_within(within)) {
            Ok(cache) if cache.notices().iter().all(|notice| notice.contains(hangs)) => return cache,
            opened => println!("not within {within:?}: {:?}", opened.map(|cache| cache.notices())),
        }
    }
    unreachable!("the bounds end by a panic")
}

/// The environment variable with the directory of the file system that is frozen.
const FROZEN: &str = "IOMILL_ORIGIN_FROZEN";

/// Frees the file system again, also after a panic.
struct Frozen<'a>(&'a std::path::Path);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _thawed = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

/// A frozen file system answers no write. It takes a loop device, and so the rights of root.
#[test]
fn a_drive_that_hangs_holds_no_call_up() {
    if let Some(dir) = std::env::var_os(FROZEN) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = std::path::Path::new(&dir);
        for within in bounds() {
            if runtime.block_on(on_frozen_file_system(dir, within)) {
                break;
            }
            for drive in ["ssd0", "ssd1"] {
                fs::remove_dir_all(dir.join(drive).join("iomill-origin")).unwrap();
            }
        }
        return;
    }
    let dir = scratch();
    fs::create_dir(dir.path().join("ssd0")).unwrap();
    fs::create_dir(dir.path().join("ssd1")).unwrap();
    let script = r#"truncate -s 64M "$0/image" && mkfs.ext4 -q "$0/image" && mount -o loop "$0/image" "$0/ssd0" || exit 77; exec "$@""#;
    unshared(&["-m", "sh", "-c", script], dir.path(), FROZEN, dir.path());
}

/// `false`: the bound is too short for the other drive.
async fn on_frozen_file_system(dir: &std::path::Path, within: Duration) -> bool {
    use super::object_store::ObjectStoreExt;
    let index = scratch();
    let drives = [dir.join("ssd0"), dir.join("ssd1")];
    let given = Options::new().bytes(32 << 20).region_bytes(1 << 20).memory_bytes(8 << 20).index_dir(index.path());
    let given = never(given).on_root(true).read_within(PATIENCE).open_within(PATIENCE).write_within(within);
    let cache = Cache::open(&drives, given.clone()).unwrap();
    let memory = std::sync::Arc::new(super::InMemory::new());
    let (path, bytes) = (super::Path::from("a"), random(LEN, 1));
    memory.put(&path, bytes.clone().into()).await.unwrap();
    let store = cache.over(memory as std::sync::Arc<dyn ObjectStore>, "memory://");
    let (cached, wanted) = (&rows(LEN as u64)[..10], rows(LEN as u64));
    store.get_ranges(&path, cached).await.unwrap();
    if !cache.flush_within(Duration::MAX) || cache.counters().dropped > 0 {
        return false;
    }
    if !Command::new("fsfreeze").arg("-f").arg(&drives[0]).status().is_ok_and(|status| status.success()) {
        println!("skipped: the file system cannot be frozen");
        return true;
    }
    let frozen = Frozen(&drives[0]);
    // Another process opens it meanwhile, and one empties it.
    let other = opened_without(&drives, &given, "ssd0");
    assert_eq!(other.notices().len(), 1, "{:?}", other.notices());
    drop(other);
    let (begun, before) = (Instant::now(), cache.counters());
    for _ in 0..3 {
        assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
    }
    // Bytes that both drives had are read from both. Granules that wait for the frozen drive are read from memory or,
    // if that is full or late, from the origin.
    let done = cache.counters().since(&before);
    assert!(done.hits >= 10, "{done:?}");
    store.put(&path, bytes.clone().into()).await.unwrap();
    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part(vec![7; 6 << 20].into()).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(store.get_range(&path, 5..9).await.unwrap(), [7; 4][..]);
    assert!(!cache.flush_within(Duration::MAX), "it hangs");
    // It is left out in the end, and all granules are on the other one.
    while !cache.stat()[0].is_dead {
        assert!(begun.elapsed() < PATIENCE, "{:?}", cache.stat());
        let at = fastrand::u64(..6 << 20);
        store.get_range(&path, at..at + 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if cache.stat()[1].is_dead {
        return false;
    }
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("ssd0"), "{notices:?}");
    let error = cache.evict().unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error}");
    if cache.stat()[1].filled_bytes > 0 {
        return false;
    }
    assert!(cache.stat()[0].filled_bytes > 0);
    let closing = Instant::now();
    drop((store, cache));
    assert!(closing.elapsed() < PATIENCE, "{:?}", closing.elapsed());
    drop(frozen);
    true
}

/// If one drive is too small, only that drive is left out.
#[tokio::test]
async fn a_drive_that_is_too_small_is_left_out() {
    let dir = scratch();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let script = r#"mount -t tmpfs -o size=1m tmpfs "$0" && mount -t tmpfs -o size=16m tmpfs "$0/../ssd0" || exit 77; exec "$@""#;
    if let Some(dir) = std::env::var_os(SMALL) {
        let dir = std::path::Path::new(&dir);
        let dirs = [dir.join("small"), dir.join("ssd0")];
        let cache = Cache::open(&dirs, options_at(dir)).unwrap();
        let notices = cache.notices();
        assert!(notices.len() == 1 && notices[0].contains("small") && notices[0].contains("at least 2"), "{notices:?}");
        let error = Cache::open(&dirs[..1], options_at(dir)).unwrap_err();
        assert!(matches!(error, Error::Small { .. }), "{error}");
        return;
    }
    drives(&dir);
    in_namespace(script, &small, SMALL, dir.path());
}

/// Drives of one cache have granules of one length. A drive with another length is left out.
#[test]
fn a_drive_with_other_granules_is_left_out() {
    let dir = scratch();
    let [one, two] = [&drives(&dir)[0], &drives(&dir)[1]].map(Clone::clone);
    drop(Cache::open([&one], options(&dir)).unwrap());
    let label = fs::read_to_string(one.join("iomill-origin/label")).unwrap();
    // It becomes a drive of the same cache.
    drop(Cache::open([&one, &two], options(&dir).granule_bytes(4096)).unwrap());
    let other = fs::read_to_string(two.join("iomill-origin/label")).unwrap();
    assert!(label.contains("granule 16384") && other.contains("granule 4096"));
    let cache = Cache::open([&one, &two], options(&dir)).unwrap();
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("granules"), "{notices:?}");
}

#[tokio::test]
async fn a_new_drive_takes_a_share() {
    let (rig, bytes) = filled().await;
    let wanted = rows(LEN as u64);
    rig.cache.flush();
    let third = rig.dir.path().join("ssd2");
    fs::create_dir(&third).unwrap();
    // In another order, too: the labels identify the drives.
    let dirs = [third, drives(&rig.dir)[1].clone(), drives(&rig.dir)[0].clone()];
    let cache = Cache::open(&dirs, never(options(&rig.dir)).bytes(48 << 20)).unwrap();
    assert_eq!(cache.notices(), [""; 0]);
    let store = cache.over(rig.scripted.clone() as std::sync::Arc<dyn ObjectStore>, "memory://");
    let path = super::Path::from("a");
    assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
    let hits = cache.counters().hits;
    assert!(hits > 128 && hits < 240, "{hits} of 256 rows were hits, of which a third moves");
    cache.flush();
    let before = cache.counters();
    assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(cache.counters().since(&before).gets, 0);
}

#[test]
fn wrong_arguments_are_refused_in_words() {
    let dir = scratch();
    let [one, two] = [&drives(&dir)[0], &drives(&dir)[1]].map(Clone::clone);
    let none: [&str; 0] = [];
    let cases: [(Result<Cache, Error>, &str); 6] = [
        (Cache::open(none, options(&dir)), "1 to 1024"),
        (Cache::open([&one, &one], options(&dir)), "twice"),
        (Cache::open([&two], options(&dir).granule_bytes(5000)), "power of two"),
        (Cache::open([&two], options(&dir).bytes(4096)), "at least 2"),
        (Cache::open([&two], options(&dir).admit(0.0)), "share"),
        (Cache::open([dir.path().join("none")], options(&dir)), "mount"),
    ];
    for (opened, word) in cases {
        let error = opened.expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    // The index finds no room.
    let index = Cache::open([&two], options(&dir).index_dir("/proc")).unwrap_err();
    assert!(matches!(index, Error::Index { .. }) && index.to_string().contains("index_dir"), "{index}");
}

/// The environment variable with the directory of a small drive and another one, in the process that has them.
const SMALL: &str = "IOMILL_ORIGIN_SMALL";

pub fn options_at(dir: &std::path::Path) -> Options {
    Options::new().region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir).on_root(true)
}

/// Runs this test again in a namespace, where a script mounts something at a directory.
pub fn in_namespace(script: &str, at: &std::path::Path, variable: &str, value: &std::path::Path) {
    unshared(&["-rm", "sh", "-c", script], at, variable, value);
}

/// The same by a command in new namespaces.
pub fn unshared(arguments: &[&str], at: &std::path::Path, variable: &str, value: &std::path::Path) {
    let name = std::thread::current().name().unwrap().to_owned();
    let test = Command::new("unshare")
        .args(arguments)
        .arg(at)
        .arg(std::env::current_exe().unwrap())
        .args([&name, "--exact"])
        .env(variable, value)
        .output();
    match test {
        Ok(output) if output.status.success() => {}
        Ok(output) if output.status.code() == Some(101) => {
            panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        }
        other => println!("skipped: no file system in a namespace: {other:?}"),
    }
}
