//! Labels in a volume that is a file of an array: 16 threads write pieces of about 1,000 bytes at unaligned places, and
//! all is checked.
//!
//! `cargo run --release -p iomill --example labels [DIRECTORY [MEBIBYTES]]`. The lab runs the same on rivals:
//! `iomill-lab work labels`.

mod labels;
#[path = "../common/scratch.rs"]
mod scratch;

use std::path::PathBuf;
use std::time::Instant;

use iomill::{ArrayOptions, File, FileOptions};
use labels::{Labels, Volume};
use scratch::{Result, on_drives};

const THREADS: usize = 16;

impl Volume for File {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_at(bytes, offset)?)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.read_exact_at(bytes, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(File::sync(self)?)
    }
}

fn main() -> Result<()> {
    on_drives(64, |drives, mebibytes| run(drives, mebibytes << 20))
}

fn run(drives: &[PathBuf], volume_bytes: u64) -> Result<()> {
    // Memory for an eighth of the volume.
    let array = ArrayOptions::new().cache_bytes((volume_bytes / 8).max(4 << 20)).create(drives)?;
    let file = array.create_file("volume", &FileOptions::new())?;
    file.set_len(volume_bytes)?;
    let labels = Labels::of(volume_bytes);
    let start = Instant::now();
    labels.write(&file, labels.len(), THREADS)?;
    println!("{} labels are durable after {:.2?}", labels.len(), start.elapsed());
    labels.check(&file, labels.len(), THREADS)?;
    println!("all of them are right");
    Ok(array.close()?)
}
