//! Limits of processes: locked memory, open files, requests of libaio, rings, huge pages.

use iomill_platform::tree::{Tree, chosen};

use crate::tune::finding::{Finding, MACHINE, Verdict};

const MEMLOCK: &str = "io_uring_register(2); getrlimit(2), RLIMIT_MEMLOCK";
const OPEN_FILES: &str = "getrlimit(2), RLIMIT_NOFILE";
const AIO: &str = "Linux: Documentation/admin-guide/sysctl/fs.rst, aio-nr and aio-max-nr";
const URING: &str = "Linux: Documentation/admin-guide/sysctl/kernel.rst, io_uring_disabled";
const HUGE: &str = "Linux: Documentation/admin-guide/mm/transhuge.rst";

/// iomill's default cache. When it is registered with a ring it counts as locked memory.
const LOCKED_BYTES: u64 = 512 << 20;

/// A part for each drive of each open file, and some rings.
const OPEN_FILES_MIN: u64 = 4096;

/// The requests of libaio for sixteen threads on eight drives at depth 32, twice.
const AIO_MIN: u64 = 65_536;
/// The value to set if it is less: a quarter of a million structures of under 200 bytes, allocated when used.
const AIO_SHOULD: u64 = 1 << 20;

/// All findings on limits.
pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let limits = tree.get("proc/self/limits").unwrap_or_default();
    let mut findings = Vec::new();
    findings.extend(limit(&limits, "Max locked memory").map(memlock));
    findings.extend(limit(&limits, "Max open files").map(open_files));
    findings.extend(aio(tree));
    findings.extend(uring(tree));
    findings.extend(huge_pages(tree));
    findings
}

/// The soft limit of this session; `u64::MAX` for none.
fn limit(text: &str, name: &str) -> Option<u64> {
    let soft = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

fn shown(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() }
}

fn memlock(bytes: u64) -> Finding {
    let is = if bytes == u64::MAX { "unlimited".to_owned() } else { format!("{} KiB", bytes >> 10) };
    let finding = Finding::new(MACHINE, "memlock", is, MEMLOCK);
    if bytes >= LOCKED_BYTES {
        return finding.good();
    }
    let why = "frames that are registered with io_uring count as locked memory; frames beyond the limit stay unregistered, at a few \
               percent more CPU time (root is exempt)";
    let should = format!(
        "{} KiB or more: `memlock` in /etc/security/limits.conf, `LimitMEMLOCK=` of a service",
        LOCKED_BYTES >> 10
    );
    finding.verdict(Verdict::Advise, should, why)
}

fn open_files(files: u64) -> Finding {
    let finding = Finding::new(MACHINE, "open_files", shown(files), OPEN_FILES);
    if files >= OPEN_FILES_MIN {
        return finding.good();
    }
    let should =
        format!("{OPEN_FILES_MIN} or more: `nofile` in /etc/security/limits.conf, `LimitNOFILE=` of a service");
    finding.verdict(
        Verdict::Advise,
        should,
        "each open file of an array has a descriptor for each drive, each thread a ring",
    )
}

fn aio(tree: &Tree) -> Option<Finding> {
    let path = "proc/sys/fs/aio-max-nr";
    let most = tree.number(path)?;
    let used = tree.number("proc/sys/fs/aio-nr").unwrap_or(0);
    let finding = Finding::new(MACHINE, "aio", format!("{used} of {most} in use"), AIO);
    let finding = finding.set(path, most.max(AIO_SHOULD).to_string());
    if most.saturating_sub(used) >= AIO_MIN {
        let mut finding = finding.good();
        finding.settings.clear();
        return Some(finding);
    }
    let why = "the whole machine shares these requests of libaio; without them, and without io_uring, threads fall back to slower engines";
    Some(finding.verdict(Verdict::Mend, format!("at least {AIO_MIN} free: aio-max-nr {}", most.max(AIO_SHOULD)), why))
}

fn uring(tree: &Tree) -> Option<Finding> {
    // Kernels before Linux 6.6 do not have this setting.
    let path = "proc/sys/kernel/io_uring_disabled";
    let now = tree.get(path)?;
    let finding = Finding::new(MACHINE, "io_uring", if now == "0" { "allowed" } else { "refused" }, URING);
    if now == "0" {
        return Some(finding.good());
    }
    let why = match now.as_str() {
        "1" => {
            "only root and the group kernel.io_uring_group may make rings; other users get libaio, which costs more CPU time per I/O"
        }
        _ => "no user may make rings; iomill takes libaio, which costs more CPU time per I/O",
    };
    let should = "kernel.io_uring_disabled=0, or the user in kernel.io_uring_group: a question of security that iomill leaves to you";
    Some(finding.verdict(Verdict::Advise, should, why))
}

fn huge_pages(tree: &Tree) -> Option<Finding> {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = tree.get(path)?;
    let now = chosen(&text);
    let finding = Finding::new(MACHINE, "huge_pages", now, HUGE);
    if now != "never" {
        return Some(finding.good());
    }
    let why = "the cache's frames lie in small pages, so random hits miss the processor's translation buffer; `madvise` gives huge pages to \
               programs that ask for them, and changes nothing for others";
    Some(finding.set(path, "madvise").verdict(Verdict::Mend, "madvise", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let text = "Limit   Soft Limit   Hard Limit   Units\nMax locked memory    8388608   8388608  bytes\nMax open files   unlimited  unlimited files\n";
        assert_eq!((limit(text, "Max locked memory"), limit(text, "Max open files")), (Some(8 << 20), Some(u64::MAX)));
        assert_eq!(limit(text, "Max nothing"), None);
    }
}
