//! Lists of CPUs in the kernel's form.

use iomill::sys::cpu;

/// Reads `0-3,8`. The result is empty if the text is not such a list.
pub fn parse(text: &str) -> Vec<usize> {
    cpu::parse_list(text).unwrap_or_default()
}

/// Writes `0-3,8`. The CPUs are in rising order.
pub fn show(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown =
        ranges.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_and_go() {
        for text in ["", "0", "0-3,8", "1,3,5-6"] {
            assert_eq!(show(&parse(text)), text);
        }
        assert_eq!(parse("nonsense"), [0usize; 0]);
    }
}
