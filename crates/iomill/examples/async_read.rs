//! Futures without any runtime: many reads in flight from one thread.
//!
//! `cargo run -p iomill --example async_read [DIRECTORY]`

use std::path::PathBuf;

use iomill::{Array, FileOptions, block_on};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let base = base.join(format!("iomill-example-{}", std::process::id()));
    let drives = [base.join("ssd0"), base.join("ssd1")];
    for drive in &drives {
        std::fs::create_dir_all(drive)?;
    }
    let array = Array::create(&drives)?;
    let file = array.create_file("log", &FileOptions::new())?;

    block_on(file.write_at_async(b"many drives, one file\n".repeat(10_000), 0))??;
    block_on(file.sync_async())??;
    // All reads are in flight before the first is waited for.
    let reads: Vec<_> = (0..100).map(|n| file.read_async(n * 2200, 22)).collect();
    for read in reads {
        assert_eq!(block_on(read)??, b"many drives, one file\n");
    }
    println!("100 reads, one thread");

    file.close()?;
    array.close()?;
    Ok(std::fs::remove_dir_all(&base)?)
}
