//! Records come from drives, which may hold any bytes; reading a record never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod seal;

fuzz_target!(
    init: {
        let seed = seal::sealed(include_bytes!("../seeds/record/two-drives"));
        if let Err(error) = iomill::catalog::parse_record(&seed) {
            panic!("the seed is no record any more, so fuzzing would not get past the checksum; replace the seed: {error:?}");
        }
    },
    |data: &[u8]| {
        // Most bytes fail at the checksum. With a right one they reach the code behind it.
        let _ = iomill::catalog::parse_record(data);
        let _ = iomill::catalog::parse_record(&seal::sealed(data));
    }
);
