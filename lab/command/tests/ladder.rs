//! `iomill-lab ladder --of sc13` on recorded machines: it switches all settings that it can, and restores the machine.

use std::fs;
use std::path::Path;

use iomill_platform::record::Record;

use crate::common::{Ended, Site, snapshot};

/// A site with a recorded machine, unpacked beside the drives.
fn site(record: &str) -> Site {
    let site = Site::bare(0);
    let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/iomill-cli/tests/trees");
    let text = fs::read_to_string(trees.join(format!("{record}.record"))).unwrap();
    fs::create_dir(site.path("root")).unwrap();
    Record::parse(&text).unwrap().unpack(&site.path("root")).unwrap();
    site
}

fn ladder(site: &Site, more: &[&str]) -> Ended {
    let fixed = "ladder --of sc13 --size 4MiB --seconds 0.1 --rounds 2 --threads 2 --state state/ladder.json --quiet";
    let all = fixed.split(' ').chain(["--root", "root"]).chain(more.iter().copied());
    Ended::of(site.bare_command(all).output().unwrap())
}

#[test]
fn the_ladder_climbs_says_what_it_cannot_switch_and_leaves_the_machine_as_it_was() {
    let site = site("cloud-vm");
    let before = snapshot(&site.path("root"));
    let document = ladder(&site, &["--json"]).good().json();
    let steps: Vec<&str> =
        document["results"].as_array().unwrap().iter().map(|row| row["contender"].as_str().unwrap()).collect();
    assert_eq!(
        steps,
        ["plain", "bound-threads", "noop-scheduler", "io-threads"].map(|step| format!("iomill-sc13-{step}"))
    );
    let out = &document["left_out"][0];
    assert!(
        out["contender"] == "iomill-sc13-even-interrupts" && out["why"].as_str().unwrap().contains("nothing to spread"),
        "{out}"
    );
    assert_eq!(snapshot(&site.path("root")), before);
    assert!(!site.path("state/ladder.json").exists());
    // The next run restores the settings that a killed run had changed.
    let saved =
        r#"{"version":1,"boot":"","settings":[{"path":"PATH","text":"none [mq-deadline] kyber bfq"}],"files":[]}"#;
    let path = "sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/queue/scheduler";
    fs::write(site.path("state/ladder.json"), saved.replace("PATH", path)).unwrap();
    fs::write(site.path("root").join(path), "[none] mq-deadline kyber bfq\n").unwrap();
    let text = ladder(&site, &[]).good();
    for words in ["noop-scheduler", "x before", "even-interrupts changes nothing here: "] {
        assert!(text.text().contains(words), "{}", text.text());
    }
    assert_eq!(snapshot(&site.path("root")), before);
}

#[test]
fn the_ladder_spreads_interrupts_where_it_can() {
    let site = site("sata-sas");
    let before = snapshot(&site.path("root"));
    let document = ladder(&site, &["--json"]).good().json();
    // The drive's interrupt moves from the first CPU to a near one, which is also the first: nothing changes.
    assert_eq!(document["left_out"].as_array().unwrap().len(), 1, "{}", document["left_out"]);
    assert_eq!(snapshot(&site.path("root")), before);
    site.run_bare(["ladder"]).failed(2, &["--of"]);
    site.run_bare(["ladder", "--of", "sc12"]).failed(2, &["sc13"]);
    let two = ["ladder", "--of", "sc13", "--dir", "a", "--dir", "b"];
    site.run_bare(two).failed(2, &["give --dir only once"]);
}
