//! Lists of CPUs in the kernel's form.

use std::io;

/// The bound of CPU numbers. No machine has more, and without it a damaged text could fill the memory.
const CPUS_MAX: usize = 1 << 16;

/// Parses a list such as `0-3,8`. The CPUs are in rising order, each once. An empty text is an empty list.
pub fn parse(text: &str) -> io::Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) if first <= last && last < CPUS_MAX => cpus.extend(first..=last),
            _ => {
                let why = format!("{range:?} is not a range of CPUs such as 0-3 or 5");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Writes a list such as `0-3,8`. The CPUs must be in rising order.
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
            assert_eq!(show(&parse(text).unwrap()), text);
        }
        assert_eq!(parse("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse("5,1,1-2").unwrap(), [1, 2, 5]);
        for bad in ["a", "1-", "-1", "3-1", "0-99999999999", "0-70000", "1;2"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
