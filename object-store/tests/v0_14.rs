//! The tests of object_store 0.14's own suite, and ours, on the store for that version.

use iomill_object_store::v0_14::IomillStore;
use object_store_0_14 as object_store;

#[path = "suite/mod.rs"]
mod suite;

/// Tests that the suite of 0.13 does not have.
mod new {
    use super::object_store::integration;
    use super::suite::fresh;

    #[tokio::test]
    async fn multipart_with_opts() {
        let (_dir, store) = fresh();
        integration::multipart_with_opts(&store, &store).await;
    }

    #[tokio::test]
    async fn multipart_put_part_out_of_order() {
        let (_dir, store) = fresh();
        integration::multipart_put_part_out_of_order(&store, &store).await;
    }
}
