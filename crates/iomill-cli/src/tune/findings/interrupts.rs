//! A drive's interrupts: their CPUs, their rate, and the daemon that moves them.

use iomill_platform::cpus;
use iomill_platform::drives::{Drive, Transport};
use iomill_platform::interrupts::{self, Interrupt, Mobility};
use iomill_platform::machine::Machine;
use iomill_platform::tree::{Tree, parse_hex};

use super::wishes::{Coalescing, Wishes};
use crate::tune::finding::{Finding, MACHINE, Verdict};

const SPREAD: &str = "Zheng, Burns, Szalay (SC'13); Linux: Documentation/core-api/irq/irq-affinity.rst, Documentation/core-api/irq/managed_irq.rst";
const COALESCING: &str = "Foong, Veal, Hady: Towards SSD-Ready Enterprise Platforms (ADMS 2010); NVM Express Base Specification, feature 08h";
const BALANCER: &str = "Linux: Documentation/core-api/irq/irq-affinity.rst; irqbalance(1)";

/// Interrupts over the CPUs near the drive, evenly.
pub(super) fn spread(tree: &Tree, machine: &Machine, drive: &Drive) -> Finding {
    let found = interrupts::of(tree, drive);
    let near = if drive.near.is_empty() { &machine.online } else { &drive.near };
    if found.is_empty() {
        let finding = Finding::new(&drive.name, "interrupts", "none found", SPREAD);
        return finding.unknown("neither sysfs nor /proc/interrupts names an interrupt of this drive");
    }
    let managed = found.iter().filter(|interrupt| interrupt.mobility == Mobility::Managed).count();
    let finding = Finding::new(&drive.name, "interrupts", describe(&found), SPREAD);
    if managed == found.len() {
        let why = "the kernel manages them: it gave each queue's interrupt to the CPUs that use the queue, and refuses changes \
                   (writing to smp_affinity fails); no tool can move them, and none needs to";
        return finding.verdict(Verdict::Good, "as it is", why);
    }
    let free: Vec<&Interrupt> = found.iter().filter(|interrupt| interrupt.mobility != Mobility::Managed).collect();
    let unsure = free.iter().any(|interrupt| interrupt.mobility == Mobility::Unknown);
    let truth = if unsure { "; only a try shows whether the kernel lets them be moved" } else { "" };
    if is_even(&free, near) {
        return keep(finding, &free, near).verdict(
            Verdict::Good,
            "as it is",
            format!("spread over the CPUs near the drive{truth}"),
        );
    }
    let why = format!(
        "interrupts that all go to one CPU make that CPU the limit; on another node's CPUs they end far from the caches of the \
         threads that wait{truth}"
    );
    let should = format!("one after the other on CPUs {}", cpus::show(near));
    keep(finding, &free, near).verdict(Verdict::Mend, should, why)
}

/// Interrupt k goes to the k-th CPU near the drive. A single interrupt goes to any of them.
fn keep(mut finding: Finding, free: &[&Interrupt], near: &[usize]) -> Finding {
    for (index, interrupt) in free.iter().enumerate() {
        let target = if free.len() == 1 { cpus::show(near) } else { near[index % near.len()].to_string() };
        finding = finding.set(interrupt.path(), target);
    }
    finding
}

/// Whether each interrupt goes to CPUs near the drive, and no CPU has two more than another.
fn is_even(free: &[&Interrupt], near: &[usize]) -> bool {
    if !free.iter().all(|interrupt| interrupt.cpus().iter().all(|cpu| near.contains(cpu))) {
        return false;
    }
    // An interrupt that may go to several CPUs counts where it goes now, or not at all.
    let count = |cpu: &usize| free.iter().filter(|interrupt| interrupt.cpus() == [*cpu]).count();
    let counts: Vec<usize> = near.iter().map(count).collect();
    counts.iter().max().zip(counts.iter().min()).is_none_or(|(most, least)| most - least <= 1)
}

fn describe(found: &[Interrupt]) -> String {
    let mut used: Vec<usize> = found.iter().flat_map(|interrupt| interrupt.cpus().iter().copied()).collect();
    used.sort_unstable();
    used.dedup();
    let managed = found.iter().filter(|interrupt| interrupt.mobility == Mobility::Managed).count();
    let which = match managed {
        0 => String::new(),
        all if all == found.len() => ", managed by the kernel".to_owned(),
        some => format!(", {some} managed by the kernel"),
    };
    format!("{} on CPUs {}{which}", found.len(), cpus::show(&used))
}

