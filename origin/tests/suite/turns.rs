//! Gets of granules in memory leave their thread to other tasks.

use super::object_store::ObjectStoreExt;
use super::object_store::path::Path;
use super::{Rig, random};

#[test]
fn a_loop_of_gets_that_hit_leaves_turns_to_other_tasks() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let rig = Rig::immutable();
        rig.behind("a", random(50_000, 1)).await;
        let path = Path::from("a");
        let get = async |number: u64| match number % 2 {
            0 => drop(rig.store.get(&path).await.unwrap().bytes().await.unwrap()),
            _ => drop(rig.ranges("a", &[0..10, 30_000..30_010]).await.unwrap()),
        };
        for number in 0..10 {
            get(number).await;
            rig.cache.flush();
        }
        let before = rig.cache.counters();
        let other = tokio::spawn(async {});
        let mut gets = 0;
        while !other.is_finished() {
            get(gets).await;
            gets += 1;
            assert!(gets < 10_000, "the other task has no turn");
        }
        assert_eq!(rig.since(&before).gets, 0);
    });
}
