//! Findings on recorded machines, and what settings and undo do to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use iomill_cli::tune::apply::{self, Outcome};
use iomill_cli::tune::finding::{Finding, Verdict};
use iomill_cli::tune::findings::{self, Coalescing, NAMES, Wishes};
use iomill_cli::tune::persist::{self, Plan};
use iomill_cli::tune::state::{self, Store};
use iomill_platform::devices;
use iomill_platform::drives::{self, Drive, Transport};
use iomill_platform::interrupts::{self, Mobility};
use iomill_platform::machine::Machine;
use iomill_platform::record::Record;
use iomill_platform::tree::Tree;
use tempfile::TempDir;

const ALL: [&str; 5] = ["two-socket-nvme", "four-node-nvme", "sata-sas", "cloud-vm", "empty"];

/// A recorded machine in a directory.
struct Place {
    dir: TempDir,
    tree: Tree,
    machine: Machine,
}

fn trees() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

fn place(name: &str) -> Place {
    let text = fs::read_to_string(trees().join(format!("{name}.record"))).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    Record::parse(&text).unwrap().unpack(&root).unwrap();
    let tree = Tree::at(&root).unwrap();
    let machine = Machine::look(&tree);
    Place { dir, tree, machine }
}

impl Place {
    fn drives(&self) -> Vec<Drive> {
        drives::all(&self.tree, &self.machine)
    }

    fn findings(&self, wishes: &Wishes) -> Vec<Finding> {
        findings::all(&self.tree, &self.machine, &self.drives(), wishes)
    }

    fn store(&self) -> Store {
        Store::open(&self.dir.path().join("state/tune.json")).unwrap()
    }

    fn names_under(&self, path: &str) -> Vec<String> {
        drives::under(&self.tree, &self.machine, &[path]).unwrap().into_iter().map(|drive| drive.name).collect()
    }

    /// The bytes of every file.
    fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.dir.path().join("root")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.symlink_metadata().unwrap().file_type() {
                    kind if kind.is_dir() => directories.push(path),
                    kind if kind.is_file() => drop(files.insert(path.clone(), fs::read_to_string(path).unwrap())),
                    _ => {}
                }
            }
        }
        files
    }
}

fn find<'a>(found: &'a [Finding], subject: &str, what: &str) -> &'a Finding {
    let mut fitting = found.iter().filter(|finding| finding.subject == subject && finding.what == what);
    fitting.next().unwrap_or_else(|| panic!("no finding {what} of {subject}"))
}

