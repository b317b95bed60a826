//! `iomill tune` on recorded machines, and without root on this one.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ended, Site};
use serde_json::Value;

/// A site with a recorded machine, which the command itself unpacks beside the drives.
fn site(record: &str) -> Site {
    let site = Site::bare(0);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trees/{record}.record"));
    fs::copy(file, site.path("record")).unwrap();
    site.run_bare(["tune", "--unpack", "record", "--root", "root", "--quiet"]).good();
    site
}

/// Runs the command on the recorded machine, with its state file beside that.
fn tune(site: &Site, arguments: &[&str]) -> Ended {
    let all = ["tune", "--root", "root", "--state", "state/tune.json"].iter().chain(arguments).copied();
    Ended::of(site.bare_command(all).env_remove("IOMILL_ARRAY").output().unwrap())
}

fn queue(site: &Site, file: &str) -> PathBuf {
    site.path("root/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/nvme/nvme0/nvme0n1/queue").join(file)
}

fn findings<'a>(document: &'a Value, what: &str) -> Vec<&'a Value> {
    document["findings"].as_array().unwrap().iter().filter(|finding| finding["what"] == what).collect()
}

#[test]
fn a_report_names_value_reason_and_tool_and_changes_nothing() {
    let site = site("two-socket-nvme");
    let text = tune(&site, &[]).good();
    let text = text.text();
    for words in [
        "Dell Inc. PowerEdge R760, Linux 6.8.0-45-generic, 8 CPUs, 2 nodes\n",
        "nvme0n1: Dell Ent NVMe PM1735a MU 1.6TB, NVMe, 1.5 TiB, node 0\n",
        "mend: nvme0n1 scheduler: mq-deadline -> none\n",
        "(SC'13)",
        "note: nvme0n1 coalescing: 8 completions or 100 us",
        "iomill never changes this",
        "more are as they should be (--all shows them)",
        "`iomill tune --apply` sets them, `--undo` puts the old values back. Nothing was changed.",
    ] {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
    assert!(
        !text.contains("\ngood: ")
            && tune(&site, &["--all"]).good().text().contains("\ngood: nvme1n1 scheduler: none\n")
    );
    assert!(fs::read_to_string(queue(&site, "scheduler")).unwrap().contains("[mq-deadline]"));
    assert!(!site.path("state").exists());
}

#[test]
fn setting_keeping_and_undoing() {
    let site = site("two-socket-nvme");
    fs::create_dir(site.path("etc")).unwrap();
    let ended = tune(&site, &["--apply", "--persist", "--dir", "etc", "--json"]).good().json();
    let changes = ended["changes"].as_array().unwrap();
    assert!(changes.len() > 10 && changes.iter().all(|change| change["refused"].is_null()), "{changes:?}");
    assert_eq!(ended["written"].as_array().unwrap().len(), 3);
    assert!(ended["notices"].to_string().contains("no file keeps"), "{}", ended["notices"]);
    assert_eq!(fs::read_to_string(queue(&site, "scheduler")).unwrap(), "[none] mq-deadline kyber bfq\n");
    assert!(site.path("etc/udev/rules.d/99-iomill.rules").exists() && site.path("state/tune.json").exists());
    assert!(tune(&site, &["--apply"]).good().text().contains("\nnothing to set\n"));
    let undone = tune(&site, &["--undo", "--json"]).good().json();
    assert!(undone["restored"].as_array().unwrap().len() > 10 && undone["files"].as_array().unwrap().len() == 3);
    assert_eq!(undone["failed"], serde_json::json!([]));
    assert_eq!(fs::read_to_string(queue(&site, "scheduler")).unwrap(), "none [mq-deadline] kyber bfq\n");
    assert!(!site.path("etc/udev/rules.d/99-iomill.rules").exists() && !site.path("state/tune.json").exists());
    assert!(tune(&site, &["--undo"]).good().text().starts_with("nothing to undo: "));
}

#[test]
fn what_the_kernel_refuses_is_reported_and_the_rest_is_set() {
    let site = site("sata-sas");
    let ended = tune(&site, &["--apply", "--only", "interrupts,scheduler"]);
    let text = ended.text().to_owned();
    let ended = ended.failed(1, &["settings, see above", "iomill tune --undo"]);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert!(
        text.contains("/proc/irq/63/smp_affinity_list: 0-3 -> 3: refused: the kernel manages this interrupt"),
        "{text}"
    );
    assert!(text.contains("/proc/irq/60/smp_affinity_list: 0-3 -> 2: set"), "{text}");
    let document = tune(&site, &["--json"]).good().json();
    assert_eq!(findings(&document, "scheduler").iter().filter(|one| one["verdict"] == "mend").count(), 0);
    assert!(
        findings(&document, "rq_affinity").iter().any(|one| one["verdict"] == "mend"),
        "only what was asked for is set"
    );
}

#[test]
fn drives_are_chosen_by_name_node_and_path() {
    let site = site("two-socket-nvme");
    let names = |arguments: &[&str]| {
        let all: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let document = tune(&site, &all).good().json();
        document["drives"]
            .as_array()
            .unwrap()
            .iter()
            .map(|drive| drive["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["nvme0n1", "nvme1n1", "nvme2n1"]);
    assert_eq!(names(&["nvme2n1", "/dev/nvme0n1", "/mnt/ssd0/x"]), ["nvme0n1", "nvme2n1"]);
    tune(&site, &["/mnt/ssd0", "relative"]).failed(1, &["relative", "give an absolute path"]);
    let document = tune(&site, &["--coalesce", "4,200us", "--only", "coalescing", "nvme1n1", "--json"]).good().json();
    assert_eq!(findings(&document, "coalescing")[0]["should"], "4 completions or 200 us");
    assert_eq!(document["findings"].as_array().unwrap().len(), 1);
}

#[test]
fn an_empty_machine_has_nothing_to_mend() {
    let site = site("empty");
    let ended = tune(&site, &["--apply"]).good();
    assert!(ended.text().contains("no drives") && ended.text().contains("nothing to set"), "{}", ended.text());
    assert!(!site.path("state").exists());
}

#[test]
fn a_record_comes_back_as_a_machine() {
    let site = site("cloud-vm");
    tune(&site, &["--record", "again"]).good();
    let first = tune(&site, &["--json"]).good().json();
    let second = site.run_bare(["tune", "--unpack", "again", "--root", "other", "--json"]).good().json();
    assert_eq!(first["findings"], second["findings"]);
    site.run_bare(["tune", "--unpack", "again", "--root", "other"]).failed(1, &["other", "not empty"]);
    site.run_bare(["tune", "--unpack", "again"]).failed(2, &["--root"]);
    site.file("bad", b"sys/x\n");
    site.run_bare(["tune", "--unpack", "bad", "--root", "third"]).failed(1, &["bad", "line 1"]);
    site.run_bare(["tune", "--unpack", "none", "--root", "third"]).failed(1, &["none", "No such file"]);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let site = site("empty");
    tune(&site, &["--undo", "--apply"]).failed(2, &["--undo", "--apply"]);
    tune(&site, &["--undo", "sda"]).failed(2, &["--undo"]);
    tune(&site, &["--dir", "x"]).failed(2, &["--persist"]);
    tune(&site, &["--only", "sheduler"]).failed(2, &["sheduler", "scheduler"]);
    tune(&site, &["--coalesce", "8"]).failed(2, &["8,100us"]);
    tune(&site, &["--persist", "--dir", "nowhere"]).failed(2, &["nowhere", "--dir"]);
    site.run_bare(["tune", "--root", "nowhere"]).failed(1, &["cannot look into", "nowhere"]);
    site.run_bare(["tune", "nosuchdrive"]).failed(1, &["nosuchdrive", "neither a block device"]);
    site.run_bare(["tune", "/no/such/path"]).failed(1, &["/no/such/path", "No such file"]);
    // The saved values and the /etc of this machine must not be used for a recorded one.
    for what in ["--apply", "--undo", "--persist"] {
        site.run_bare(["tune", "--root", "root", what]).failed(2, &["recorded machine", "--state FILE"]);
    }
    tune(&site, &["--persist"]).failed(2, &["recorded machine", "--dir DIR"]);
    site.file("state.json", b"{}");
    site.run_bare(["tune", "--root", "root", "--undo", "--state", "state.json"])
        .failed(1, &["state.json", "nothing was changed"]);
}

#[test]
fn this_machine_is_reported_as_it_is() {
    let site = Site::new(2);
    let ended = site.run(["tune", "--json"]);
    if ended.code != 0 {
        // In a container the drives may lie on no block device, or none may be visible.
        assert!(ended.err.contains("block device"), "{}", ended.err);
        return;
    }
    let document = ended.good().json();
    assert!(document["changes"].as_array().unwrap().is_empty() && document["findings"].as_array().unwrap().len() > 3);
    // Both directories lie on the same drives, if they lie on drives at all.
    let named = site.run_bare(["tune", "--json", "ssd0"]);
    if named.code == 0 {
        assert_eq!(named.json()["drives"], document["drives"]);
    }
}
