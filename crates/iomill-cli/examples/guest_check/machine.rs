//! Checks on the emulated machine with four nodes and known drives: `iomill tune`, `iomill probe`, drive threads and
//! polling.
//!
//! Goals: compare the command's answers with the kernel's own. Non-goals: speed, which an emulated machine does not
//! show.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Result, check, iomill, iomill_good, lab_good, read, write};

/// Nodes, each with one CPU of the same number and one NVMe drive.
const NODES: usize = 4;
const PROFILE: &str = "/tmp/profile.toml";
const STATE: &str = "/tmp/state/tune.json";

/// All checks of this boot.
pub fn checks() -> Result<()> {
    let drives = find_drives()?;
    nodes_are_reported(&drives)?;
    let places = mount(&drives)?;
    spoil(&drives)?;
    record()?;
    tune_sets_and_puts_back(&drives)?;
    managed_interrupts_stay(&drives)?;
    coalescing_is_read_and_refused(&drives)?;
    make_array(&places)?;
    let probed = probe_names_nodes(&drives, &places)?;
    paths_are_polled_and_traced(&probed)?;
    raw_devices_are_read_and_not_taken(&drives)?;
    profile_is_followed(&probed, &places)?;
    threads_run_near_their_drives(&drives, &places)?;
    polling_reads_the_same(&places)?;
    ladder_climbs_and_restores(&places)?;
    Ok(())
}

fn tune(arguments: &[&str]) -> Result<Value> {
    let all: Vec<&str> = ["tune", "--json", "--state", STATE].into_iter().chain(arguments.iter().copied()).collect();
    Ok(serde_json::from_str(&iomill_good(&all)?)?)
}

/// Names of the NVMe drives by node. The serial numbers say which node a drive is on.
fn find_drives() -> Result<Vec<String>> {
    let mut drives = BTreeMap::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("nvme") {
            continue;
        }
        let serial = read(format!("/sys/block/{name}/device/serial"))?;
        let node: usize = serial.trim().trim_start_matches("node").parse()?;
        drives.insert(node, name);
    }
    check(drives.keys().copied().eq(0..NODES), format!("drives {drives:?}"))?;
    println!("ok: the drives of nodes 0 to 3 are {drives:?}");
    Ok(drives.into_values().collect())
}

fn nodes_are_reported(drives: &[String]) -> Result<()> {
    let said = tune(&[])?;
    for (node, name) in drives.iter().enumerate() {
        let drive = said["drives"].as_array().and_then(|all| all.iter().find(|drive| drive["name"] == **name));
        let drive = drive.ok_or_else(|| format!("tune does not name {name}"))?;
        check(
            drive["node"] == node && drive["cpus"] == serde_json::json!([node]),
            format!("{name} is on node {node}: {drive}"),
        )?;
    }
    println!("ok: tune names the node of each drive");
    Ok(())
}

fn mount(drives: &[String]) -> Result<Vec<PathBuf>> {
    let mut places = Vec::new();
    for (node, name) in drives.iter().enumerate() {
        let place = PathBuf::from(format!("/mnt/{node}"));
        fs::create_dir(&place)?;
        let status = Command::new("mount").args(["-t", "ext4", &format!("/dev/{name}")]).arg(&place).status()?;
        check(status.success(), format!("/dev/{name} cannot be mounted"))?;
        places.push(place);
    }
    Ok(places)
}

/// Sets wrong values that `tune` should change, and values that a wrong undo would lose.
fn spoil(drives: &[String]) -> Result<()> {
    for name in drives.iter().map(String::as_str).chain(["sda"]) {
        let queue = format!("/sys/block/{name}/queue");
        write(format!("{queue}/scheduler"), "mq-deadline")?;
        write(format!("{queue}/iosched/read_expire"), "123")?;
        write(format!("{queue}/wbt_lat_usec"), "4321")?;
        write(format!("{queue}/nr_requests"), "100")?;
        write(format!("{queue}/rq_affinity"), "0")?;
        write(format!("{queue}/add_random"), "1")?;
    }
    Ok(())
}

fn record() -> Result<()> {
    iomill_good(&["tune", "--record", "/tmp/record"])?;
    println!("RECORD-BEGIN\n{}\nRECORD-END", read("/tmp/record")?);
    Ok(())
}

/// Every file that `tune` could change, by intent or by mistake.
fn snapshot() -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![PathBuf::from("/proc/irq")];
    for entry in fs::read_dir("/sys/block")? {
        directories.push(entry?.path().join("queue"));
    }
    for path in ["/proc/sys/fs/aio-max-nr", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        files.insert(path.into(), read(path)?);
    }
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = fs::read_to_string(&path)
                // These files hold counts and states, not settings.
                && !path.ends_with("spurious")
                && !path.to_string_lossy().contains("effective_affinity")
            {
                files.insert(path, text);
            }
        }
    }
    Ok(files)
}

