//! Shuffled epochs over rows in a file of an array, with memory for a quarter of them.
//!
//! `cargo run --release -p iomill --example train [DIRECTORY [ROWS]]`. The lab runs the same on rivals:
//! `iomill-lab work train`.

#[path = "../common/scratch.rs"]
mod scratch;
mod train;

use std::path::PathBuf;

use iomill::{ArrayOptions, File, FileOptions};
use scratch::{Result, on_drives};
use train::{ROW_BYTES, Rows, row, train};

impl Rows for File {
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()> {
        Ok(self.read_rows(out, numbers, ROW_BYTES, 0)?)
    }
}

fn main() -> Result<()> {
    on_drives(32_768, |drives, rows| run(drives, rows as u32))
}

fn run(drives: &[PathBuf], count: u32) -> Result<()> {
    let bytes = u64::from(count) * ROW_BYTES as u64;
    let array = ArrayOptions::new().cache_bytes((bytes / 4).max(4 << 20)).create(drives)?;
    let file = array.create_file("rows", &FileOptions::new())?;
    for first in (0..count).step_by(4096) {
        let rows: Vec<u8> = (first..count.min(first + 4096)).flat_map(row).collect();
        file.write_at(&rows, u64::from(first) * ROW_BYTES as u64)?;
    }
    file.sync()?;
    for (epoch, loss) in (1..).zip(train(&file, count, 4)?) {
        println!("epoch {epoch}: a mean loss of {loss:.6}");
    }
    let counters = array.counters();
    println!(
        "{:.0}% of the pages were in memory",
        100.0 * counters.hits as f64 / (counters.hits + counters.misses) as f64
    );
    Ok(array.close()?)
}
