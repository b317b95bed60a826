//! Processes that read through one cache and check each byte are killed, one after the other, at any time. The cache is
//! small, so that regions are emptied all the time.

use std::fmt;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::Path as FsPath;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use iomill_origin::{Cache, Options};

use super::object_store::path::Path;
use super::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use super::{on_any_machine, result, rounds, scratch};

/// The environment variable that makes this program a reader, with the directory and the seed.
const JOB: &str = "IOMILL_ORIGIN_JOB";
const PROCESSES: u64 = 4;
const ROUNDS: u64 = 16;
const OBJECTS: u64 = 12;
const LEN: u64 = 2_000_003;

/// The bytes of an object, each by its key, its version and its place.
fn content(key: u64, version: u64, range: Range<u64>) -> Vec<u8> {
    let word = |n: u64| {
        let mut x = (n ^ key << 40 ^ version << 50).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ x >> 32).to_le_bytes()
    };
    let words: Vec<u8> = (range.start / 8..range.end.div_ceil(8)).flat_map(word).collect();
    let begin = (range.start % 8) as usize;
    words[begin..begin + (range.end - range.start) as usize].to_vec()
}

/// An origin that computes its objects. A file of the directory has the version of each, so that all processes see a
/// change at once.
#[derive(Debug)]
struct Computed(std::path::PathBuf);

impl Computed {
    fn version(&self) -> u64 {
        std::fs::metadata(&self.0).unwrap().len()
    }
}

impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Computed")
    }
}

fn unsupported() -> Error {
    Error::NotSupported { source: "only gets".into() }
}

#[async_trait]
impl ObjectStore for Computed {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let (key, version) = (path.as_ref().parse().unwrap(), self.version());
        let e_tag = Some(format!("\"{version}\""));
        let last_modified = Default::default();
        let meta = ObjectMeta { location: path.clone(), last_modified, size: LEN, e_tag, version: None };
        options.check_preconditions(&meta)?;
        let range = options.range.map_or(Ok(0..LEN), |range| range.as_range(LEN)).unwrap();
        let bytes = if options.head { Vec::new() } else { content(key, version, range.clone()) };
        let body = GetResultPayload::Stream(stream::iter([Ok(Bytes::from(bytes))]).boxed());
        Ok(result::get(body, meta, range, Default::default()))
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(unsupported())
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported())
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream::empty().boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unsupported())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported())
    }
}

fn options(dir: &FsPath) -> Options {
    on_any_machine(Options::new().bytes(12 << 20).region_bytes(1 << 20).memory_bytes(4 << 20).index_dir(dir))
}

fn open(dir: &FsPath) -> (Cache, Arc<dyn ObjectStore>) {
    let drives = [dir.join("ssd0"), dir.join("ssd1")];
    let cache = Cache::open(&drives, options(dir)).unwrap();
    assert_eq!(cache.notices(), [""; 0]);
    let store = cache.over(Arc::new(Computed(dir.join("version"))) as Arc<dyn ObjectStore>, "computed://");
    (cache, store)
}

/// One checked gather. All of it is of one version, which is not older than the call.
async fn read_and_check(store: &Arc<dyn ObjectStore>, dir: &FsPath, rng: &mut fastrand::Rng) {
    let key = rng.u64(..OBJECTS);
    let range = |rng: &mut fastrand::Rng| {
        let begin = rng.u64(..LEN);
        begin..(begin + rng.u64(1..20_000)).min(LEN)
    };
    let ranges: Vec<_> = (0..rng.usize(1..40)).map(|_| range(rng)).collect();
    let before = Computed(dir.join("version")).version();
    let got = match store.get_ranges(&Path::from(key.to_string()), &ranges).await {
        Ok(got) => got,
        // The version may change under each try.
        Err(Error::Precondition { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let after = Computed(dir.join("version")).version();
    let is_of = |version| ranges.iter().zip(&got).all(|(range, bytes)| content(key, version, range.clone()) == **bytes);
    assert!((before..=after).any(is_of), "a wrong byte, or a mixture, of object {key} between {before} and {after}");
}

fn reader(dir: &FsPath, seed: u64) -> Child {
    let name = std::thread::current().name().unwrap().to_owned();
    Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture"])
        .env(JOB, format!("{}\n{seed}", dir.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_are_killed_leave_no_wrong_byte() {
    if let Ok(job) = std::env::var(JOB) {
        let (dir, seed) = job.split_once('\n').unwrap();
        let (_cache, store) = open(FsPath::new(dir));
        let mut rng = fastrand::Rng::with_seed(seed.parse().unwrap());
        loop {
            futures_executor::block_on(read_and_check(&store, FsPath::new(dir), &mut rng));
        }
    }
    let dir = scratch();
    for drive in ["ssd0", "ssd1"] {
        std::fs::create_dir(dir.path().join(drive)).unwrap();
    }
    std::fs::write(dir.path().join("version"), "1").unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut seed = 0;
    let mut next = || {
        seed += 1;
        reader(dir.path(), seed)
    };
    let mut readers: Vec<Child> = (0..PROCESSES).map(|_| next()).collect();
    for round in 0..rounds(ROUNDS) {
        std::thread::sleep(Duration::from_millis(rng.u64(20..300)));
        if round % 5 == 4 {
            use std::io::Write;
            std::fs::OpenOptions::new().append(true).open(dir.path().join("version")).unwrap().write_all(b".").unwrap();
        }
        if round % 7 == 6 {
            // A killed process leaves nothing behind that the next one needs: that begins with the summaries.
            for reader in &mut readers {
                end(reader, round);
            }
            super::forget_index_but(&dir, "version");
            readers = (0..PROCESSES).map(|_| next()).collect();
            continue;
        }
        let victim = rng.usize(..readers.len());
        end(&mut readers[victim], round);
        readers[victim] = next();
    }
    readers.iter_mut().for_each(|reader| end(reader, u64::MAX));
    let (cache, store) = open(dir.path());
    cache.wait_until_loaded();
    for _ in 0..200 {
        futures_executor::block_on(read_and_check(&store, dir.path(), &mut rng));
    }
    let counters = cache.counters();
    assert!(counters.hits > 0, "{counters:?}");
    cache.flush();
}

fn end(reader: &mut Child, round: u64) {
    reader.kill().unwrap();
    let status = reader.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "round {round}: a reader ended by itself: {status}");
}
