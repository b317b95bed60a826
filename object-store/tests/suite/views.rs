//! What a store shows of itself.

use super::{IomillStore, fresh_array};

/// Programs print the stores that they have, and need the array for what the trait has no call.
#[test]
fn a_store_is_short_in_logs_and_gives_its_array() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone()).with_prefix("tables").unwrap();
    assert_eq!(format!("{store:?}"), "IomillStore(array, \"tables\")");
    assert_eq!(store.as_array().unwrap().info().unwrap().id, array.info().unwrap().id);
    assert!(format!("{array:?}").len() < 200, "{array:?}");
    let file = array.create_file("a", &iomill::FileOptions::new()).unwrap();
    assert!(format!("{file:?}").len() < 200, "{file:?}");
    let plain = IomillStore::plain(dir.path()).unwrap();
    assert!(plain.as_array().is_none());
    assert!(format!("{plain:?}").len() < 100 + dir.path().as_os_str().len(), "{plain:?}");
}
