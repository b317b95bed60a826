//! CPUs: their speed, and their distance to drives.

use iomill_platform::cpus;
use iomill_platform::drives::Drive;
use iomill_platform::machine::Machine;
use iomill_platform::tree::Tree;

use crate::tune::finding::{Finding, MACHINE, Verdict};

const GOVERNOR: &str = "Linux: Documentation/admin-guide/pm/cpufreq.rst";
const BINDING: &str = "Zheng, Burns, Szalay (SC'13); Linux: Documentation/admin-guide/mm/numaperf.rst";

/// CPUs that slow down while they wait for drives.
pub(super) fn governor(tree: &Tree, machine: &Machine) -> Option<Finding> {
    let mut names: Vec<String> = Vec::new();
    let mut slow = Vec::new();
    let mut settings = Vec::new();
    for cpu in &machine.online {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
        // It may be a link to a policy that several CPUs share.
        let Some(path) = tree.resolve(&format!("{directory}/scaling_governor")) else { continue };
        let Some(now) = tree.get(&path) else { continue };
        let offered = tree.get(&format!("{directory}/scaling_available_governors")).unwrap_or_default();
        if offered.split_whitespace().any(|name| name == "performance") && !settings.contains(&path) {
            settings.push(path);
        }
        if now != "performance" {
            slow.push(*cpu);
        }
        if !names.contains(&now) {
            names.push(now);
        }
    }
    if names.is_empty() {
        return None;
    }
    let mut finding = Finding::new(MACHINE, "governor", names.join(", "), GOVERNOR);
    for path in settings {
        finding = finding.set(path, "performance");
    }
    if slow.is_empty() {
        return Some(finding.good());
    }
    let why = format!(
        "CPUs {} look idle while they wait for drives, so the governor slows them down, and each completion is handled \
         at a low speed at first",
        cpus::show(&slow)
    );
    let verdict = if finding.settings.is_empty() { Verdict::Advise } else { Verdict::Mend };
    Some(finding.verdict(verdict, "performance, where power does not matter", why))
}

/// Where a drive's thread runs.
pub(super) fn binding(machine: &Machine, drive: &Drive) -> Finding {
    let near: Vec<usize> = drive.near.iter().copied().filter(|cpu| machine.allowed.contains(cpu)).collect();
    let place = match drive.node {
        Some(node) => format!("node {node}, CPUs {}", cpus::show(&drive.near)),
        None if drive.near.is_empty() => "no node".to_owned(),
        None => format!("no node, CPUs {}", cpus::show(&drive.near)),
    };
    let finding = Finding::new(&drive.name, "binding", place, BINDING);
    if !machine.is_numa() {
        return finding.verdict(Verdict::Good, "any CPU", "the machine has one node, so all CPUs are equally near");
    }
    if drive.node.is_none() {
        let why = "the firmware does not say which node the drive is on, so its thread runs anywhere, also across the link between nodes";
        let should = "`cpu_map` in the library's options, if the drive's node is known";
        return finding.verdict(Verdict::Advise, should, why);
    }
    if near.is_empty() {
        let why = format!(
            "this process may run on CPUs {} only, none of which is near the drive: each request crosses the link between nodes",
            cpus::show(&machine.allowed)
        );
        return finding.verdict(
            Verdict::Advise,
            format!("start programs where CPUs {} are allowed too", cpus::show(&drive.near)),
            why,
        );
    }
    finding.verdict(
        Verdict::Good,
        format!("CPUs {}", cpus::show(&near)),
        "iomill binds the drive's thread there by itself",
    )
}
