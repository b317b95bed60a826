//! Numbers in the form that people write and read.
//!
//! Goals: one way to print each kind of number, and a strict parser of sizes, which refuses unknown units and never
//! guesses. Non-goals: localisation.

use iomill::{Error, Result};

/// Units of sizes: `k`, `K`, `Ki` and `KiB` all mean 1,024 bytes. The larger units follow the same rule.
const SIZE_UNITS: [(&str, u32); 5] = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

/// Parses a size in bytes: digits, then nothing, `B`, or one of `K`, `Ki`, `KiB` (also `k`); the same with `M`, `G`,
/// `T`, `P`. All units are powers of 1,024. `KB` and `MB` are refused, because they are ambiguous.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = |why: &str| Error::invalid(format!("size {text:?}"), why.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(bad("start with digits, such as 4096, 64KiB, 1T"));
    }
    let number: u64 = number.parse().map_err(|_| bad("too large: a size is below 16 EiB"))?;
    let shift = unit_shift(unit).ok_or_else(|| {
        bad("the unit is unknown; give bytes, or K, Ki, KiB, or the same with M, G, T, P (powers of 1024), without spaces")
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| bad("too large: a size is below 16 EiB"))
}

fn unit_shift(unit: &str) -> Option<u32> {
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let unit = if unit.starts_with('k') { unit.replacen('k', "K", 1) } else { unit.to_owned() };
    let (_, shift) = SIZE_UNITS.iter().find(|(letter, _)| match unit.strip_prefix(letter) {
        Some(rest) => matches!(rest, "" | "i" | "iB"),
        None => false,
    })?;
    Some(*shift)
}

/// A text from a drive or a path, for people: control characters, which may command the terminal or begin another line,
/// are written as `\u{...}`.
pub fn printable(text: &str) -> String {
    escaped(text, char::is_control)
}

/// The same for a message, which may have several lines.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |c| c.is_control() && c != '\n')
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) { escaped.extend(c.escape_unicode()) } else { escaped.push(c) }
    }
    escaped
}

/// A size: `512 B`, `4 KiB`, `1.2 GiB`.
pub fn size(bytes: u64) -> String {
    let Some((letter, shift)) = SIZE_UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    // 1023.96 KiB would print as 1024.0 KiB. Print it in the next unit.
    if (value * 10.0).round() >= 10_240.0 {
        let next = SIZE_UNITS.iter().position(|(l, _)| l == letter).and_then(|i| SIZE_UNITS.get(i + 1));
        if let Some((next, _)) = next {
            return format!("1 {next}iB");
        }
    }
    format!("{} {letter}iB", one_decimal(value))
}

/// A plain count: `999`, `2.9k`, `310k`, `1.24M`.
pub fn count(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let (scaled, unit) = match value {
        v if v < 999.5 => (v, ""),
        v if v < 999_500.0 => (v / 1e3, "k"),
        v if v < 999_500_000.0 => (v / 1e6, "M"),
        v => (v / 1e9, "G"),
    };
    match (unit, scaled) {
        ("", _) => format!("{scaled:.0}"),
        (_, s) if s < 9.995 => format!("{s:.2}{unit}"),
        (_, s) if s < 99.95 => format!("{s:.1}{unit}"),
        (_, s) => format!("{s:.0}{unit}"),
    }
}

/// A rate of operations: `310k IOPS`.
pub fn iops(per_second: f64) -> String {
    format!("{} IOPS", count(per_second))
}

/// A rate of bytes: `1.2 GiB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", size(bytes_per_second.max(0.0) as u64))
}

/// A time: `26.4 ns`, `816 ns`, `2.90 µs`, `12.3 µs`, `310 µs`, `4.1 ms`, `2.0 s`.
pub fn time_us(us: f64) -> String {
    match us {
        us if !us.is_finite() => "-".to_owned(),
        us if us < 0.09995 => format!("{:.1} ns", us * 1e3),
        us if us < 0.9995 => format!("{:.0} ns", us * 1e3),
        us if us < 9.995 => format!("{us:.2} µs"),
        us if us < 99.95 => format!("{us:.1} µs"),
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 99_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A ratio: `0.93x`.
pub fn ratio(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}x") } else { "-".to_owned() }
}

fn one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Bytes in a second; 0 if no time has passed.
pub fn per_second(bytes: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (bytes as f64 / seconds).round() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_to_what_they_say() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1k", 1 << 10),
            ("1K", 1 << 10),
            ("64Ki", 64 << 10),
            ("64KiB", 64 << 10),
            ("64kiB", 64 << 10),
            ("3M", 3 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("1TiB", 1 << 40),
            ("5P", 5 << 50),
            ("18446744073709551615", u64::MAX),
            ("16383P", 16383 << 50),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            " ",
            "K",
            "KiB",
            "1 K",
            " 1K",
            "1K ",
            "1KB",
            "1MB",
            "1kb",
            "1m",
            "1g",
            "1t",
            "1KiBs",
            "1Kib",
            "1KIB",
            "1e3",
            "1.5G",
            "-1",
            "+1",
            "0x10",
            "1_000",
            "1E",
            "1Z",
            "64KK",
            "1iB",
            "1i",
            "1b",
            "١",
            "16384P",
            "16777216T",
            "18446744073709551616",
            "1T1",
        ] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn printed_sizes_are_short_and_parse_back_where_exact() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1_288_490_189, "1.2 GiB"),
            ((1 << 20) - 1, "1 MiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for shift in 0..63 {
            let bytes = 1u64 << shift;
            assert_eq!(parse_size(&size(bytes).replace(' ', "")).unwrap(), bytes);
        }
    }

    #[test]
    fn counts_times_and_rates() {
        for (value, text) in
            [(0.0, "0"), (999.4, "999"), (999.6, "1.00k"), (2_900.0, "2.90k"), (310_400.0, "310k"), (1.238e6, "1.24M")]
        {
            assert_eq!(count(value), text);
        }
        assert_eq!(count(f64::NAN), "-");
        assert_eq!(iops(310_000.0), "310k IOPS");
        assert_eq!(rate(1.25 * 1024.0 * 1024.0 * 1024.0), "1.2 GiB/s");
        for (us, text) in [
            (0.0264, "26.4 ns"),
            (0.816, "816 ns"),
            (1.816, "1.82 µs"),
            (2.9, "2.90 µs"),
            (12.34, "12.3 µs"),
            (310.0, "310 µs"),
            (4_100.0, "4.1 ms"),
            (64_000.0, "64.0 ms"),
            (310_000.0, "310 ms"),
            (463_691.8, "464 ms"),
            (2e6, "2.0 s"),
        ] {
            assert_eq!(time_us(us), text);
        }
        assert_eq!(ratio(0.934), "0.93x");
    }
}