fn is_as_it_was(before: &BTreeMap<PathBuf, String>) -> Result<()> {
    let after = snapshot()?;
    for (path, text) in before {
        check(after.get(path) == Some(text), format!("{} was {text:?} and is {:?}", path.display(), after.get(path)))?;
    }
    check(after.len() == before.len(), "there are files that were not there before")
}

fn sata_interrupt() -> Result<String> {
    let table = read("/proc/interrupts")?;
    let line = table.lines().find(|line| line.contains("ahci[") && !line.contains("0000:00:1f.2"));
    let number = line.and_then(|line| line.trim_start().split(':').next()).ok_or("no interrupt of the SATA adapter")?;
    Ok(format!("/proc/irq/{number}/smp_affinity_list"))
}

fn tune_sets_and_puts_back(drives: &[String]) -> Result<()> {
    let before = snapshot()?;
    let report = tune(&[])?;
    check(report["changes"].as_array().is_some_and(Vec::is_empty), "a dry run changes nothing")?;
    check(snapshot()? == before, "a dry run leaves everything as it was")?;
    let applied = tune(&["--apply"])?;
    for change in applied["changes"].as_array().ok_or("no changes")? {
        check(change["refused"].is_null(), format!("refused: {change}"))?;
    }
    for name in drives {
        let queue = format!("/sys/block/{name}/queue");
        let is = |file: &str| read(format!("{queue}/{file}"));
        check(is("scheduler")?.contains("[none]"), format!("{name}: {}", is("scheduler")?))?;
        check(is("nr_requests")?.parse::<u32>()? >= 256, format!("{name}: {} requests", is("nr_requests")?))?;
        check(
            is("nomerges")? == "2" && is("add_random")? == "0" && is("rq_affinity")? != "0",
            format!("{name}: queue settings"),
        )?;
    }
    let sata = sata_interrupt()?;
    check(read(&sata)? == "1", format!("{sata} is {} and should be node 1's CPU", read(&sata)?))?;
    println!(
        "ok: tune sets {} files, the free interrupt of the SATA drive among them",
        applied["changes"].as_array().map_or(0, Vec::len)
    );
    let again = tune(&["--apply"])?;
    check(
        again["changes"].as_array().is_some_and(Vec::is_empty),
        format!("nothing is left to set: {}", again["changes"]),
    )?;
    tune(&["--undo"])?;
    is_as_it_was(&before)?;
    check(!Path::new(STATE).exists(), "the state is left over")?;
    println!("ok: undo restores all {} files of queues and interrupts, byte by byte", before.len());
    Ok(())
}

/// The kernel refuses to move the interrupts that the command calls managed.
fn managed_interrupts_stay(drives: &[String]) -> Result<()> {
    let report = tune(&["--only", "interrupts"])?;
    for name in drives {
        let finding = report["findings"].as_array().and_then(|all| all.iter().find(|one| one["subject"] == **name));
        let is = finding.and_then(|finding| finding["is"].as_str()).ok_or("no finding")?;
        check(is.contains("managed by the kernel"), format!("{name}: {is}"))?;
    }
    let table = read("/proc/interrupts")?;
    for line in table.lines().filter(|line| line.contains("nvme0q") && !line.trim_end().ends_with("nvme0q0")) {
        let number = line.trim_start().split(':').next().unwrap_or_default();
        let refused =
            fs::write(format!("/proc/irq/{number}/smp_affinity_list"), "0").err().and_then(|e| e.raw_os_error());
        check(refused == Some(5), format!("interrupt {number} of a queue: error {refused:?}, not EIO"))?;
    }
    println!("ok: the kernel refuses to move the interrupts that tune calls managed");
    Ok(())
}

fn coalescing_is_read_and_refused(drives: &[String]) -> Result<()> {
    let report = tune(&["--only", "coalescing", &drives[0]])?;
    let is = report["findings"][0]["is"].as_str().unwrap_or_default().to_owned();
    check(is == "an interrupt for each completion", format!("coalescing: {is}"))?;
    // The emulated controller has the feature, but refuses to change it.
    let (code, out, err) =
        iomill(&["tune", "--state", STATE, "--only", "coalescing", "--coalesce", "8,100us", "--apply", &drives[0]])?;
    check(
        code == 1 && out.contains("refused: the controller") && err.contains("1 of 1"),
        format!("{code} {out} {err}"),
    )?;
    tune(&["--undo"])?;
    println!("ok: tune reads feature 08h by an admin command, and reports that it cannot be changed");
    Ok(())
}

