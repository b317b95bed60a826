//! Conditions, ranges, and the kinds of errors.

use super::object_store::path::Path;
use super::object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, RenameOptions,
    RenameTargetMode, UpdateVersion,
};
use super::{IomillStore, fresh, fresh_array, random};

#[tokio::test]
async fn an_update_needs_the_etag_of_what_is_there() {
    let (_dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("object");
    let first = store.put(&path, "1".into()).await.unwrap();
    assert_eq!(first.e_tag, Some(format!("\"{}\"", array.stat("object").unwrap().version)));
    assert_eq!(store.head(&path).await.unwrap().e_tag, first.e_tag);
    let update = |e_tag: Option<&str>| {
        let version = UpdateVersion { e_tag: e_tag.map(str::to_owned), version: None };
        store.put_opts(&path, "2".into(), PutMode::Update(version).into())
    };
    let version = array.stat("object").unwrap().version;
    let same_number = [format!("\"+{version}\""), format!("\"0{version}\""), format!("+{version}")];
    let wrong = ["\"77\"", "W/\"7\"", "", "\"none\"", "\"99999999999999999999999\""];
    for wrong in wrong.into_iter().chain(same_number.iter().map(String::as_str)) {
        let refused = update(Some(wrong)).await.unwrap_err();
        assert!(matches!(refused, Error::Precondition { .. }), "{wrong}: {refused}");
    }
    let refused = update(None).await.unwrap_err();
    assert!(matches!(refused, Error::Generic { .. }) && refused.to_string().contains("etag"), "{refused}");
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "1");
    let second = update(first.e_tag.as_deref()).await.unwrap();
    assert_ne!(first.e_tag, second.e_tag);
    // Without quotes, as some programs keep it.
    update(second.e_tag.as_deref().map(|tag| tag.trim_matches('"'))).await.unwrap();
}

#[tokio::test]
async fn copies_and_renames_keep_what_is_there_if_told_so() {
    let (_dir, store) = fresh();
    let [one, two, none] = ["one", "two", "none"].map(Path::from);
    store.put(&one, "1".into()).await.unwrap();
    store.put(&two, "2".into()).await.unwrap();
    let create = || RenameOptions::new().with_target_mode(RenameTargetMode::Create);
    let refused = store.rename_opts(&one, &two, create()).await.unwrap_err();
    assert!(matches!(&refused, Error::AlreadyExists { path, .. } if path == "two"), "{refused}");
    let refused = store.copy_opts(&one, &two, CopyOptions::new().with_mode(CopyMode::Create)).await.unwrap_err();
    assert!(matches!(&refused, Error::AlreadyExists { path, .. } if path == "two"), "{refused}");
    for refused in [store.rename(&none, &two).await, store.copy(&none, &two).await] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, Error::NotFound { path, .. } if path == "none"), "{refused}");
    }
    assert_eq!(store.get(&two).await.unwrap().bytes().await.unwrap(), "2");
    store.rename_opts(&one, &none, create()).await.unwrap();
    let e_tag = store.head(&none).await.unwrap().e_tag;
    store.rename(&none, &two).await.unwrap();
    let head = store.head(&two).await.unwrap();
    assert_eq!((head.e_tag, head.size), (e_tag, 1));
    store.rename(&two, &two).await.unwrap();
    store.copy(&two, &two).await.unwrap();
    assert_eq!(store.get(&two).await.unwrap().bytes().await.unwrap(), "1");
}

#[tokio::test]
async fn ranges_are_those_of_the_trait() {
    let (_dir, store) = fresh();
    let path = Path::from("object");
    let bytes = random(100_000, 1);
    store.put(&path, bytes.clone().into()).await.unwrap();
    let ranges = [
        (GetRange::Bounded(0..1), Some(0..1)),
        (GetRange::Bounded(4090..4100), Some(4090..4100)),
        (GetRange::Bounded(99_999..200_000), Some(99_999..100_000)),
        (GetRange::Bounded(100_000..100_001), None),
        (GetRange::Bounded(5..5), None),
        (GetRange::Offset(99_990), Some(99_990..100_000)),
        (GetRange::Offset(100_000), None),
        (GetRange::Suffix(10), Some(99_990..100_000)),
        (GetRange::Suffix(0), Some(100_000..100_000)),
        (GetRange::Suffix(u64::MAX), Some(0..100_000)),
    ];
    for (range, expected) in ranges {
        let got = store.get_opts(&path, GetOptions::new().with_range(Some(range.clone()))).await;
        match expected {
            Some(expected) => {
                let got = got.unwrap();
                assert_eq!((got.range.clone(), got.meta.size), (expected.clone(), 100_000), "{range:?}");
                assert_eq!(got.bytes().await.unwrap(), bytes[expected.start as usize..expected.end as usize]);
            }
            None => assert!(matches!(got.unwrap_err(), Error::Generic { store: "iomill", .. }), "{range:?}"),
        }
    }
    let version = GetOptions::new().with_version(Some("7"));
    assert!(matches!(store.get_opts(&path, version).await, Err(Error::NotSupported { .. })));
}

#[tokio::test]
async fn names_that_an_array_cannot_have_are_errors() {
    let (_dir, store) = fresh();
    for (name, says) in [("".to_owned(), "at least one"), ("n".repeat(1001), "1000"), ("c\u{85}".into(), "control")] {
        let path = Path::parse(name).unwrap();
        for missing in [store.head(&path).await.map(drop), store.get(&path).await.map(drop), store.delete(&path).await]
        {
            assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
        }
        let refused = store.put(&path, "1".into()).await.unwrap_err();
        assert!(matches!(refused, Error::Generic { .. }) && refused.to_string().contains(says), "{refused}");
    }
}

#[tokio::test]
async fn a_reader_of_an_array_is_refused_changes() {
    let (dir, array) = fresh_array();
    array.put("object", b"1", &Default::default()).unwrap();
    array.close().unwrap();
    let reader = super::options().read_only(true).open(dir.path().join("ssd0")).unwrap();
    let store = IomillStore::array(reader);
    let path = Path::from("object");
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "1");
    let refused = [
        store.put(&path, "2".into()).await.map(drop),
        store.delete(&path).await,
        store.copy(&path, &Path::from("copy")).await,
        store.rename(&path, &Path::from("copy")).await,
        store.put_multipart(&path).await.map(drop),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_closed_array_is_an_error_everywhere() {
    let (_dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("object");
    store.put(&path, random(100_000, 1).into()).await.unwrap();
    let mut got = store.get(&path).await.unwrap().into_stream();
    array.close().unwrap();
    let read = futures_util::StreamExt::next(&mut got).await.unwrap();
    let listed = futures_util::StreamExt::next(&mut store.list(None)).await.unwrap();
    let refused = [
        read.map(drop),
        listed.map(drop),
        store.put(&path, "2".into()).await.map(drop),
        store.head(&path).await.map(drop),
        store.get_ranges(&path, &[0..1]).await.map(drop),
        store.list_with_delimiter(None).await.map(drop),
        store.delete(&path).await,
    ];
    for refused in refused {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("closed"), "{text}");
    }
}
