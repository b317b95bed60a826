//! What a program sees of an error: its kind, and the text of `{:?}`; and the `Debug` forms of handles.

use iomill::{Array, ArrayOptions, Error, ErrorKind, FileOptions};

use super::small::drives;

/// A second array on the same drives is refused, and the first one stays.
#[test]
fn a_drive_of_an_array_is_refused_as_existing() {
    let (_dir, drives) = drives(2);
    Array::create(&drives).unwrap().close().unwrap();
    let error = Array::create(&drives).unwrap_err();
    assert!(matches!(error, Error::ArrayExists { .. }), "{error}");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::AlreadyExists, Some(libc::EEXIST)));
    let text = error.to_string();
    let (open, remove) = (text.find("open that array").unwrap(), text.find("remove the directory").unwrap());
    assert!(open < remove && text[remove..].contains("destroys all files"), "{text}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::AlreadyExists);
    Array::open(&drives[0]).unwrap().close().unwrap();
}

/// A directory inside an array that is not there is damage. A program that makes what is `NotFound` must not see it so.
///
/// Seen to be `NotFound` when the kind was that of the kernel's answer.
#[test]
fn a_directory_that_an_array_has_lost_is_damage() {
    let (_dir, drives) = drives(1);
    let array = ArrayOptions::new().cache_bytes(0).create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    std::fs::remove_dir_all(drives[0].join("iomill/parts")).unwrap();
    let error = file.write_at(&[1; 1 << 20], 0).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.kind() == ErrorKind::Corrupt, "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidData);
    let missing = iomill::open_plain(drives[0].join("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
}

/// The error of a `main` and of `unwrap` is for people.
#[test]
fn debug_forms_are_short() {
    let (_dir, drives) = drives(2);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let missing = array.open_file("none").unwrap_err();
    assert_eq!(format!("{missing:?}"), missing.to_string());
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    assert_eq!(format!("{file:?}"), "File { name: \"f\", .. }");
    let id = array.info().unwrap().id;
    assert_eq!(format!("{array:?}"), format!("Array {{ id: {id:?}, drives: 2, .. }}"));
    let draft = array.draft(&FileOptions::new()).unwrap();
    let forms = [
        format!("{draft:?}"),
        format!("{:?}", array.buffer(4096).unwrap()),
        format!("{:?}", array.list("")),
        format!("{:?}", file.cursor()),
        format!("{:?}", array.open_file_async("f")),
        format!("{:?}", file.read_at_async(vec![0; 10], 0)),
        format!("{:?}", iomill::Runtime::shared().unwrap()),
    ];
    for form in forms {
        let is_short = form.len() < 100 && !form.contains("ManuallyDrop") && !form.contains("Inner");
        assert!(is_short, "{form}");
    }
}

/// The handles that keep an array open are mostly those of the same process.
#[test]
fn a_lock_of_this_process_names_the_handles() {
    let (_dir, drives) = drives(1);
    let array = ArrayOptions::new().cache_bytes(0).create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    drop(array);
    let error = Array::open(&drives[0]).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }) && error.kind() == ErrorKind::InUse, "{error}");
    let text = error.to_string();
    assert!(text.contains("by this process, so it cannot be opened for writing"), "{text}");
    assert!(text.contains("`Array::close`") && text.contains("its files"), "{text}");
    file.close().unwrap();
    Array::open(&drives[0]).unwrap().close().unwrap();
}
