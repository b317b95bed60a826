//! The public tests of `object_store::integration`, unchanged, on a cache that asks for versions in each call. Each
//! runs twice on the same cache, so that the second run has the cache of the first one.

use super::Rig;
use super::object_store::integration;

macro_rules! on_a_cache {
    ($($name:ident($rig:ident, $store:ident) $test:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let $rig = Rig::new();
            for _ in 0..2 {
                let $store = &$rig.store;
                $test;
                $rig.cache.flush();
                super::empty(&*$rig.memory).await;
            }
        }
    )*};
}

on_a_cache! {
    put_get_delete_list(rig, store) integration::put_get_delete_list(store).await;
    get_opts(rig, store) integration::get_opts(store).await;
    put_opts(rig, store) integration::put_opts(store, true).await;
    put_get_attributes(rig, store) integration::put_get_attributes(store).await;
    list_uses_directories_correctly(rig, store) integration::list_uses_directories_correctly(store).await;
    list_with_delimiter(rig, store) integration::list_with_delimiter(store).await;
    list_with_offset_exclusivity(rig, store) integration::list_with_offset_exclusivity(store).await;
    rename_and_copy(rig, store) integration::rename_and_copy(store).await;
    copy_if_not_exists(rig, store) integration::copy_if_not_exists(store).await;
    copy_rename_nonexistent_object(rig, store) integration::copy_rename_nonexistent_object(store).await;
    stream_get(rig, store) integration::stream_get(store).await;
    multipart(rig, store) integration::multipart(store, &*rig.memory).await;
    multipart_race_condition(rig, store) integration::multipart_race_condition(store, true).await;
    multipart_out_of_order(rig, store) integration::multipart_out_of_order(store).await;
    get_nonexistent_object(rig, store) integration::get_nonexistent_object(store, None).await.unwrap_err();
}
