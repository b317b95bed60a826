//! Ordinary files in place: what `LocalFileSystem` shows of a tree, this store shows, too. What differs is at the end.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use iomill::RuntimeOptions;
use tempfile::TempDir;

use super::object_store::integration;
use super::object_store::list::{PaginatedListOptions, PaginatedListStore};
use super::object_store::local::LocalFileSystem;
use super::object_store::multipart::MultipartStore;
use super::object_store::path::Path;
use super::object_store::{Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode};
use super::{IomillStore, eventually, random};

fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn stores(dir: &TempDir) -> (IomillStore, LocalFileSystem) {
    (IomillStore::plain(dir.path()).unwrap(), LocalFileSystem::new_with_prefix(dir.path()).unwrap())
}

async fn listed(store: &dyn ObjectStore, prefix: Option<&Path>, offset: Option<&Path>) -> Vec<ObjectMeta> {
    let all = match offset {
        Some(offset) => store.list_with_offset(prefix, offset),
        None => store.list(prefix),
    };
    all.try_collect().await.unwrap()
}

fn sorted(mut all: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
    all.sort_by(|a, b| a.location.cmp(&b.location));
    all
}

/// In the order of their paths, and with etags in quotes: `LocalFileSystem` of 0.13 has none.
fn as_ours(all: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
    let quoted = |tag: String| format!("\"{}\"", tag.trim_matches('"'));
    sorted(all.into_iter().map(|meta| ObjectMeta { e_tag: meta.e_tag.map(quoted), ..meta }).collect())
}

/// Names that are hard to sort, to show, or to find.
const NAMES: [&str; 17] = [
    "a",
    "b/c",
    "b/c d",
    "b-c",
    "b.d/e",
    "b/c.d/e",
    "🙀/😀",
    "%48%45",
    "%Q",
    ".hidden",
    ".d/.e",
    "x/#",
    "x/y#z",
    "x/#1z",
    "r\\s",
    "foo bar/I contain spaces",
    "z/z/z/z/z/z",
];

