//! A drive's interrupts: their CPUs, and whether the kernel manages them, so that a user cannot move them.
//!
//! Goals: to know which interrupts are managed. Drivers of devices with many queues have the kernel spread their
//! interrupts at setup (`pci_alloc_irq_vectors_affinity`). From then on writes to `smp_affinity` fail. Procfs does not
//! show which interrupts are managed. Debugfs does, and a write shows it, too. Non-goals: a write only to find that
//! out.

use crate::drives::Drive;
use crate::tree::Tree;

/// Whether an interrupt can be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mobility {
    /// No: the kernel has placed it, and refuses changes.
    Managed,
    /// Yes: the kernel takes the CPUs that are written.
    Free,
    /// Only a write would show it.
    Unknown,
}

/// One interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The number.
    pub number: u32,
    /// The names of its handlers, such as `nvme0q3`.
    pub name: String,
    /// The CPUs that may handle it.
    pub allowed: Vec<usize>,
    /// The CPUs that handle it; empty if the kernel does not report them.
    pub effective: Vec<usize>,
    /// Whether it can be moved.
    pub mobility: Mobility,
    /// The number of times that it came, on all CPUs.
    pub count: u64,
}

impl Interrupt {
    /// The file of the CPUs that may handle it. A write to the file sets them.
    pub fn path(&self) -> String {
        format!("proc/irq/{}/smp_affinity_list", self.number)
    }

    /// The CPUs that handle it, as far as is known.
    pub fn cpus(&self) -> &[usize] {
        if self.effective.is_empty() { &self.allowed } else { &self.effective }
    }
}

/// The interrupts of a drive's controller for I/O, by number. Interrupts for other purposes (configuration, the admin
/// queue) are left out, unless a single one is for all purposes.
pub fn of(tree: &Tree, drive: &Drive) -> Vec<Interrupt> {
    let Some(function) = &drive.function else { return Vec::new() };
    let mut numbers: Vec<u32> =
        tree.list(&format!("{function}/msi_irqs")).iter().filter_map(|name| name.parse().ok()).collect();
    if numbers.is_empty() {
        numbers
            .extend(tree.number(&format!("{function}/irq")).filter(|&number| number != 0).map(|number| number as u32));
    }
    numbers.sort_unstable();
    let table = tree.get("proc/interrupts").unwrap_or_default();
    let table: Vec<Line> = table.lines().filter_map(parse_line).collect();
    let mut found: Vec<Interrupt> = Vec::new();
    for number in numbers {
        // An interrupt without a handler is not in use yet.
        let Some(line) = table.iter().find(|line| line.number == number) else { continue };
        let list = |name: &str| tree.cpus(&format!("proc/irq/{number}/{name}"));
        found.push(Interrupt {
            number,
            name: line.name.clone(),
            allowed: list("smp_affinity_list").unwrap_or_default(),
            effective: list("effective_affinity_list").unwrap_or_default(),
            mobility: mobility(tree, number, &line.name, drive),
            count: line.count,
        });
    }
    let serving: Vec<Interrupt> = found.iter().filter(|interrupt| serves_io(&interrupt.name)).cloned().collect();
    if serving.is_empty() { found } else { serving }
}

/// Whether an interrupt with this name reports I/O. Those of NVMe's admin queue and of virtio's configuration do not.
fn serves_io(name: &str) -> bool {
    let is_admin = name.starts_with("nvme") && name.ends_with("q0");
    let is_other = ["-config", "-control", "-event"].iter().any(|end| name.ends_with(end));
    !is_admin && !is_other
}

fn mobility(tree: &Tree, number: u32, name: &str, drive: &Drive) -> Mobility {
    // The name of the flag in debugfs, since Linux 4.14.
    if let Ok(Some(text)) = tree.read(&format!("sys/kernel/debug/irq/irqs/{number}")) {
        return if text.contains("IRQD_AFFINITY_MANAGED") { Mobility::Managed } else { Mobility::Free };
    }
    let queue = name.rsplit_once('q').is_some_and(|(_, queue)| queue.parse::<u32>().is_ok_and(|queue| queue > 0));
    match drive.driver.as_deref() {
        // drivers/nvme/host/pci.c: all vectors are managed but the admin queue's.
        Some("nvme") if queue => Mobility::Managed,
        // AHCI has plain vectors. With `virtio_pci` and host adapters it depends on versions and parameters.
        Some("nvme" | "ahci") => Mobility::Free,
        _ => Mobility::Unknown,
    }
}

struct Line {
    number: u32,
    name: String,
    count: u64,
}

/// Parses a line such as ` 37:   10   20  PCI-MSIX-0000:00:03.0   1-edge      nvme0q1`. A shared interrupt has several
/// names, separated by commas.
fn parse_line(line: &str) -> Option<Line> {
    let (number, rest) = line.trim_start().split_once(':')?;
    let number = number.parse().ok()?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let counts = words.iter().take_while(|word| word.chars().all(|c| c.is_ascii_digit())).count();
    let count = words[..counts].iter().filter_map(|word| word.parse::<u64>().ok()).sum();
    // Chip, hardware number and trigger are in between. Their words vary, but the name is last.
    let name = words[counts..].last().copied().unwrap_or_default().to_owned();
    Some(Line { number, name, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let line = parse_line(" 36:          0   10617646 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0").unwrap();
        assert_eq!((line.number, line.name.as_str(), line.count), (36, "virtio1-req.0", 10_617_646));
        let old = parse_line("128:  5  7  IR-PCI-MSI 12582913-edge      nvme1q3").unwrap();
        assert_eq!((old.number, old.name.as_str(), old.count), (128, "nvme1q3", 12));
        assert!(parse_line("NMI:   0   0  Non-maskable interrupts").is_none());
        assert!(parse_line("           CPU0       CPU1").is_none());
    }

    #[test]
    fn only_what_tells_of_io_counts() {
        let io: Vec<bool> = ["nvme0q0", "nvme0q1", "nvme10q10", "virtio1-config", "virtio1-req.0", "mpt3sas0-msix3"]
            .map(serves_io)
            .to_vec();
        assert_eq!(io, [false, true, true, false, true, true]);
    }
}
