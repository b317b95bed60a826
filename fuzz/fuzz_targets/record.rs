//! Records come from drives that may hold anything: reading one never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod seal;

fuzz_target!(
    init: {
        let seed = seal::sealed(include_bytes!("../seeds/record/two-drives"));
        if let Err(error) = iomill::catalog::parse_record(&seed) {
            panic!("the seed is no record any more, so that fuzzing would not get past the checksum: {error:?}");
        }
    },
    |data: &[u8]| {
        // Most bytes end at the checksum; with a right one they reach what is behind it.
        let _ = iomill::catalog::parse_record(data);
        let _ = iomill::catalog::parse_record(&seal::sealed(data));
    }
);