#[tokio::test]
async fn listings_are_those_of_local_files() {
    let dir = dir();
    let (store, local) = stores(&dir);
    for name in NAMES {
        local.put(&Path::parse(name).unwrap(), random(name.len(), 1).into()).await.unwrap();
    }
    // An upload that `LocalFileSystem` has not finished.
    std::fs::write(dir.path().join("x/y#17"), "unfinished").unwrap();
    let path = |name: &str| Path::parse(name).unwrap();
    let prefixes = ["", "a", "b", "b/c", "b/c.d", "x", "z/z", "none", "🙀", "z/z/z/z/z/z"];
    let offsets = ["", "a", "b", "b/c", "b/c d", "b-c", "b0", "z", "zz", "%48%45", "x/#", "z/z/z/z/z/z"];
    for prefix in prefixes {
        let prefix = path(prefix);
        let ours = listed(&store, Some(&prefix), None).await;
        assert_eq!(ours, sorted(ours.clone()), "in their order");
        assert_eq!(ours, as_ours(listed(&local, Some(&prefix), None).await), "{prefix:?}");
        for offset in offsets {
            let offset = path(offset);
            let ours = listed(&store, Some(&prefix), Some(&offset)).await;
            assert_eq!(
                ours,
                as_ours(listed(&local, Some(&prefix), Some(&offset)).await),
                "{prefix:?} after {offset:?}"
            );
        }
        let (ours, theirs) = (
            store.list_with_delimiter(Some(&prefix)).await.unwrap(),
            local.list_with_delimiter(Some(&prefix)).await.unwrap(),
        );
        let mut theirs_prefixes = theirs.common_prefixes;
        theirs_prefixes.sort();
        let mut ours_prefixes = ours.common_prefixes;
        ours_prefixes.sort();
        assert_eq!((ours_prefixes, ours.objects), (theirs_prefixes, as_ours(theirs.objects)), "{prefix:?}");
    }
    // Below a prefix the names begin there.
    let below = IomillStore::plain(dir.path()).unwrap().with_prefix("b").unwrap();
    let names: Vec<String> = listed(&below, None, None).await.into_iter().map(|meta| meta.location.into()).collect();
    assert_eq!(names, ["c", "c d", "c.d/e"]);
    assert_eq!(below.get(&path("c")).await.unwrap().bytes().await.unwrap().len(), 3);
    for meta in listed(&store, None, None).await {
        assert_eq!(store.head(&meta.location).await.unwrap(), meta);
        assert_eq!(as_ours(vec![local.head(&meta.location).await.unwrap()]), std::slice::from_ref(&meta));
        assert_eq!(store.get(&meta.location).await.unwrap().bytes().await.unwrap(), random(meta.size as usize, 1));
    }
    for unfinished in ["x/y#17", "x/none#17"] {
        assert!(matches!(store.get(&path(unfinished)).await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn pages_of_a_listing_are_the_whole_listing() {
    let dir = dir();
    let (store, local) = stores(&dir);
    for name in NAMES {
        local.put(&Path::parse(name).unwrap(), "x".into()).await.unwrap();
    }
    for (prefix, delimiter) in
        [(None, None), (Some("b"), None), (None, Some("/")), (Some("b"), Some("/")), (None, Some("c"))]
    {
        let page = |max_keys, page_token| PaginatedListOptions {
            delimiter: delimiter.map(Into::into),
            max_keys,
            page_token,
            ..Default::default()
        };
        let whole = store.list_paginated(prefix, page(None, None)).await.unwrap();
        assert!(whole.page_token.is_none() && !whole.result.objects.is_empty());
        for most in [1, 2, 5] {
            let (mut objects, mut prefixes, mut token) = (Vec::new(), Vec::new(), None);
            loop {
                let next = store.list_paginated(prefix, page(Some(most), token)).await.unwrap();
                assert!(next.result.objects.len() + next.result.common_prefixes.len() <= most);
                objects.extend(next.result.objects);
                prefixes.extend(next.result.common_prefixes);
                token = next.page_token;
                if token.is_none() {
                    break;
                }
            }
            assert_eq!((&objects, &prefixes), (&whole.result.objects, &whole.result.common_prefixes), "{prefix:?}");
        }
    }
    let delimiter = PaginatedListOptions { delimiter: Some("ab".into()), ..Default::default() };
    let no_keys = PaginatedListOptions { max_keys: Some(0), ..Default::default() };
    for wrong in [delimiter, no_keys] {
        assert!(matches!(store.list_paginated(None, wrong).await, Err(Error::NotSupported { .. })));
    }
}

/// A prefix of a page is any text. None leads out of the directory.
#[tokio::test]
async fn no_prefix_lists_what_is_outside() {
    let above = dir();
    let root = above.path().join("root");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    for file in ["outside", "root/file", "root/a/file", "root/a/b/..file"] {
        std::fs::write(above.path().join(file), "x").unwrap();
    }
    let absolute = format!("{}/", above.path().display());
    let store = IomillStore::plain(&root).unwrap();
    let below = store.clone().with_prefix("a").unwrap();
    let outside =
        ["../", "/", "/etc/", absolute.as_str(), "a/../", "a/../../", "./", "a//", "b/../../", "../../", "b/./"];
    for store in [&store, &below] {
        for prefix in outside {
            for delimiter in [None, Some("/")] {
                let options = PaginatedListOptions { delimiter: delimiter.map(Into::into), ..Default::default() };
                let page = store.list_paginated(Some(prefix), options).await.unwrap();
                let names: Vec<_> = page.result.objects.iter().map(|meta| meta.location.as_ref()).collect();
                assert!(names.is_empty() && page.result.common_prefixes.is_empty(), "{prefix}: {page:?}");
            }
        }
    }
    let page = below.list_paginated(Some("b/.."), PaginatedListOptions::default()).await.unwrap();
    assert_eq!(page.result.objects[0].location.as_ref(), "b/..file", "a name may begin so");
}

/// A deleted file keeps its space while it is open. Another program deletes it, and a held file was not deleted.
#[tokio::test]
async fn no_handle_keeps_a_deleted_file() {
    let dir = dir();
    let runtime = RuntimeOptions::new().cache_bytes(4 << 20).start().unwrap();
    let store = IomillStore::plain_with(dir.path(), &runtime).unwrap();
    let paths: Vec<Path> = (0..8).map(|n| Path::from(format!("{n}"))).collect();
    let file = |path: &Path| dir.path().join(path.as_ref());
    paths.iter().for_each(|path| std::fs::write(file(path), random(100_000, 1)).unwrap());
    let held = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let links: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
        links.iter().filter(|link| link.parent() == Some(dir.path())).count()
    };
    // A file that has just changed is not held.
    tokio::time::sleep(Duration::from_millis(150)).await;
    for path in &paths {
        store.get_ranges(path, &[0..1]).await.unwrap();
    }
    eventually("all are held", || held() == paths.len());
    paths[2..].iter().for_each(|path| std::fs::remove_file(file(path)).unwrap());
    // What is asked for and gone is not held.
    assert!(matches!(store.head(&paths[2]).await, Err(Error::NotFound { .. })));
    eventually("one is not held", || held() == paths.len() - 1);
    let next = Path::from("next");
    std::fs::write(file(&next), random(100_000, 2)).unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    store.get_ranges(&next, &[0..1]).await.unwrap();
    eventually("what is there is held", || held() == 3);
}

/// Tests of the public suite that only read, after `LocalFileSystem` has written what they read.
#[tokio::test]
async fn the_public_tests_that_read() {
    let dir = dir();
    let (store, local) = stores(&dir);
    let refused = integration::get_nonexistent_object(&store, None).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound { .. }), "{refused}");
    local.put(&Path::from("dir/object"), random(20_000_000, 1).into()).await.unwrap();
    for directory in ["dir", "dir/object/below"] {
        let directory = Path::from(directory);
        assert!(matches!(store.get(&directory).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.head(&directory).await, Err(Error::NotFound { .. })));
    }
    let path = Path::from("dir/object");
    let meta = store.head(&path).await.unwrap();
    let tag = meta.e_tag.clone();
    store.get_opts(&path, GetOptions::new().with_if_match(tag.clone())).await.unwrap();
    let same = store.get_opts(&path, GetOptions::new().with_if_none_match(tag)).await;
    assert!(matches!(same, Err(Error::NotModified { .. })));
    let later = GetOptions::new().with_if_modified_since(Some(meta.last_modified));
    assert!(matches!(store.get_opts(&path, later).await, Err(Error::NotModified { .. })));
    let suffix = GetOptions::new().with_range(Some(super::object_store::GetRange::Suffix(10)));
    assert_eq!(store.get_opts(&path, suffix).await.unwrap().range, 19_999_990..20_000_000);
    assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == random(20_000_000, 1));
}

