use super::*;
use crate::api::{Array, FileOptions, Layout};
use crate::api::{ArrayOptions, DEFAULT_DEPTH, Tuning};

const ID: &str = "000102030405060708090a0b0c0d0eff";

fn fault(text: &str) -> String {
    Profile::parse(text.as_bytes(), Path::new("p.toml")).unwrap_err().to_string()
}

#[test]
fn every_line_may_be_missing() {
    let read = |text: &str| Profile::parse(text.as_bytes(), Path::new("p.toml")).unwrap();
    let empty = Profile { path: "p.toml".into(), ..Profile::default() };
    assert_eq!(read("# nothing\nformat = 1\n"), empty);
    let drive = ProfileDrive { id: ID.to_owned(), path: "".into(), depth: None, weight: None };
    let bare = read(&format!("format = 1\n[[drive]]\nid = \"{ID}\"\n"));
    assert_eq!(bare, Profile { drives: vec![drive], ..empty });
}

#[test]
fn faults_are_reported_with_their_lines() {
    let with_drive = |lines: &str| format!("format = 1\n\n[[drive]]\nid = \"{ID}\"\n{lines}\n");
    for (text, parts) in [
        ("".to_owned(), vec!["p.toml: line 1", "lacks `format = 1`", "probing the drives"]),
        ("\n\nformat = 2\nqueue = 3\n".to_owned(), vec!["line 3", "of format 2", "later"]),
        ("format = 0\n".to_owned(), vec!["line 1", "no format 0"]),
        ("format = 1\ndrive_threads = \"yes\"\n".to_owned(), vec!["line 2", "boolean"]),
        ("format = 1\nthreads = 3\n".to_owned(), vec!["line 2", "unknown field `threads`", "`drive_threads`"]),
        ("format = 1\ndrive_threads = \n".to_owned(), vec!["line 2"]),
        (with_drive("depth = \"many\""), vec!["line 5", "invalid type: string \"many\""]),
        (with_drive("depth = 1025"), vec!["line 5", "depth = 1025", "1 to 1024"]),
        (with_drive("\nweight = -3"), vec!["line 6", "weight = -3", "1 to 1000"]),
        (with_drive("[[drive]]\ndepth = 3"), vec!["line 5", "missing field `id`"]),
        (with_drive(&format!("[[drive]]\nid = \"{ID}\"")), vec!["line 6", ID, "twice"]),
        (
            "format = 1\n[[drive]]\nid = \"ssd0\"\n".to_owned(),
            vec!["line 3", "\"ssd0\"", "32 hexadecimal", "information"],
        ),
    ] {
        let told = fault(&text);
        assert!(parts.iter().all(|part| told.contains(part)), "{text:?}: {told:?} lacks one of {parts:?}");
    }
    let told = Profile::parse(b"format = 1\n\xff\n", Path::new("p.toml")).unwrap_err().to_string();
    assert!(told.contains("line 2") && told.contains("not text"), "{told}");
    let told = Profile::read("/no/such/profile").unwrap_err().to_string();
    assert!(told.contains("/no/such/profile") && told.contains("No such file"), "{told}");
}

