//! [`Known`]: what is known of the objects of an origin: their versions, lengths and attributes. Rules C3 and C4 of `docs/origin.md`. Non-goals: when
//! it is asked for again (`store`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::identity::{ObjectId, mixed};
use crate::notices::locked;
use crate::origin::Meta;

/// One content of one object.
#[derive(Debug)]
pub struct Object {
    pub path: String,
    pub meta: Meta,
    /// `None` if nothing tells its contents apart: it is not cached.
    pub id: Option<ObjectId>,
}

/// See the module.
#[derive(Debug)]
pub struct Known {
    /// Counts changes through the store.
    tick: AtomicU64,
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug, Default)]
struct Shard {
    objects: HashMap<String, (Arc<Object>, Instant)>,
    /// The tick of the last change of an object of the shard.
    changed: u64,
}

const SHARDS: usize = 64;
/// Most objects of a shard.
const OBJECTS: usize = 4096;

impl Default for Known {
    fn default() -> Self {
        Known { tick: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Known {
    fn shard(&self, path: &str) -> MutexGuard<'_, Shard> {
        let hash = xxhash_rust::xxh3::xxh3_64(path.as_bytes());
        locked(&self.shards[mixed(hash) as usize % SHARDS])
    }

    /// The time before a request, for [`Known::learn`].
    pub fn tick(&self) -> u64 {
        self.tick.load(SeqCst)
    }

    pub fn find(&self, path: &str) -> Option<(Arc<Object>, Instant)> {
        self.shard(path).objects.get(path).cloned()
    }

    /// Notes an answer to a request that began at `tick`. Rule C4: not if the object may have been changed through the store since.
    pub fn learn(&self, object: &Arc<Object>, tick: u64, asked: Instant) {
        let mut shard = self.shard(&object.path);
        if shard.changed > tick {
            return;
        }
        if shard.objects.len() >= OBJECTS && !shard.objects.contains_key(&object.path) {
            // Any one: it costs a request.
            if let Some(path) = shard.objects.keys().next().cloned() {
                shard.objects.remove(&path);
            }
        }
        shard.objects.insert(object.path.clone(), (Arc::clone(object), asked));
    }

    /// The object changes, or was found to have changed.
    pub fn forget(&self, path: &str) {
        let mut shard = self.shard(path);
        shard.objects.remove(path);
        shard.changed = self.tick.fetch_add(1, SeqCst) + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str) -> Arc<Object> {
        let modified = chrono::DateTime::UNIX_EPOCH;
        let meta = Meta { size: 1, e_tag: Some("1".into()), version: None, modified, attributes: Arc::new(()) };
        Arc::new(Object { path: path.into(), meta, id: None })
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_believed() {
        let known = Known::default();
        let tick = known.tick();
        known.learn(&object("a"), tick, Instant::now());
        assert!(known.find("a").is_some());
        known.forget("a");
        assert!(known.find("a").is_none());
        known.learn(&object("a"), tick, Instant::now());
        assert!(known.find("a").is_none(), "the request began before the change");
        known.learn(&object("a"), known.tick(), Instant::now());
        assert!(known.find("a").is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let known = Known::default();
        for n in 0..SHARDS * OBJECTS + 50_000 {
            known.learn(&object(&n.to_string()), known.tick(), Instant::now());
        }
        let held: usize = known.shards.iter().map(|shard| locked(shard).objects.len()).sum();
        assert!(held <= SHARDS * OBJECTS);
    }
}
