//! The names of traces.

use std::path::Path;

/// A trace's name: the name of its file without the endings for compression and form, so `oltp` for `oltp.csv.xz`.
pub fn trace_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let plain = [".gz", ".xz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    match plain.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
        _ => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_called_by_their_stems() {
        for (path, name) in [
            ("traces/oltp.csv.xz", "oltp"),
            ("oltp.csv", "oltp"),
            ("WebSearch1.spc", "WebSearch1"),
            ("hm_1", "hm_1"),
            ("a.b.csv.gz", "a.b"),
            (".csv", ".csv"),
            ("sda.zst", "sda"),
            ("/", "/"),
        ] {
            assert_eq!(trace_name(Path::new(path)), name, "{path}");
        }
    }
}