/// How many completions one interrupt reports.
pub(super) fn coalescing(tree: &Tree, drive: &Drive, wishes: &Wishes) -> Option<Finding> {
    match (drive.transport, &drive.controller, drive.driver.as_deref()) {
        (Transport::Nvme, Some(controller), _) => Some(of_nvme(tree, drive, controller, wishes.coalescing)),
        (_, _, Some("mpt3sas")) => of_mpt3sas(tree, drive),
        _ => None,
    }
}

fn of_nvme(tree: &Tree, drive: &Drive, controller: &str, wish: Option<Coalescing>) -> Finding {
    let path = format!("ioctl/{controller}/feature/08");
    let value = match tree.read(&path) {
        Ok(Some(text)) => parse_hex(&text),
        Ok(None) => None,
        Err(error) => {
            let why = format!("/dev/{controller} does not report its feature 08h: {error}; root may read it");
            return Finding::new(&drive.name, "coalescing", "not known", COALESCING).unknown(why);
        }
    };
    let Some(value) = value else {
        return Finding::new(&drive.name, "coalescing", "not known", COALESCING)
            .unknown("the controller has no feature 08h");
    };
    let now = Coalescing { completions: (value & 0xff) as u16 + 1, time_100us: (value >> 8 & 0xff) as u8 };
    let finding = Finding::new(&drive.name, "coalescing", show(now), COALESCING);
    let Some(wish) = wish else {
        let why = "fewer interrupts cost less CPU time (25,000 to 20,000 clocks per I/O in the paper), but a lone read waits up to the \
                   given time, at least 100 us: worth it only with many requests in flight";
        return finding.verdict(Verdict::Note, "as it is for latency; `--coalesce 8,100us` for CPU time", why);
    };
    let word = u32::from(wish.completions - 1) | u32::from(wish.time_100us) << 8;
    let finding = finding.set(path, format!("{word:#x}"));
    if now == wish { finding.good() } else { finding.verdict(Verdict::Mend, show(wish), "asked for by --coalesce") }
}

fn show(coalescing: Coalescing) -> String {
    match coalescing {
        Coalescing { completions: 1, .. } | Coalescing { time_100us: 0, .. } => {
            "an interrupt for each completion".to_owned()
        }
        Coalescing { completions, time_100us } => {
            format!("{completions} completions or {} us", u32::from(time_100us) * 100)
        }
    }
}

/// A parameter of the driver decides it, for newer adapters.
fn of_mpt3sas(tree: &Tree, drive: &Drive) -> Option<Finding> {
    let mode = tree.get("sys/module/mpt3sas/parameters/perf_mode")?;
    let finding = Finding::new(
        &drive.name,
        "coalescing",
        format!("mpt3sas.perf_mode {mode}"),
        "Foong, Veal, Hady (ADMS 2010); Linux: drivers/scsi/mpt3sas, perf_mode",
    );
    if mode == "1" {
        return Some(finding.good());
    }
    let why = "on adapters of the Aero and Sea generations this driver collects completions on all queues in mode 1, on some in mode 0, on none in \
               mode 2; fewer interrupts cost less CPU time";
    Some(finding.verdict(Verdict::Note, "for CPU time: the kernel parameter mpt3sas.perf_mode=1", why))
}

/// The daemon that moves interrupts.
pub(super) fn balancer(tree: &Tree) -> Finding {
    if !tree.exists("proc") {
        let why = "without /proc its process cannot be found";
        return Finding::new(MACHINE, "irqbalance", "not known", BALANCER).unknown(why);
    }
    let runs = tree.has_process("irqbalance");
    let finding = Finding::new(MACHINE, "irqbalance", if runs { "running" } else { "not running" }, BALANCER);
    if !runs {
        return finding.good();
    }
    let why = "every ten seconds it moves the interrupts that it can move, and so undoes settings; it cannot move managed interrupts";
    finding.verdict(
        Verdict::Advise,
        "stopped (`systemctl disable --now irqbalance`), or run with --banirq for the interrupts to leave",
        why,
    )
}