fn make_array(places: &[PathBuf]) -> Result<()> {
    let mut arguments = vec!["init"];
    arguments.extend(places.iter().filter_map(|place| place.to_str()));
    iomill_good(&arguments)?;
    Ok(())
}

fn probe_names_nodes(drives: &[String], places: &[PathBuf]) -> Result<Value> {
    let place = places[0].to_string_lossy();
    let out =
        iomill_good(&["-a", &place, "probe", "--size", "4MiB", "--seconds", "0.1", "--json", "--profile", PROFILE])?;
    let probed: Value = serde_json::from_str(&out)?;
    for node in 0..places.len() {
        let drive = &probed["drives"][node];
        let is_right = drive["node"] == node
            && drive["path"] == format!("/mnt/{node}")
            && drive["devices"] == serde_json::json!([drives[node]]);
        check(is_right, format!("drive {node}: {drive}"))?;
        check(
            drive["latency"]["device_us"].is_f64(),
            format!("the latency of drive {node} is not split: {}", drive["latency"]),
        )?;
    }
    println!("ok: probe names the node of each drive and splits its latency; it says: {}", probed["verdict"][0]);
    Ok(probed)
}

/// The kernel's tracing splits reads into parts, and polling is measured as a path of its own.
fn paths_are_polled_and_traced(probed: &Value) -> Result<()> {
    for drive in probed["drives"].as_array().ok_or("no drives")? {
        let latency = &drive["latency"];
        let traced = latency["split_by"].as_str().is_some_and(|by| by.contains("tracing"));
        let parts = ["submit_us", "device_us", "complete_us"].map(|part| latency[part].as_f64());
        check(traced && parts.iter().all(|part| part.is_some_and(|us| us > 0.0)), format!("not traced: {latency}"))?;
    }
    let left = fs::read_dir("/sys/kernel/tracing/instances")?.count();
    check(left == 0, format!("{left} instances of tracing are left over"))?;
    let paths = probed["paths"].as_array().ok_or("no paths")?;
    for engine in ["io_uring", "posix"] {
        let is_it = |path: &&Value| path["engine"] == engine && path["polled"] == true && path["direct"] == true;
        let polled = paths.iter().find(is_it).ok_or_else(|| format!("{engine} was not polled: {paths:?}"))?;
        check(polled["iops"].as_f64().is_some_and(|iops| iops > 0.0), format!("{polled}"))?;
    }
    check(paths.len() == 8, format!("three engines, direct and buffered, and two that poll: {paths:?}"))?;
    println!("ok: probe traces the parts of a read and measures polling; cycles: {}", probed["cycles_by"]);
    Ok(())
}

fn raw_devices_are_read_and_not_taken(drives: &[String]) -> Result<()> {
    let before = fs::read("/dev/sda")?;
    let out = iomill_good(&["probe", "--raw", "/dev/sda", "--seconds", "0.1", "--json"])?;
    let probed: Value = serde_json::from_str(&out)?;
    let raw = &probed["raw"][0];
    check(raw["len_bytes"] == 64 << 20 && raw["node"] == 1, format!("the SATA drive: {raw}"))?;
    check(fs::read("/dev/sda")? == before, "the SATA drive is not what it was")?;
    let (code, _, err) = iomill(&["probe", "--raw", &format!("/dev/{}", drives[0])])?;
    check(code == 1 && err.contains("in use: mounted"), format!("a mounted drive: {code} {err}"))?;
    println!("ok: a raw device is read and left as it is, and a mounted one is refused");
    Ok(())
}

/// An array is opened with the profile that probe wrote.
fn profile_is_followed(probed: &Value, places: &[PathBuf]) -> Result<()> {
    let place = places[0].to_string_lossy();
    let info: Value = serde_json::from_str(&iomill_good(&["-a", &place, "--profile", PROFILE, "info", "--json"])?)?;
    for node in 0..places.len() {
        let (told, followed) = (&probed["drives"][node]["best_depth"], &info["drives"][node]["depth"]);
        check(told.is_u64() && told == followed, format!("drive {node}: {told} was measured, {followed} is used"))?;
        check(probed["weights"][node] == info["drives"][node]["weight"], format!("weights: {probed} {info}"))?;
    }
    let served = &probed["served"];
    check(served["drive_threads"] == info["drive_threads"], format!("{served} is not {}", info["drive_threads"]))?;
    println!("ok: the profile's depths, weights, and drive threads ({}) are followed", info["drive_threads"]);
    Ok(())
}

