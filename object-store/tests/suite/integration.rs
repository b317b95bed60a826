//! The public tests of `object_store::integration`, unchanged: on an array, and below a prefix of one.

use super::object_store::integration;
use super::{IomillStore, fresh};

/// The store of an empty array, and one below a prefix, with neighbours. Their names begin like the prefix.
async fn stores() -> Vec<(tempfile::TempDir, IomillStore)> {
    let (dir, whole) = fresh();
    let (other, array) = super::fresh_array();
    for neighbour in ["a/b", "a/bc", "a/b c/d", "z"] {
        array.put(neighbour, b"neighbour", &Default::default()).unwrap();
    }
    vec![(dir, whole), (other, IomillStore::array(array).with_prefix("a/b").unwrap())]
}

macro_rules! on_each_store {
    ($($name:ident($store:ident) $test:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            for (_dir, $store) in stores().await {
                $test;
            }
        }
    )*};
}

on_each_store! {
    put_get_delete_list(store) integration::put_get_delete_list(&store).await;
    get_opts(store) integration::get_opts(&store).await;
    put_opts(store) integration::put_opts(&store, true).await;
    put_get_attributes(store) integration::put_get_attributes(&store).await;
    list_uses_directories_correctly(store) integration::list_uses_directories_correctly(&store).await;
    list_with_delimiter(store) integration::list_with_delimiter(&store).await;
    list_with_offset_exclusivity(store) integration::list_with_offset_exclusivity(&store).await;
    list_paginated(store) integration::list_paginated(&store, &store).await;
    rename_and_copy(store) integration::rename_and_copy(&store).await;
    copy_if_not_exists(store) integration::copy_if_not_exists(&store).await;
    copy_rename_nonexistent_object(store) integration::copy_rename_nonexistent_object(&store).await;
    stream_get(store) integration::stream_get(&store).await;
    multipart(store) integration::multipart(&store, &store).await;
    multipart_race_condition(store) integration::multipart_race_condition(&store, true).await;
    multipart_out_of_order(store) integration::multipart_out_of_order(&store).await;
    get_nonexistent_object(store) integration::get_nonexistent_object(&store, None).await.unwrap_err();
}
