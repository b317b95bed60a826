//! Four directories for an example's drives, which go at its end.

use std::error::Error;
use std::path::{Path, PathBuf};

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Runs an example on four drives below a directory, its first argument or the current one. It also gets the second
/// argument, a number.
pub fn on_drives(number: u64, run: impl FnOnce(&[PathBuf], u64) -> Result<()>) -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let base = arguments.next().unwrap_or_else(|| ".".to_owned());
    let number = arguments.next().map_or(Ok(number), |given| given.parse())?;
    let base = Path::new(&base).join(format!("iomill-example-{}", std::process::id()));
    let drives: Vec<PathBuf> = (0..4).map(|index| base.join(format!("ssd{index}"))).collect();
    for drive in &drives {
        std::fs::create_dir_all(drive)?;
    }
    let result = run(&drives, number);
    std::fs::remove_dir_all(&base)?;
    result
}
