//! A drive's queue in the block layer.

use iomill_platform::drives::{Drive, Transport};
use iomill_platform::machine::Machine;
use iomill_platform::tree::{Tree, chosen};

use crate::tune::finding::{Finding, Verdict};

const ABI: &str = "Linux: Documentation/ABI/stable/sysfs-block";
const SCHEDULERS: &str = "Zheng, Burns, Szalay: Toward Millions of File System IOPS on Low-Cost, Commodity Hardware (SC'13); \
     Linux: Documentation/block/switching-sched.rst";
const SCSI: &str = "Serial ATA: native command queueing; Linux: drivers/scsi/scsi_sysfs.c, queue_depth";
const POLLING: &str =
    "Yang, Minturn, Hady: When Poll Is Better than Interrupt (FAST'12); Linux: drivers/nvme/host/pci.c, poll_queues";

/// Requests for which the block layer should have room: eight threads, or an array's files, at the default depth of 32.
const REQUESTS: u64 = 256;

/// Tags of SATA's native command queueing that libata uses.
const SATA_TAGS: u64 = 31;

/// All checks of a drive's queue except its write cache.
pub(super) fn findings(tree: &Tree, machine: &Machine, drive: &Drive) -> Vec<Finding> {
    let mut findings = Vec::new();
    for directory in &drive.queues {
        let queue = Queue { tree, drive, directory: format!("{directory}/queue") };
        findings.push(queue.scheduler());
        findings.extend(queue.nr_requests());
        findings.extend(queue.rq_affinity(machine, directory));
        findings.extend(queue.nomerges());
        findings.extend(queue.add_random());
        findings.extend(queue.polling());
    }
    findings.extend(queue_depth(tree, drive));
    findings
}

/// The drive's own memory for writes. iomill never switches it off.
pub(super) fn write_cache(tree: &Tree, drive: &Drive) -> Finding {
    let mode = tree.get(&format!("{}/queue/write_cache", drive.queues[0])).unwrap_or_else(|| "unknown".into());
    let finding =
        Finding::new(&drive.name, "write_cache", &mode, "Linux: Documentation/block/writeback_cache_control.rst");
    let (should, why) = match mode.as_str() {
        "write back" => (
            "as it is",
            "`sync` makes the drive write its cache out, which costs most of a sync's time; a drive with power-loss protection answers at once",
        ),
        "write through" => (
            "as it is",
            "the drive has no write cache, or one that survives a power cut: a `sync` waits for no write cache",
        ),
        _ => ("as it is", "the kernel does not say whether the drive keeps writes in a cache"),
    };
    finding.verdict(Verdict::Note, should, format!("{why}; iomill never changes this"))
}

struct Queue<'a> {
    tree: &'a Tree,
    drive: &'a Drive,
    /// The `queue` directory.
    directory: String,
}

