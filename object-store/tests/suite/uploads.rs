//! Uploads in parts of different lengths and in any order, and wrong addresses of uploads.

use super::object_store::ObjectStoreExt;
use super::object_store::multipart::{MultipartStore, PartId};
use super::object_store::path::Path;
use super::{IomillStore, assert_clean, fresh_array, random};

#[tokio::test]
async fn parts_of_any_length_in_any_order() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("object");
    let lens = [5000, 0, 4096, 1, 900_000, 70_000, 3];
    let parts: Vec<Vec<u8>> = lens.iter().enumerate().map(|(n, len)| random(*len, n as u64)).collect();
    let whole = parts.concat();
    let orders: [[usize; 7]; 3] = [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [2, 0, 6, 4, 1, 5, 3]];
    for order in orders {
        // By an upload the order is that of the calls.
        let mut upload = store.put_multipart(&path).await.unwrap();
        let mut writes: Vec<_> = parts.iter().map(|part| Some(upload.put_part(part.clone().into()))).collect();
        for n in order {
            writes[n].take().unwrap().await.unwrap();
        }
        upload.complete().await.unwrap();
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == whole);
        assert!(upload.complete().await.is_err());
        // By numbers it is that of the list at the end.
        let id = store.create_multipart(&path).await.unwrap();
        let mut ids: Vec<Option<PartId>> = vec![None; parts.len()];
        for n in order {
            // The first content of a part does not count.
            if n == 5 {
                store.put_part(&path, &id, n, "first".into()).await.unwrap();
            }
            ids[n] = Some(store.put_part(&path, &id, n, parts[n].clone().into()).await.unwrap());
        }
        let put = store.complete_multipart(&path, &id, ids.into_iter().flatten().collect()).await.unwrap();
        assert_eq!(store.head(&path).await.unwrap().e_tag, put.e_tag);
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == whole, "{order:?}");
        assert!(store.complete_multipart(&path, &id, Vec::new()).await.is_err());
    }
    drop(store);
    assert_clean(&dir, array);
}

#[tokio::test]
async fn a_wrong_address_of_an_upload_is_an_error() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let (path, other) = (Path::from("object"), Path::from("other"));
    let id = store.create_multipart(&path).await.unwrap();
    let part = store.put_part(&path, &id, 0, "part".into()).await.unwrap();
    let unknown = "7".to_owned();
    for (path, id) in [(&other, &id), (&path, &unknown)] {
        let put = store.put_part(path, id, 0, "part".into()).await.map(drop);
        let complete = store.complete_multipart(path, id, vec![part.clone()]).await.map(drop);
        for refused in [put, complete, store.abort_multipart(path, id).await] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("no upload") && text.contains("begin another"), "{text}");
        }
    }
    let wrong = vec![part.clone(), PartId { content_id: "9".into() }];
    let refused = store.complete_multipart(&path, &id, wrong).await.unwrap_err();
    assert!(refused.to_string().contains("\"9\""), "{refused}");
    // The upload is still there.
    store.complete_multipart(&path, &id, vec![part.clone(), part]).await.unwrap();
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "partpart");
    let id = store.create_multipart(&other).await.unwrap();
    store.put_part(&other, &id, 0, random(500_000, 1).into()).await.unwrap();
    store.abort_multipart(&other, &id).await.unwrap();
    assert_clean(&dir, array);
}
