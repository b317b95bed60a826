//! The parser of the command's arguments never panics, whatever bytes they have. Here line ends separate arguments.

#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let words = data.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let arguments = std::iter::once(OsString::from("iomill")).chain(words).collect();
    let _ = iomill_cli::parse_arguments(arguments);
});
