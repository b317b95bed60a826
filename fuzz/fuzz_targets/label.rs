//! The parser of labels never panics, whatever bytes a drive holds.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod seal;

fuzz_target!(
    init: {
        let seed = seal::sealed(include_bytes!("../seeds/label/two-drives"));
        if let Err(error) = iomill::catalog::parse_label(&seed) {
            panic!("the seed is no label any more, so fuzzing would not get past the checksum; replace the seed: {error:?}");
        }
    },
    |data: &[u8]| {
        // Most bytes fail at the checksum. With a right one they reach the code after it.
        let _ = iomill::catalog::parse_label(data);
        let _ = iomill::catalog::parse_label(&seal::sealed(data));
    }
);
