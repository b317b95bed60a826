//! What of the processors nobody used: without it a machine that is busy with other things looks like drives that are slow.
//!
//! Goals: the kernel's own count, of the CPUs that this process may use. Non-goals: who else there is.

use iomill::sys::cpu;
use iomill_platform::tree::Tree;

/// Seconds that the CPUs which this process may use have idled so far, added up; 0 where the kernel does not tell.
pub fn cpu_seconds(tree: &Tree) -> f64 {
    let allowed = cpu::allowed().unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    idle_ticks(&tree.get("proc/stat").unwrap_or_default(), &allowed) as f64 / ticks
}

/// `cpu3 user nice system idle iowait ...`, a line for each CPU; none of `allowed` means any.
fn idle_ticks(stat: &str, allowed: &[usize]) -> u64 {
    let idle = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu: usize = words.next()?.parse().ok()?;
        let counts: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        (allowed.is_empty() || allowed.contains(&cpu)).then(|| counts.iter().skip(3).take(2).sum::<u64>())
    };
    // The first line is all CPUs together and has no number.
    stat.lines().filter(|line| !line.starts_with("cpu ")).filter_map(idle).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_cpus_are_counted() {
        let stat = "cpu  9 9 9 99 9 9 9 9 9 9\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 1 1 1 10 2 0 0 9 0 0\nintr 5 6 7\n";
        assert_eq!((idle_ticks(stat, &[]), idle_ticks(stat, &[1]), idle_ticks("", &[])), (57, 12, 0));
        assert!(cpu_seconds(&Tree::machine()) > 0.0);
    }
}
