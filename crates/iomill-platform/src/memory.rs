//! Amounts of memory in the form of `/proc/meminfo` and `/proc/self/status`.

/// The amount on the line of a key, in bytes. The key `MemTotal` finds `MemTotal:       24684084 kB`. `None` if there
/// is no such line.
pub fn bytes(text: &str, key: &str) -> Option<u64> {
    let amount = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    amount.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        let text = "MemTotalLike: 1 kB\nMemTotal:       24684084 kB\nMemFree:\t7 kB\nOdd: x kB\nOther: 5 MB\nHuge: 99999999999999999 kB\n";
        assert_eq!([bytes(text, "MemTotal"), bytes(text, "MemFree")], [Some(24_684_084 << 10), Some(7 << 10)]);
        assert_eq!(["Odd", "Other", "Huge", "None"].map(|key| bytes(text, key)), [None; 4]);
    }
}