/// An array of two drives, and a profile of it.
fn array_and_profile() -> (tempfile::TempDir, Vec<PathBuf>, Profile) {
    let dir = crate::sys::real_fs::tests::scratch();
    let drives: Vec<PathBuf> = (0..2).map(|index| dir.path().join(format!("ssd{index}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = Array::create(&drives).unwrap();
    let info = array.info().unwrap();
    array.close().unwrap();
    let drive = |(index, drive): (usize, &crate::api::DriveInfo)| ProfileDrive {
        id: drive.id.clone(),
        path: drive.path.clone(),
        depth: Some(3 + index as u32),
        weight: Some(10 + 20 * index as u32),
    };
    let drives_of_profile = info.drives.iter().enumerate().map(drive).collect();
    let profile = Profile { drives: drives_of_profile, path: "p.toml".into(), ..Profile::default() };
    (dir, drives, profile)
}

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("iomill-drive-")).count()
}

#[test]
fn depths_reach_the_queues_and_options_win() {
    let (_dir, drives, profile) = array_and_profile();
    let array = ArrayOptions::new().profile(profile.clone()).open(&drives[0]).unwrap();
    let info = array.info().unwrap();
    assert_eq!(info.drives.iter().map(|drive| drive.depth).collect::<Vec<_>>(), [3, 4]);
    // More bytes at once than queues of these depths hold.
    let file = array.create_file("f", &FileOptions::new().block_bytes(4096)).unwrap();
    let bytes: Vec<u8> = (0..64 * 4096u32).map(|at| (at >> 4) as u8).collect();
    file.write_at(&bytes, 0).unwrap();
    let mut read = vec![0; bytes.len()];
    file.read_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    file.close().unwrap();
    assert!(array.notices().iter().all(|notice| !notice.contains("profile")), "{:?}", array.notices());
    array.close().unwrap();
    let array = ArrayOptions::new().profile(profile).depth(9).open(&drives[0]).unwrap();
    let info = array.info().unwrap();
    assert_eq!((info.drives[0].depth, info.drives[1].depth), (9, 9));
    array.close().unwrap();
    let refused = ArrayOptions::new().tuning(Tuning::new().plug(0)).open(&drives[0]).unwrap_err();
    assert!(refused.to_string().contains("a plug of 0"));
}

#[test]
fn weights_are_those_of_new_files_only() {
    let (_dir, drives, mut profile) = array_and_profile();
    let old = Array::open(&drives[0]).unwrap();
    old.create_file("old", &FileOptions::new().layout(Layout::Hash)).unwrap().close().unwrap();
    old.close().unwrap();
    let array = ArrayOptions::new().profile(profile.clone()).open(&drives[0]).unwrap();
    array.create_file("new", &FileOptions::new().layout(Layout::Hash)).unwrap().close().unwrap();
    array.create_file("swapped", &FileOptions::new().layout(Layout::Hash).drives([1, 0])).unwrap().close().unwrap();
    let weights = |array: &Array, name: &str| array.stat(name).unwrap().weights;
    assert_eq!(weights(&array, "old"), [1, 1]);
    assert_eq!((weights(&array, "new"), weights(&array, "swapped")), (vec![10, 30], vec![30, 10]));
    assert_eq!(array.info().unwrap().drives[1].weight, 30);
    array.close().unwrap();
    // Without the profile, files keep the weights of their creation.
    let array = Array::open(&drives[0]).unwrap();
    assert_eq!(weights(&array, "new"), [10, 30]);
    array.close().unwrap();
    // Two measures are not mixed.
    profile.drives[1].weight = None;
    let array = ArrayOptions::new().profile(profile).open(&drives[0]).unwrap();
    array.create_file("later", &FileOptions::new().layout(Layout::Hash)).unwrap().close().unwrap();
    assert_eq!(weights(&array, "later"), [1, 1]);
    assert!(array.notices().iter().any(|notice| notice.contains("no weight")), "{:?}", array.notices());
    array.close().unwrap();
}

/// Runs in a process of its own, so that it counts no threads of other tests.
#[test]
fn the_profile_decides_whether_drives_have_threads() {
    const CHILD: &str = "IOMILL_TEST_PROFILE_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let name = "api::profile::tests::the_profile_decides_whether_drives_have_threads";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads", "1"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let (_dir, drives, profile) = array_and_profile();
    for (profiled, given, expected) in
        [(true, None, 2), (false, None, 0), (true, Some(false), 0), (false, Some(true), 2)]
    {
        let profile = Profile { drive_threads: Some(profiled), ..profile.clone() };
        let options = ArrayOptions::new().cache_bytes(0).profile(profile);
        let options =
            given.into_iter().fold(options, |options, given| options.tuning(Tuning::new().drive_threads(given)));
        let array = options.open(&drives[0]).unwrap();
        let file = match array.open_file("f") {
            Ok(file) => file,
            Err(_) => array.create_file("f", &FileOptions::new()).unwrap(),
        };
        file.write_at(&[1; 8192], 0).unwrap();
        // The kernel shows a thread a little after its end, and before it has its name.
        let begun = std::time::Instant::now();
        while threads() != expected {
            assert!(begun.elapsed().as_secs() < 600, "{} threads: {profiled:?} {given:?}", threads());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(array.info().unwrap().drive_threads, given.unwrap_or(profiled));
        file.close().unwrap();
        array.close().unwrap();
    }
}

#[test]
fn missing_and_foreign_drives_are_reported() {
    let (_dir, drives, mut profile) = array_and_profile();
    profile.drives[1].id = ID.to_owned();
    profile.drives[1].path = "/mnt/other".into();
    let array = ArrayOptions::new().profile(profile.clone()).open(&drives[0]).unwrap();
    let told = array.notices().join("\n");
    for part in [&*drives[1].to_string_lossy(), "does not know", ID, "/mnt/other", "not of this array"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    assert_eq!(array.info().unwrap().drives[1].depth, DEFAULT_DEPTH);
    array.close().unwrap();
    let peek = ArrayOptions::new().profile(profile).peek([&drives[0]]).unwrap();
    assert!(peek.info().unwrap().notices.join("\n").contains("not of this array"));
}

/// A device as the profile, or a file from elsewhere, soon gets an error, and without control characters for the
/// terminal.
#[test]
fn hostile_files_are_refused_or_reported_in_short() {
    let told = Profile::read("/dev/zero").unwrap_err().to_string();
    assert!(told.contains("/dev/zero") && told.contains("too many"), "{told}");
    let told = fault(&format!("format = 1\na = {}", "[".repeat(200_000)));
    assert!(told.contains("line 2"), "{told}");
    let told = fault("format = 1\n\"\\u001b[31mX\" = 2\n");
    assert!(told.contains("[31mX") && !told.contains('\u{1b}'), "{told:?}");
    let many: String =
        (0..14_000).map(|id| format!("[[drive]]\nid = \"{id:032x}\"\npath = \"\\u001b[2J\\n\"\n")).collect();
    let many = Profile::parse(format!("format = 1\n{many}").as_bytes(), Path::new("p.toml")).unwrap();
    let (_dir, drives, _) = array_and_profile();
    let array = ArrayOptions::new().profile(many).open(&drives[0]).unwrap();
    let notices = array.notices();
    assert!(notices.len() < 20 && notices.iter().any(|notice| notice.contains("13992 more")), "{notices:?}");
    assert!(notices.iter().all(|notice| !notice.contains(char::is_control)), "{notices:?}");
    array.close().unwrap();
}
