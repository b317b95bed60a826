//! The readers of traces, compressed or not, never panic, and take bounded memory. No request is beyond the limits on
//! which other code relies.

#![no_main]

use std::io::Cursor;

use iomill_trace::{Format, Reader};
use libfuzzer_sys::fuzz_target;

/// The most requests of one input. A short input that compresses well could be read for ever.
const REQUESTS_MAX: usize = 20_000;

fuzz_target!(
    init: {
        for seed in [
            &include_bytes!("../seeds/trace/csv")[..],
            include_bytes!("../seeds/trace/spc"),
            include_bytes!("../seeds/trace/msr"),
            include_bytes!("../seeds/trace/blkparse"),
            include_bytes!("../seeds/trace/csv.gz"),
            include_bytes!("../seeds/trace/csv.xz"),
            include_bytes!("../seeds/trace/csv.zst"),
        ] {
            let reader = Reader::new(Cursor::new(seed), "seed".to_owned(), None);
            match reader.map(|mut reader| reader.next()) {
                Ok(Some(Ok(_))) => {}
                other => panic!("the seed is no trace any more: {other:?}"),
            }
        }
    },
    |data: &[u8]| {
        let formats = Format::ALL.into_iter().map(Some);
        for format in formats.chain([None]) {
            let Ok(mut reader) = Reader::new(Cursor::new(data.to_vec()), "trace".to_owned(), format) else { continue };
            for request in reader.by_ref().take(REQUESTS_MAX).map_while(Result::ok) {
                assert!(request.len <= 1 << 30 && request.end() <= 1 << 52);
            }
        }
    }
);
