//! The machine, for the report, and memory: the available memory, and that of this process.

use std::fs;
use std::path::Path;

use iomill::sys::limits;
use iomill::{Error, Result};
pub use iomill_cli::machine::Machine;
use iomill_platform::memory;

/// Memory that this process can still take without swapping, in bytes, by the machine and by its control groups.
pub fn available_memory_bytes() -> Result<u64> {
    let unknown = |e: std::io::Error| Error::Tool { what: "the available memory".into(), why: e.to_string() };
    limits::available_bytes(Path::new("/")).map_err(unknown)
}

/// Memory of this process without pages of files, in bytes: anonymous and shared memory.
pub fn process_memory_bytes() -> Result<u64> {
    let path = "/proc/self/status";
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    let lacks = || Error::Tool { what: path.into(), why: "it has no lines RssAnon and RssShmem".into() };
    let anonymous = memory::bytes(&text, "RssAnon").ok_or_else(lacks)?;
    Ok(anonymous + memory::bytes(&text, "RssShmem").ok_or_else(lacks)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted() {
        assert!(available_memory_bytes().unwrap() < Machine::look(&[]).memory_bytes);
        let before = process_memory_bytes().unwrap();
        let taken = vec![1u8; 64 << 20];
        let after = process_memory_bytes().unwrap();
        // Other tests also take and free memory.
        assert!(after > before + (48 << 20), "{before} {after} {}", taken.len());
    }
}
