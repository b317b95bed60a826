//! Attributes of objects: which come back, where they lie, and which are refused.

use super::object_store::path::Path;
use super::object_store::{Attribute, Attributes, Error, GetOptions, ObjectStore, ObjectStoreExt, PutOptions};
use super::{IomillStore, fresh_array, options};

fn all() -> Attributes {
    Attributes::from_iter([
        (Attribute::CacheControl, "max-age=1"),
        (Attribute::ContentDisposition, "inline"),
        (Attribute::ContentEncoding, "gzip"),
        (Attribute::ContentLanguage, "en"),
        (Attribute::ContentType, "text/html; charset=utf-8"),
        (Attribute::StorageClass, "cold"),
        (Attribute::Metadata("content-type".into()), "a key like another one"),
        (Attribute::Metadata("".into()), "no key"),
        (Attribute::Metadata("ключ: x".into()), "line\nline"),
    ])
}

#[tokio::test]
async fn they_stay_with_the_object() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("a/object");
    store.put_opts(&path, "bytes".into(), all().into()).await.unwrap();
    array.set_attribute("a/object", "owner", Some("not of an object")).unwrap();
    for key in ["object:content-type", "object:metadata:content-type", "object:storage-class"] {
        assert!(array.stat("a/object").unwrap().attributes.contains_key(key), "{key}");
    }
    assert_eq!(store.get(&path).await.unwrap().attributes, all());
    let head = store.get_opts(&path, GetOptions::new().with_head(true)).await.unwrap();
    assert_eq!((head.attributes.clone(), head.range.clone()), (all(), 0..5));
    assert_eq!(head.bytes().await.unwrap(), "");
    store.copy(&path, &Path::from("copy")).await.unwrap();
    store.rename(&path, &Path::from("renamed")).await.unwrap();
    drop(store);
    array.close().unwrap();
    let store = IomillStore::array(options().open(dir.path().join("ssd2")).unwrap());
    for name in ["copy", "renamed"] {
        assert_eq!(store.get(&Path::from(name)).await.unwrap().attributes, all(), "{name}");
    }
    // A put replaces all of them.
    store.put(&Path::from("copy"), "new".into()).await.unwrap();
    assert_eq!(store.get(&Path::from("copy")).await.unwrap().attributes, Attributes::new());
}

#[tokio::test]
async fn those_that_do_not_fit_are_refused_and_nothing_is_put() {
    let (_dir, array) = fresh_array();
    let store = IomillStore::array(array);
    let path = Path::from("object");
    let long = |key: String, value: String| Attributes::from_iter([(Attribute::Metadata(key.into()), value)]);
    for (wrong, says) in [
        (long("k".repeat(90), "v".into()), "at most 100"),
        (long("key\n".into(), "v".into()), "control character"),
        (long("key".into(), "v".repeat(70_000)), "65536"),
    ] {
        let put = store.put_opts(&path, "bytes".into(), wrong.clone().into()).await.unwrap_err();
        let upload = store.put_multipart_opts(&path, wrong.into()).await.unwrap_err();
        for refused in [put, upload] {
            assert!(matches!(refused, Error::Generic { .. }) && refused.to_string().contains(says), "{refused}");
        }
        assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })));
    }
    let tags = PutOptions::from(super::object_store::TagSet::default());
    store.put_opts(&path, "bytes".into(), tags).await.unwrap();
}
