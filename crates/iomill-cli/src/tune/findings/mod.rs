//! All checks and their verdicts.
//!
//! Goals: each verdict names its source, which stands beside it. Non-goals: settings that help one load and hurt
//! another. These are only noted, and made only on demand ([`Wishes`]).

mod cpu;
mod interrupts;
mod limits;
mod mounts;
mod queue;
mod wishes;

use iomill_platform::drives::Drive;
use iomill_platform::machine::Machine;
use iomill_platform::tree::Tree;

use crate::tune::finding::Finding;
pub use wishes::{Coalescing, Wishes};

/// The names of all checks, in the order of reports.
pub const NAMES: [&str; 21] = [
    "scheduler",
    "nr_requests",
    "rq_affinity",
    "nomerges",
    "add_random",
    "queue_depth",
    "polling",
    "interrupts",
    "coalescing",
    "binding",
    "write_cache",
    "alignment",
    "file_system",
    "mount_options",
    "governor",
    "irqbalance",
    "memlock",
    "open_files",
    "aio",
    "io_uring",
    "huge_pages",
];

/// Checks drives, and the machine around them.
pub fn all(tree: &Tree, machine: &Machine, drives: &[Drive], wishes: &Wishes) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mounted = iomill_platform::mounts::all(tree);
    for drive in drives {
        findings.extend(queue::findings(tree, machine, drive));
        findings.push(interrupts::spread(tree, machine, drive));
        findings.extend(interrupts::coalescing(tree, drive, wishes));
        findings.push(cpu::binding(machine, drive));
        findings.push(queue::write_cache(tree, drive));
        findings.extend(mounts::alignment(tree, drive));
        findings.extend(mounts::findings(tree, drive, &mounted));
    }
    findings.extend(cpu::governor(tree, machine));
    findings.push(interrupts::balancer(tree));
    findings.extend(limits::findings(tree));
    findings
}