impl Queue<'_> {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    fn get(&self, name: &str) -> Option<String> {
        self.tree.get(&self.path(name))
    }

    fn scheduler(&self) -> Finding {
        let Some(text) = self.get("scheduler") else {
            let finding = Finding::new(&self.drive.name, "scheduler", "unknown", SCHEDULERS);
            return finding.unknown("the drive's queue has no scheduler file");
        };
        let now = chosen(&text);
        let offered: Vec<&str> = text.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect();
        let finding = Finding::new(&self.drive.name, "scheduler", now, SCHEDULERS);
        if self.drive.is_rotational {
            let why = "the drive turns, so the order of requests matters; iomill is made for drives that do not turn";
            return finding.verdict(Verdict::Note, "as it is", why);
        }
        // Kernels before 5.0 have this name for single queues.
        let Some(best) = ["none", "noop"].into_iter().find(|name| offered.contains(name)) else {
            return finding.verdict(Verdict::Note, "as it is", "the kernel offers no other for this drive");
        };
        let finding = finding.set(self.path("scheduler"), best);
        if now == best {
            return finding.good();
        }
        let gains = match self.drive.transport {
            Transport::Virtio => "the host orders requests for its drives; ordering them here as well gains nothing",
            _ => "ordering requests gains nothing on a drive that does not turn",
        };
        let why = format!("{gains}, and takes a lock and CPU time for each; iomill bounds what is in flight itself");
        finding.verdict(Verdict::Mend, best, why)
    }

    fn nr_requests(&self) -> Option<Finding> {
        let now = self.tree.number(&self.path("nr_requests"))?;
        let finding = Finding::new(&self.drive.name, "nr_requests", now.to_string(), ABI);
        if now >= REQUESTS {
            return Some(finding.good());
        }
        let why =
            format!("with more than {now} requests at once, submitting threads sleep, also iomill's drive threads");
        // Without a scheduler the device's own tags are the limit, and only NVMe devices have many.
        if self.drive.transport == Transport::Nvme {
            let finding = finding.set(self.path("nr_requests"), REQUESTS.to_string());
            return Some(finding.verdict(Verdict::Mend, format!("{REQUESTS} or more"), why));
        }
        let should = format!("`--depth` times the number of threads at most {now}");
        Some(finding.verdict(Verdict::Note, should, format!("a device of this kind has few tags of its own; {why}")))
    }

    fn rq_affinity(&self, machine: &Machine, directory: &str) -> Option<Finding> {
        let now = self.get("rq_affinity")?;
        let finding = Finding::new(&self.drive.name, "rq_affinity", &now, ABI);
        let queues = self.tree.list(&format!("{directory}/mq")).len();
        let set = |finding: Finding, value: &str| finding.set(self.path("rq_affinity"), value);
        if queues >= machine.online.len() {
            let finding = set(finding, &now);
            return Some(if now == "0" {
                let why =
                    "completions end on the interrupt's CPU, away from the caches of the threads that wait for them";
                let mut finding = finding.verdict(Verdict::Mend, "1", why);
                finding.settings.clear();
                set(finding, "1")
            } else {
                finding.good()
            });
        }
        let finding = set(finding, "2");
        if now == "2" {
            return Some(finding.good());
        }
        let why = format!(
            "{} CPUs share {queues} hardware {}, so one CPU takes many completions; with 2 each ends on the CPU that \
             submitted it, which spreads the work and finds warm caches",
            machine.online.len(),
            if queues == 1 { "queue" } else { "queues" }
        );
        Some(finding.verdict(Verdict::Mend, "2", why))
    }

    fn nomerges(&self) -> Option<Finding> {
        let now = self.get("nomerges")?;
        let finding = Finding::new(&self.drive.name, "nomerges", &now, ABI);
        if self.drive.transport != Transport::Nvme {
            return Some(finding.good());
        }
        let finding = finding.set(self.path("nomerges"), "2");
        if now == "2" {
            return Some(finding.good());
        }
        let why = "the kernel looks for neighbours of each request to merge with; random pages have none, and iomill puts adjacent \
                   pages into one request (0 is better for other programs that read sequentially in small pieces)";
        Some(finding.verdict(Verdict::Mend, "2", why))
    }

    fn add_random(&self) -> Option<Finding> {
        let now = self.get("add_random")?;
        let finding = Finding::new(&self.drive.name, "add_random", &now, ABI).set(self.path("add_random"), "0");
        if now == "0" {
            return Some(finding.good());
        }
        let why = "each completion is mixed into the kernel's pool of randomness; an SSD's times add CPU time and next to no randomness";
        if self.drive.is_rotational {
            let mut finding = finding.verdict(Verdict::Note, "as it is", "the drive turns, so its times are random");
            finding.settings.clear();
            return Some(finding);
        }
        Some(finding.verdict(Verdict::Mend, "0", why))
    }

    fn polling(&self) -> Option<Finding> {
        if self.drive.transport != Transport::Nvme {
            return None;
        }
        let can = self.get("io_poll")?;
        let queues = self.tree.get("sys/module/nvme/parameters/poll_queues");
        let is = format!("io_poll {can}, nvme.poll_queues {}", queues.as_deref().unwrap_or("unknown"));
        let finding = Finding::new(&self.drive.name, "polling", is, POLLING);
        if can == "1" {
            return Some(finding.good());
        }
        let why = "`--poll` saves interrupts and wake-ups where latency counts, at the cost of CPUs that wait; the drive has no queues \
                   for it until its driver makes some";
        let should =
            "for `--poll`: the kernel parameter nvme.poll_queues=N, a queue for each drive thread, and a restart";
        Some(finding.verdict(Verdict::Note, should, why))
    }
}

/// How many requests a SCSI drive takes at once.
fn queue_depth(tree: &Tree, drive: &Drive) -> Option<Finding> {
    let path = format!("{}/device/queue_depth", drive.directory);
    // `device` is a link. A persistent setting needs the true path.
    let path = tree.resolve(&path)?;
    let now = tree.number(&path)?;
    let finding = Finding::new(&drive.name, "queue_depth", now.to_string(), SCSI);
    if drive.transport != Transport::Sata || drive.is_rotational {
        return Some(finding.good());
    }
    let finding = finding.set(&path, now.max(SATA_TAGS).to_string());
    if now >= SATA_TAGS {
        return Some(finding.good());
    }
    let why = format!(
        "the drive works on {now} requests at a time; an SSD reaches its best with native command queueing's {SATA_TAGS} or 32"
    );
    Some(finding.verdict(Verdict::Mend, SATA_TAGS.to_string(), why))
}