/// Waits for drive threads, and reads from procfs on which CPUs they may run.
fn threads_run_near_their_drives(drives: &[String], places: &[PathBuf]) -> Result<()> {
    let place = places[0].to_string_lossy();
    let mut child = Command::new("iomill-lab")
        .args(["random", "-a", &place, "--drive-threads", "--size", "64MiB", "--rivals", "none"])
        .args(["--rounds", "3", "--seconds", "5"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seen: BTreeMap<String, (String, String)> = BTreeMap::new();
    while seen.len() < drives.len() && Instant::now() < deadline {
        sleep(Duration::from_millis(100));
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", child.id())) else { break };
        // A thread may end during the look.
        for task in tasks.flatten().map(|task| task.path()) {
            let (Ok(name), Ok(status), Ok(stat)) =
                (read(task.join("comm")), read(task.join("status")), read(task.join("stat")))
            else {
                continue;
            };
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .unwrap_or_default()
                .trim()
                .to_owned();
            // Field 39 is the CPU that ran it last. The name may contain blanks.
            let cpu =
                stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(36)).unwrap_or_default().to_owned();
            if let Some(drive) = name.strip_prefix("iomill-drive-").filter(|_| allowed == cpu) {
                seen.insert(drive.to_owned(), (allowed, cpu));
            }
        }
    }
    child.kill()?;
    child.wait()?;
    // The array's drives are in the order of their nodes.
    for node in 0..drives.len() {
        let place = seen.get(&node.to_string());
        let expected = node.to_string();
        check(
            place.is_some_and(|(allowed, cpu)| *allowed == expected && *cpu == expected),
            format!("thread of drive {node}: {seen:?}"),
        )?;
    }
    println!("ok: each drive's thread runs on its drive's node: {seen:?}");
    Ok(())
}

/// The number of interrupts of the queues that use them.
fn queue_interrupts() -> Result<u64> {
    let table = read("/proc/interrupts")?;
    let queues = table.lines().filter(|line| line.contains("nvme") && !line.trim_end().ends_with("q0"));
    Ok(queues
        .flat_map(|line| line.split_whitespace().skip(1).take(NODES).filter_map(|count| count.parse::<u64>().ok()))
        .sum())
}

fn polling_reads_the_same(places: &[PathBuf]) -> Result<()> {
    let place = places[0].to_string_lossy();
    let bytes: Vec<u8> =
        (0..24u64 << 17).flat_map(|word| (word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).collect();
    fs::write("/tmp/source", &bytes)?;
    iomill_good(&["-a", &place, "put", "/tmp/source", "polled"])?;
    for name in ["nvme0n1", "nvme1n1", "nvme2n1", "nvme3n1"] {
        check(read(format!("/sys/block/{name}/queue/io_poll"))? == "1", format!("{name} has no queues to poll"))?;
    }
    let mut counts = Vec::new();
    for poll in [false, true] {
        let mut arguments = vec!["-a", &place, "--engine", "io_uring", "--quiet"];
        arguments.extend(poll.then_some("--poll"));
        arguments.extend(["get", "--force", "polled", "/tmp/copy"]);
        let before = queue_interrupts()?;
        iomill_good(&arguments)?;
        counts.push(queue_interrupts()? - before);
        check(fs::read("/tmp/copy")? == bytes, format!("what was read with polling {poll} differs"))?;
    }
    check(counts[1] * 2 < counts[0], format!("interrupts without and with polling: {counts:?}"))?;
    println!("ok: io_uring reads 24 MiB correctly by polling, with {} interrupts instead of {}", counts[1], counts[0]);
    Ok(())
}

fn ladder_climbs_and_restores(places: &[PathBuf]) -> Result<()> {
    let place = places[0].to_string_lossy();
    let before = snapshot()?;
    let out = lab_good(&[
        "ladder",
        "-a",
        &place,
        "--of",
        "sc13",
        "--size",
        "16MiB",
        "--seconds",
        "0.5",
        "--rounds",
        "1",
        "--json",
        "--state",
        "/tmp/state/ladder.json",
        "--threads",
        "2",
    ])?;
    let report: Value = serde_json::from_str(&out)?;
    let steps = report["results"].as_array().map_or(0, Vec::len);
    let why = report["left_out"][0]["why"].as_str().unwrap_or_default();
    check(steps == 4 && why.contains("interrupts are managed"), format!("{steps} steps, left out: {why}"))?;
    is_as_it_was(&before)?;
    println!("ok: the ladder climbs four steps, cannot move managed interrupts, and restores everything");
    Ok(())
}