#[test]
fn findings_are_those_that_were_judged_right() {
    for name in ALL {
        let lines = place(name).findings(&Wishes::default()).into_iter().map(|finding| {
            let Finding { subject, what, verdict, is, should, .. } = finding;
            format!("{} {subject} {what}: {is} -> {should}\n", verdict.word())
        });
        let text: String = lines.collect();
        let file = trees().join(format!("{name}.findings"));
        if std::env::var_os("IOMILL_BLESS").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        for (expected, found) in expected.lines().zip(text.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(text, expected, "{name}");
    }
}

#[test]
fn every_finding_has_a_reason_and_a_source_and_each_check_finds_something() {
    let mut seen = std::collections::HashSet::new();
    for name in ALL {
        for finding in place(name).findings(&Wishes::default()) {
            assert!(NAMES.contains(&finding.what) && !finding.source.is_empty(), "{finding:?}");
            assert!(finding.verdict == Verdict::Good || !finding.why.is_empty(), "{finding:?}");
            assert!(finding.verdict != Verdict::Mend || !finding.settings.is_empty(), "{finding:?}");
            seen.insert(finding.what);
        }
    }
    let missing: Vec<_> = NAMES.iter().filter(|name| !seen.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn drives_are_reported_with_their_nodes() {
    let told = |name| -> Vec<(String, Transport, Option<u32>, Vec<usize>)> {
        place(name).drives().into_iter().map(|drive| (drive.name, drive.transport, drive.node, drive.near)).collect()
    };
    let near = |node: u32| (4 * node as usize..4 * node as usize + 4).collect::<Vec<_>>();
    assert_eq!(
        told("two-socket-nvme"),
        [("nvme0n1", 0), ("nvme1n1", 1), ("nvme2n1", 1)].map(|(name, node)| (
            name.into(),
            Transport::Nvme,
            Some(node),
            near(node)
        ))
    );
    let sata: Vec<(String, Transport)> = told("sata-sas").into_iter().map(|drive| (drive.0, drive.1)).collect();
    let expected =
        [("sda", Transport::Sata), ("sdb", Transport::Sas), ("sdc", Transport::Sata), ("sdd", Transport::Sata)];
    assert_eq!(sata, expected.map(|(name, transport)| (name.to_owned(), transport)));
    let four: Vec<_> =
        told("four-node-nvme").into_iter().filter(|drive| drive.1 == Transport::Nvme).map(|drive| drive.2).collect();
    assert_eq!(four, [3, 2, 1, 0].map(Some));
    assert_eq!(told("cloud-vm"), [("vda".into(), Transport::Virtio, None, vec![0, 1])]);
    assert_eq!(told("empty"), []);
}

#[test]
fn paths_lead_to_the_drives_below() {
    let two = place("two-socket-nvme");
    for (path, expected) in [
        ("/mnt/ssd0/a/b", "nvme0n1"),
        ("/mnt/ssd1", "nvme1n1"),
        ("/dev/nvme1n1p2", "nvme1n1"),
        ("nvme1n1p1", "nvme1n1"),
        ("/mnt/ssd2", "nvme2n1"),
        ("/home", "nvme1n1"),
    ] {
        assert_eq!(two.names_under(path), [expected], "{path}");
    }
    let sata = place("sata-sas");
    assert_eq!(sata.names_under("/data/x"), ["sda", "sdb"]);
    assert_eq!(sata.names_under("dm-0"), ["sda", "sdb"]);
    let error = drives::under(&sata.tree, &sata.machine, &["/dev/shm/x"]).unwrap_err().to_string();
    assert!(error.contains("tmpfs") && error.contains("no block device"), "{error}");
    let error = drives::under(&place("empty").tree, &Machine::default(), &["x"]).unwrap_err().to_string();
    assert!(error.contains("no mounted file system holds it"), "{error}");
}

#[test]
fn a_namespace_with_paths_is_tuned_on_its_paths() {
    let two = place("two-socket-nvme");
    let drive = two.drives().pop().unwrap();
    assert_eq!((drive.name.as_str(), drive.controller.as_deref()), ("nvme2n1", Some("nvme2")));
    assert!(drive.queues.len() == 1 && drive.queues[0].ends_with("/nvme2/nvme2c2n1"), "{:?}", drive.queues);
    let found = two.findings(&Wishes::default());
    assert_eq!(find(&found, "nvme2n1", "scheduler").is, "bfq");
}

#[test]
fn managed_interrupts_are_known_without_trying() {
    let two = place("two-socket-nvme");
    let found = interrupts::of(&two.tree, &two.drives()[0]);
    let names: Vec<&str> = found.iter().map(|interrupt| interrupt.name.as_str()).collect();
    assert_eq!(
        names,
        (1..=8).map(|queue| format!("nvme0q{queue}")).collect::<Vec<_>>(),
        "the admin queue carries no I/O"
    );
    assert!(found.iter().all(|interrupt| interrupt.mobility == Mobility::Managed && interrupt.count > 90_000));
    // The kernel's own word comes first, if it is available.
    let debug = two.tree.place("sys/kernel/debug/irq/irqs");
    fs::create_dir_all(&debug).unwrap();
    fs::write(debug.join(found[0].number.to_string()), "dstate:   0x35401200\n            IRQD_ACTIVATED\n").unwrap();
    fs::write(debug.join(found[1].number.to_string()), "            IRQD_AFFINITY_MANAGED\n").unwrap();
    let again = interrupts::of(&two.tree, &two.drives()[0]);
    assert_eq!((again[0].mobility, again[1].mobility), (Mobility::Free, Mobility::Managed));
}

#[test]
fn what_is_set_is_put_back_byte_by_byte() {
    for name in ALL {
        let place = place(name);
        let before = place.snapshot();
        let found = place.findings(&Wishes::default());
        let pending = apply::pending(&place.tree, &found);
        assert_eq!(place.snapshot(), before, "{name}: a look changes nothing");
        let store = place.store();
        let changes = apply::apply(&place.tree, &pending, &store).unwrap();
        assert_eq!(changes.len(), pending.len());
        assert_eq!(pending.is_empty(), name == "empty", "{name}: {pending:?}");
        for change in &changes {
            let text = fs::read_to_string(place.tree.place(change.path.trim_start_matches('/'))).unwrap();
            match &change.outcome {
                Outcome::Set => assert!(text.contains(&change.value), "{change:?}"),
                Outcome::Refused(why) => {
                    assert!(why.contains("manages this interrupt") && name == "sata-sas", "{change:?}")
                }
            }
        }
        // A second round changes only settings that were refused, and keeps the first old values.
        let again = apply::pending(&place.tree, &place.findings(&Wishes::default()));
        assert_eq!(
            again.len(),
            changes.iter().filter(|change| change.outcome != Outcome::Set).count(),
            "{name}: {again:?}"
        );
        apply::apply(&place.tree, &again, &store).unwrap();
        let undone = apply::undo(&place.tree, &store).unwrap().unwrap();
        assert_eq!((undone.failed, undone.notes), (vec![], vec![]), "{name}");
        assert_eq!(place.snapshot(), before, "{name}");
        assert_eq!(apply::undo(&place.tree, &store).unwrap(), None, "{name}: a second undo finds nothing");
    }
}

#[test]
fn what_was_is_saved_before_anything_changes() {
    let place = place("two-socket-nvme");
    let before = place.snapshot();
    let pending = apply::pending(&place.tree, &place.findings(&Wishes::default()));
    let store = place.store();
    // A directory takes the state's place, so the state cannot be written.
    fs::create_dir(store.path()).unwrap();
    assert!(apply::apply(&place.tree, &pending, &store).is_err());
    assert_eq!(place.snapshot(), before);
    fs::remove_dir(store.path()).unwrap();
    apply::apply(&place.tree, &pending, &store).unwrap();
    let saved = store.load().unwrap().unwrap();
    let path = |end: &str| saved.settings.iter().any(|one| one.path.ends_with(end));
    assert!(
        path("/nvme0n1/queue/scheduler") && path("/iosched/read_expire") && path("/nvme0n1/queue/wbt_lat_usec"),
        "{saved:?}"
    );
    // Another program changes both a setting that changed along and one that was made.
    let queue = place.drives()[0].queues[0].clone() + "/queue";
    place.tree.write(&format!("{queue}/wbt_lat_usec"), "0").unwrap();
    place.tree.write(&format!("{queue}/scheduler"), "kyber").unwrap();
    apply::undo(&place.tree, &store).unwrap().unwrap();
    assert_eq!(place.snapshot(), before);
}

#[test]
fn a_restart_leaves_files_alone_to_put_back() {
    let place = place("sata-sas");
    let etc = place.dir.path().join("etc");
    fs::create_dir_all(etc.join("sysctl.d")).unwrap();
    fs::write(etc.join("sysctl.d/99-iomill.conf"), "# mine\n").unwrap();
    let found = place.findings(&Wishes::default());
    let store = place.store();
    apply::apply(&place.tree, &apply::pending(&place.tree, &found), &store).unwrap();
    let plan = Plan::new(&place.tree, &place.drives(), &found);
    let written = plan.write(&etc, &persist::boot_of(&place.tree), &store).unwrap();
    assert_eq!(written, [etc.join("udev/rules.d/99-iomill.rules")]);
    place.tree.write("proc/sys/kernel/random/boot_id", "another").unwrap();
    let running = place.snapshot();
    let undone = apply::undo(&place.tree, &store).unwrap().unwrap();
    assert!(undone.restored.is_empty() && undone.notes[0].contains("a restart of the machine"), "{undone:?}");
    assert_eq!(place.snapshot(), running, "settings of another run are not touched");
    assert!(!written[0].exists());
    assert_eq!(
        fs::read_to_string(etc.join("sysctl.d/99-iomill.conf")).unwrap(),
        "# mine\n",
        "the file is not ours, and there is nothing to keep"
    );
}

#[test]
fn what_is_kept_names_drives_by_what_does_not_change() {
    let two = place("two-socket-nvme");
    let found = two.findings(&Wishes::default());
    let plan = Plan::new(&two.tree, &two.drives(), &found);
    let etc = two.dir.path().join("etc");
    assert!(plan.write(&etc, "", &two.store()).unwrap_err().to_string().contains("etc"), "the directory must exist");
    fs::create_dir(&etc).unwrap();
    let store = two.store();
    assert_eq!(plan.write(&etc, "", &store).unwrap().len(), 3);
    let read = |name: &str| fs::read_to_string(etc.join(name)).unwrap();
    let udev = read(state::FILES[0]);
    let expected = "ATTR{wwid}==\"eui.36434730528002690025384500000001\", ATTR{queue/scheduler}=\"none\", ATTR{queue/nr_requests}=\"256\", \
                    ATTR{queue/rq_affinity}=\"1\", ATTR{queue/nomerges}=\"2\", ATTR{queue/add_random}=\"0\"\n";
    assert!(udev.contains(expected), "{udev}");
    assert_eq!(read(state::FILES[1]).lines().nth(1), Some("fs.aio-max-nr = 1048576"));
    let tmpfiles = read(state::FILES[2]);
    assert!(tmpfiles.contains("w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n"), "{tmpfiles}");
    assert!(
        tmpfiles.contains("w /sys/devices/system/cpu/cpufreq/policy0/scaling_governor - - - - performance\n"),
        "{tmpfiles}"
    );
    // udev does not see the paths of a namespace with several, and interrupts have other numbers tomorrow.
    assert!(plan.not_kept.iter().any(|path| path.contains("nvme2c2n1")), "{:?}", plan.not_kept);
    apply::undo(&two.tree, &store).unwrap().unwrap();
    assert!(state::FILES.iter().all(|name| !etc.join(name).exists()));
    let sata = place("sata-sas");
    let plan = Plan::new(&sata.tree, &sata.drives(), &sata.findings(&Wishes::default()));
    fs::create_dir(sata.dir.path().join("etc")).unwrap();
    plan.write(&sata.dir.path().join("etc"), "", &sata.store()).unwrap();
    let udev = fs::read_to_string(sata.dir.path().join("etc").join(state::FILES[0])).unwrap();
    assert!(
        udev.contains("ATTR{device/wwid}==\"naa.5002538c4071b2a3\"")
            && udev.contains("ATTR{device/queue_depth}=\"31\""),
        "{udev}"
    );
    assert!(udev.contains("KERNEL==\"sdd\""), "{udev}");
    assert!(plan.not_kept.iter().any(|path| path.starts_with("/proc/irq/")), "{:?}", plan.not_kept);
}

#[test]
fn coalescing_is_set_only_when_asked_for() {
    let two = place("two-socket-nvme");
    let is = |found: &[Finding], drive: &str| find(found, drive, "coalescing").clone();
    let found = two.findings(&Wishes::default());
    assert_eq!(is(&found, "nvme0n1").is, "8 completions or 100 us");
    assert_eq!(is(&found, "nvme1n1").is, "an interrupt for each completion");
    assert_eq!(is(&found, "nvme2n1").verdict, Verdict::Unknown);
    assert!(found.iter().all(|finding| finding.what != "coalescing" || finding.settings.is_empty()));
    let wishes = Wishes { coalescing: Some(Coalescing { completions: 8, time_100us: 1 }) };
    let found = two.findings(&wishes);
    assert_eq!((is(&found, "nvme0n1").verdict, is(&found, "nvme1n1").verdict), (Verdict::Good, Verdict::Mend));
    let pending = apply::pending(&two.tree, &[is(&found, "nvme1n1")]);
    let changes = apply::apply(&two.tree, &pending, &two.store()).unwrap();
    assert_eq!((changes[0].value.as_str(), &changes[0].outcome), ("0x107", &Outcome::Set));
}

#[test]
fn a_drive_that_is_gone_is_reported() {
    let place = place("sata-sas");
    let store = place.store();
    apply::apply(&place.tree, &apply::pending(&place.tree, &place.findings(&Wishes::default())), &store).unwrap();
    let queue = place.tree.place(&format!("{}/queue", place.drives()[0].directory));
    fs::remove_dir_all(queue).unwrap();
    let undone = apply::undo(&place.tree, &store).unwrap().unwrap();
    assert!(
        undone.failed.is_empty() && undone.notes.iter().any(|note| note.contains("sda/queue/scheduler is gone")),
        "{undone:?}"
    );
}

#[test]
fn a_record_of_a_record_finds_the_same() {
    for name in ALL {
        let first = place(name);
        let root = first.dir.path().join("root");
        let tree = Tree::at(&root).unwrap().recording();
        let machine = Machine::look(&tree);
        let found = findings::all(&tree, &machine, &drives::all(&tree, &machine), &Wishes::default());
        let again = first.dir.path().join("again");
        fs::create_dir(&again).unwrap();
        tree.take_record().unpack(&again).unwrap();
        let tree = Tree::at(&again).unwrap();
        let machine = Machine::look(&tree);
        let again = findings::all(&tree, &machine, &drives::all(&tree, &machine), &Wishes::default());
        for (found, again) in found.iter().zip(&again) {
            assert_eq!(again, found, "{name}");
        }
        assert_eq!(again.len(), found.len(), "{name}");
    }
}

/// The library, which looks devices up by number to bind drive threads, and `tune` find the same node for a drive.
#[test]
fn the_library_finds_the_same_nodes() {
    let mut seen = 0;
    for name in ["two-socket-nvme", "four-node-nvme"] {
        let place = place(name);
        let drives = place.drives();
        for drive in &drives {
            let number = place.tree.get(&format!("{}/dev", drive.directory)).unwrap();
            let (major, minor) = number.split_once(':').unwrap();
            // A record keeps only the numbers that were read.
            let number = (major.parse().unwrap(), minor.parse().unwrap());
            let Some(found) = devices::find(&place.tree, number) else { continue };
            assert_eq!((&found.name, found.node), (&drive.name, drive.node), "{name}");
            assert!(found.node.is_some(), "{name}: {}", drive.name);
            seen += usize::from(drive.directory.contains("/nvme-subsystem/"));
        }
    }
    assert_eq!(seen, 1, "the namespace behind the multipath layer was among the drives");
    // Its second path appears, on the other node: now it is near neither.
    let place = place("two-socket-nvme");
    let sys = place.dir.path().join("root/sys");
    let subsystem = sys.join("devices/virtual/nvme-subsystem/nvme-subsys2");
    let node = || devices::find(&place.tree, (259, 5)).unwrap().node;
    assert!(node().is_some());
    let other = if node() == Some(0) { "nvme1" } else { "nvme0" };
    let controller = fs::canonicalize(sys.join(format!("block/{other}n1"))).unwrap().parent().unwrap().to_owned();
    std::os::unix::fs::symlink(controller, subsystem.join(other)).unwrap();
    assert_eq!(node(), None);
    assert_eq!(place.drives().iter().find(|drive| drive.name == "nvme2n1").unwrap().node, None);
}
