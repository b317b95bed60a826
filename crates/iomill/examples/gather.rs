//! The first lines: an array of four directories, a file, a gather of rows.
//!
//! `cargo run -p iomill --example gather [DIRECTORY]`

use std::path::PathBuf;

use iomill::{Array, FileOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let base = base.join(format!("iomill-example-{}", std::process::id()));
    let drives: Vec<PathBuf> = (0..4).map(|n| base.join(format!("ssd{n}"))).collect();
    for drive in &drives {
        std::fs::create_dir_all(drive)?;
    }
    let result = gather(&drives);
    std::fs::remove_dir_all(&base)?;
    result
}

fn gather(drives: &[PathBuf]) -> Result<(), Box<dyn std::error::Error>> {
    let array = Array::create(drives)?;
    let file = array.create_file("embeddings", &FileOptions::new())?;

    // 100,000 rows of 128 bytes; row n begins with n.
    let row = |n: u64| [n.to_le_bytes(); 16].concat();
    let bytes: Vec<u8> = (0..100_000).flat_map(row).collect();
    file.write_at(&bytes, 0)?;
    file.sync()?;

    // Rows in any order, by their numbers; row 0 begins at offset 0.
    let wanted: Vec<u64> = (0..1000).map(|n| n * 7919 % 100_000).collect();
    let mut out = vec![0; wanted.len() * 128];
    file.read_rows(&mut out, &wanted, 128, 0)?;

    for (n, bytes) in wanted.iter().zip(out.chunks(128)) {
        assert_eq!(bytes, row(*n));
    }
    println!("{} rows gathered from {} drives", wanted.len(), drives.len());
    file.close()?;
    Ok(array.close()?)
}