#[tokio::test]
async fn whatever_changes_files_is_not_supported() {
    let dir = dir();
    let (store, local) = stores(&dir);
    let (path, id) = (Path::from("object"), "7".to_owned());
    local.put(&path, "old".into()).await.unwrap();
    let refused = [
        store.put(&path, "new".into()).await.map(drop),
        store.put_opts(&path, "new".into(), PutMode::Create.into()).await.map(drop),
        store.put_multipart(&path).await.map(drop),
        store.create_multipart(&path).await.map(drop),
        store.delete(&path).await,
        store.copy(&path, &Path::from("copy")).await,
        store.rename(&path, &Path::from("copy")).await,
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, Error::NotSupported { .. }) && text.contains("for reading"), "{text}");
        assert!(text.contains(&*std::fs::canonicalize(dir.path()).unwrap().to_string_lossy()), "{text}");
    }
    assert!(store.put_part(&path, &id, 0, "new".into()).await.is_err());
    assert_eq!(listed(&local, None, None).await.len(), 1);
    let missing = IomillStore::plain(dir.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("cannot open the directory") && missing.contains("none"), "{missing}");
    assert!(IomillStore::plain(dir.path().join("object")).unwrap_err().to_string().contains("no directory"));
}

/// A get sees a file that has been replaced, that has grown, and that is gone. It does so with a handle of the old one,
/// too.
#[tokio::test]
async fn a_changed_file_is_noticed() {
    let dir = dir();
    let runtime = RuntimeOptions::new().cache_bytes(16 << 20).start().unwrap();
    let store = IomillStore::plain_with(dir.path(), &runtime).unwrap();
    let (path, file) = (Path::from("object"), dir.path().join("object"));
    let mut tags = Vec::new();
    for round in 0..12u64 {
        let content = random(100_000, round);
        match round % 3 {
            // The same length, so that only the inode and the times tell.
            0 => std::fs::write(&file, &content).unwrap(),
            1 => {
                std::fs::write(dir.path().join("new"), &content).unwrap();
                std::fs::rename(dir.path().join("new"), &file).unwrap();
            }
            _ => {
                std::fs::remove_file(&file).unwrap();
                assert!(matches!(store.get_ranges(&path, &[0..1]).await, Err(Error::NotFound { .. })));
                std::fs::write(&file, &content).unwrap();
            }
        }
        for _ in 0..3 {
            let got = store.get(&path).await.unwrap();
            tags.push(got.meta.e_tag.clone());
            assert!(got.bytes().await.unwrap() == content, "round {round}");
            let part = store.get_ranges(&path, &[99_000..100_000]).await.unwrap();
            assert!(part[0] == content[99_000..], "round {round}");
            // In half of the rounds a handle is held.
            if round % 2 == 0 {
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
        }
    }
    tags.dedup();
    assert_eq!(tags.len(), 12, "each content has an etag");
    std::fs::write(&file, "short").unwrap();
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "short");
}

