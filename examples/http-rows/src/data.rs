//! A file of rows for the measurement: each row tells its number.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Bytes of a row.
pub const ROW_BYTES: usize = 4096;

/// The first word of a row, mixed from its number.
pub fn first_word(id: u64) -> u64 {
    (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A row: words that count from its first one on.
pub fn row(id: u64) -> Vec<u8> {
    let word = |place: u64| first_word(id).wrapping_add(place);
    (0..ROW_BYTES as u64 / 8).flat_map(|place| word(place).to_le_bytes()).collect()
}

/// Makes the file, unless it is there with `rows` rows.
pub fn make(path: &Path, rows: u64) -> Result<()> {
    let at = || format!("cannot write {}", path.display());
    let bytes = rows * ROW_BYTES as u64;
    match std::fs::metadata(path) {
        Ok(there) => {
            let why = "remove it, or name another one by --file";
            ensure!(there.len() == bytes, "{} is another file, or of another run: {why}", path.display());
            return Ok(());
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(at),
    }
    eprintln!("makes {} of {} MiB", path.display(), bytes >> 20);
    // A run that is interrupted leaves another name.
    let unfinished = path.with_extension("unfinished");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished).with_context(at)?);
    (0..rows).try_for_each(|id| file.write_all(&row(id))).with_context(at)?;
    let file = file.into_inner().map_err(|error| error.into_error()).with_context(at)?;
    file.sync_all().with_context(at)?;
    std::fs::rename(&unfinished, path).with_context(at)
}

/// Has the kernel forget what it has of the file.
pub fn forget(path: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).open(path).with_context(|| format!("cannot open {}", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}
