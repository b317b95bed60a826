//! How much of the CPUs was idle, and how much interrupts took. Without the idle share a machine that is busy with
//! other work looks like slow drives. The drives cause most interrupts, but the kernel counts interrupt time for no
//! process.
//!
//! Goals: the kernel's own counts for the CPUs that this process may use. Without a count there is no figure, not 0.
//! Non-goals: which other programs run.

use iomill::sys::cpu;
use iomill_platform::tree::Tree;

/// The times of the CPUs that this process may use, summed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Idle time.
    pub idle: f64,
    /// Time in interrupts and in the softirqs after them.
    pub interrupts: f64,
}

impl Seconds {
    /// The present sums; `None` where the kernel, or a sandbox in its place, does not count.
    pub fn now(tree: &Tree) -> Option<Seconds> {
        let allowed = cpu::allowed().unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
        let (idle, interrupts) = ticks_of(&tree.get("proc/stat")?, &allowed)?;
        Some(Seconds { idle: idle as f64 / ticks, interrupts: interrupts as f64 / ticks })
    }
}

/// Idle ticks and interrupt ticks, from lines `cpu3 user nice system idle iowait irq softirq ...`, one for each CPU. An
/// empty `allowed` means all CPUs. `None` if there are no such lines, or all counts are 0.
fn ticks_of(stat: &str, allowed: &[usize]) -> Option<(u64, u64)> {
    let counts = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu: usize = words.next()?.parse().ok()?;
        let counts: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        (allowed.is_empty() || allowed.contains(&cpu)).then_some(counts)
    };
    let sum = |counts: &[u64], from: usize| counts.iter().skip(from).take(2).sum::<u64>();
    let (mut idle, mut interrupts, mut all) = (0, 0, 0);
    // The first line is the sum of all CPUs and has no number.
    for counts in stat.lines().filter(|line| !line.starts_with("cpu ")).filter_map(counts) {
        idle += sum(&counts, 3);
        interrupts += sum(&counts, 5);
        all += counts.iter().sum::<u64>();
    }
    (all > 0).then_some((idle, interrupts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_cpus_are_counted_and_interrupts() {
        let stat = "cpu  9 9 9 99 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 1 1 1 10 2 0 0 9 0 0\nintr 5 6 7\n";
        assert_eq!((ticks_of(stat, &[]), ticks_of(stat, &[1])), (Some((57, 13)), Some((12, 0))));
        assert!(Seconds::now(&Tree::machine()).is_none_or(|seconds| seconds.idle > 0.0));
    }

    /// Some sandboxes show the file but count nothing. That does not mean that all CPUs are busy.
    #[test]
    fn what_is_not_counted_is_not_0() {
        assert_eq!(ticks_of("", &[]), None);
        assert_eq!(ticks_of("cpu  0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0\n", &[]), None);
        assert_eq!(ticks_of("cpu  1 2 3 4 5 6 7\n", &[]), None);
    }
}