/// A file that is cut while it is read is an error, not short or wrong bytes.
#[tokio::test]
async fn a_file_that_is_cut_meanwhile_is_an_error() {
    let dir = dir();
    let runtime = RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let store = IomillStore::plain_with(dir.path(), &runtime).unwrap();
    let file = dir.path().join("object");
    std::fs::write(&file, random(20 << 20, 1)).unwrap();
    let mut stream = store.get(&Path::from("object")).await.unwrap().into_stream();
    assert!(stream.next().await.unwrap().unwrap() == random(20 << 20, 1)[..2 << 20]);
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(15 << 20).unwrap();
    let rest: Result<Vec<_>, _> = stream.try_collect().await;
    let text = rest.unwrap_err().to_string();
    assert!(text.contains("another program cut it"), "{text}");
}

#[tokio::test]
async fn links_are_followed_and_those_that_lead_nowhere_are_left_out() {
    let (dir, outside) = (dir(), dir());
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/file"), "file").unwrap();
    std::fs::write(outside.path().join("far"), "far away").unwrap();
    symlink("d/file", dir.path().join("link")).unwrap();
    symlink("d", dir.path().join("directory")).unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink("none", dir.path().join("nowhere")).unwrap();
    let (store, local) = stores(&dir);
    let ours = listed(&store, None, None).await;
    assert_eq!(ours, as_ours(listed(&local, None, None).await));
    let names: Vec<&str> = ours.iter().map(|meta| meta.location.as_ref()).collect();
    assert_eq!(names, ["d/file", "directory/file", "link", "out/far"]);
    for (name, content) in [("link", "file"), ("directory/file", "file"), ("out/far", "far away")] {
        assert_eq!(store.get(&Path::from(name)).await.unwrap().bytes().await.unwrap(), content);
    }
    assert!(matches!(store.head(&Path::from("nowhere")).await, Err(Error::NotFound { .. })));
    // A link that leads back is an error, and what is beside it is there.
    symlink("..", dir.path().join("d/back")).unwrap();
    let all: Vec<_> = store.list(None).collect().await;
    let (good, bad): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    let faults: Vec<String> = bad.into_iter().map(|fault| fault.unwrap_err().to_string()).collect();
    assert!(faults.iter().all(|text| text.contains("leads to a directory above itself")), "{faults:?}");
    assert!(faults.len() >= 2 && good.len() >= 4, "{faults:?} {good:?}");
}

/// Names that are no paths of objects are errors of the listing, and what is beside them is there.
#[tokio::test]
async fn names_that_are_no_paths_are_named() {
    let dir = dir();
    std::fs::write(dir.path().join("good"), "x").unwrap();
    std::fs::write(dir.path().join("control\n"), "x").unwrap();
    std::fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"latin\xe9")), "x").unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
    assert!(fifo.success());
    let (store, _) = stores(&dir);
    let all: Vec<_> = store.list(None).collect().await;
    let good: Vec<_> = all.iter().flatten().map(|meta| meta.location.as_ref()).collect();
    assert_eq!(good, ["good"]);
    let faults: Vec<String> = all.iter().filter_map(|entry| entry.as_ref().err()).map(ToString::to_string).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().any(|text| text.contains("not UTF-8") && text.contains("latin")), "{faults:?}");
    assert!(faults.iter().any(|text| text.contains("control")), "{faults:?}");
    assert!(matches!(store.get(&Path::from("pipe")).await, Err(Error::NotFound { .. })));
    // Names that are not asked for stop no page, and those that are asked for do.
    let page = async |prefix| store.list_paginated(Some(prefix), PaginatedListOptions::default()).await;
    assert_eq!(page("g").await.unwrap().result.objects.len(), 1);
    for prefix in ["", "l", "con"] {
        assert!(page(prefix).await.is_err(), "{prefix}");
    }
}
