//! The tests of object_store 0.14's own suite, and ours, on the cache over stores of that version.

use iomill_origin::v0_14::Cached;
use object_store_0_14 as object_store;

#[path = "suite/mod.rs"]
mod suite;

/// Results in the form of this version.
mod result {
    use super::object_store::{Attributes, Extensions, GetResult, GetResultPayload, ObjectMeta};
    use std::ops::Range;

    pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
        GetResult { payload, meta, range, attributes, extensions: Extensions::new() }
    }
}

/// Tests that the suite of 0.13 does not have.
mod new {
    use super::object_store::integration;
    use super::suite::Rig;

    #[tokio::test]
    async fn multipart_with_opts() {
        let rig = Rig::new();
        integration::multipart_with_opts(&rig.store, &*rig.memory).await;
    }

    #[tokio::test]
    async fn multipart_put_part_out_of_order() {
        let rig = Rig::new();
        integration::multipart_put_part_out_of_order(&rig.store, &*rig.memory).await;
    }
}
