//! `iomill-lab replay`: repeats recorded accesses, on an array, on a plain file, or in simulated caches.

mod granules;
mod real;
mod simulate;

use std::path::Path;

use crate::arguments::Replay;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::Result;

pub fn run(context: &Context<'_>, arguments: &Replay) -> Result<Answer> {
    match arguments.simulate {
        true if !arguments.granule.is_empty() => granules::run(context, arguments),
        true => simulate::run(context, arguments),
        false => real::run(context, arguments),
    }
}

/// A trace's name: its file's name without the endings for compression and form, so `oltp` for `oltp.csv.xz`.
pub(super) fn trace_name(path: &Path) -> String {
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
