//! Listings on real files: lengths of open files, changes meanwhile, and the error after the array was closed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Array, ArrayOptions, CreateOptions, Error, FileOptions, Layout, Listed, Listing};

use super::places;

fn create(array: &Array, name: &str) -> iomill::File {
    array.create_file(name, &FileOptions::new()).unwrap()
}

fn names(listing: Listing) -> Vec<String> {
    let name = |entry: iomill::Result<Listed>| match entry.unwrap() {
        Listed::File(file) => file.name,
        Listed::Prefix(prefix) => format!("{prefix} ..."),
        other => panic!("{other:?}"),
    };
    listing.map(name).collect()
}

#[test]
fn a_listing_has_names_lengths_and_common_prefixes() {
    for dir in places() {
        let array = Array::create([dir.path()]).unwrap();
        for name in ["a/1", "a/2", "a/b/3", "b", "c/d/4"] {
            create(&array, name).write_at(name.as_bytes(), 0).unwrap();
        }
        assert_eq!(names(array.list("")), ["a/1", "a/2", "a/b/3", "b", "c/d/4"]);
        assert_eq!(names(array.list("").delimiter('/')), ["a/ ...", "b", "c/ ..."]);
        assert_eq!(array.list("").delimiter('/').names().unwrap(), ["a/", "b", "c/"]);
        assert_eq!(names(array.list("a/").delimiter('/')), ["a/1", "a/2", "a/b/ ..."]);
        assert_eq!(names(array.list("a/").delimiter('/').after("a/1")), ["a/2", "a/b/ ..."]);
        assert_eq!(names(array.list("").delimiter('/').after("a/")), ["b", "c/ ..."]);
        assert_eq!(names(array.list("a/").from("a/2")), ["a/2", "a/b/3"]);
        // A start before the prefix begins at its first name, and a start behind it lists nothing.
        assert_eq!(names(array.list("b").after("a/1")), ["b"]);
        assert_eq!(names(array.list("a/").from("b")), [""; 0]);

        let file = array.open_file("b").unwrap();
        file.write_at(&[1; 10_000], 0).unwrap();
        let listed = |mut listing: Listing| match listing.next().unwrap().unwrap() {
            Listed::File(file) => file,
            other => panic!("{other:?}"),
        };
        let (found, stat) = (listed(array.list("b")), array.stat("b").unwrap());
        assert_eq!((found.len_bytes, found.version), (10_000, stat.version));
        assert_eq!((found.created, found.modified), (stat.created, stat.modified));
        assert_eq!((found.layout, found.block_bytes, &*found.drives), (stat.layout, stat.block_bytes, &*stat.drives));
        let peek = ArrayOptions::new().peek([dir.path()]).unwrap();
        assert_eq!(listed(peek.list("b")).len_bytes, 1, "a look beside the writer sees what is durable");

        let mut begun = array.list("");
        let (mut unbegun, late) = (array.list(""), array.clone());
        begun.next().unwrap().unwrap();
        array.close().unwrap();
        let Some(Err(Error::Closed)) = begun.next() else { panic!("a closed array lists files") };
        assert!(begun.next().is_none());
        assert!(matches!(unbegun.next(), Some(Err(Error::Closed))));
        assert!(matches!(late.list("").names(), Err(Error::Closed)));
    }
}

#[test]
fn a_file_is_opened_or_created() {
    for dir in places() {
        let array = Array::create([dir.path()]).unwrap();
        assert!(!array.exists("a").unwrap());
        array.open_or_create_file("a", &FileOptions::new().layout(Layout::Hash)).unwrap().write_at(b"one", 0).unwrap();
        assert!(array.exists("a").unwrap());
        let again = array.open_or_create_file("a", &FileOptions::new()).unwrap();
        assert_eq!((again.len(), array.stat("a").unwrap().layout), (3, iomill::Layout::Hash));
        let later = crate::executor::block_on(array.open_or_create_file_async("b", &FileOptions::new())).unwrap();
        assert_eq!((later.len(), array.exists("b").unwrap()), (0, true));
        let late = array.clone();
        array.close().unwrap();
        assert!(matches!(late.exists("a"), Err(Error::Closed)));
    }
}

/// A file that another thread deletes between its creation and its opening is made again.
#[test]
fn opening_or_creating_outlasts_deletions() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = Array::create([dir.path()]).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let deleted = array.delete("f");
                assert!(matches!(deleted, Ok(()) | Err(Error::NotFound { .. })), "{deleted:?}");
            }
        });
        let made = (0..300).map(|_| array.open_or_create_file("f", &FileOptions::new()).map(drop));
        let made = made.collect::<iomill::Result<()>>();
        ends.store(true, Ordering::Relaxed);
        made.unwrap();
    });
    array.close().unwrap();
}

/// Files that exist throughout are listed once, whatever is created and deleted meanwhile.
#[test]
fn a_listing_goes_on_beside_changes() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = ArrayOptions::new().create_with([dir.path()], &CreateOptions::new().copies(1)).unwrap();
    let kept: Vec<String> = (0..700).map(|file| format!("{:04}", 10 * file)).collect();
    kept.iter().for_each(|name| drop(create(&array, name)));
    let mut listed = Vec::new();
    for (step, entry) in array.list("").enumerate() {
        let Listed::File(file) = entry.unwrap() else { panic!("there is no delimiter") };
        listed.push(file.name);
        if step % 50 == 0 {
            // Creates one name before the listing's position, one after it, and one that is deleted at once.
            drop(create(&array, &format!("{:04}", step + 1)));
            drop(create(&array, &format!("{:04}", 6_000 + step + 1)));
            drop(create(&array, "passing"));
            array.delete("passing").unwrap();
        }
    }
    assert!(listed.is_sorted(), "the listing is out of order");
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "an entry came twice");
    assert!(kept.iter().all(|name| once.contains(name)), "a file was left out");
    array.close().unwrap();
}
