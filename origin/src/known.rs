//! [`Known`]: the known versions, lengths and attributes of the objects of an origin. Rules C3 and C4 of
//! `docs/origin.md`. Non-goals: the moment of the next request (`store`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_util::future::Shared;

use crate::identity::{ObjectId, mixed};
use crate::notices::locked;
use crate::origin::Meta;

/// One content of one object.
#[derive(Debug)]
pub struct Object {
    pub path: String,
    pub meta: Meta,
    /// `None` if nothing distinguishes its contents: then it is not cached.
    pub id: Option<ObjectId>,
}

/// The facts about an origin that a store has found in a process.
#[derive(Debug, Default)]
pub struct Learned {
    pub known: Known,
    /// The form of etags in conditions that the origin accepts, of those that `store` names: at first the origin's own.
    pub etags: AtomicU8,
    /// First GETs in flight, of objects of which nothing is known.
    pub firsts: Mutex<HashMap<String, Shared<oneshot::Receiver<()>>>>,
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
    /// Objects with a change that may still happen, and the time until which that is assumed.
    doubted: HashMap<String, Instant>,
    /// The same for all objects of the shard: too many are doubted.
    all_doubted: Option<Instant>,
}

const SHARDS: usize = 64;
/// The most objects of a shard.
const OBJECTS: usize = 4096;
/// The most objects of a shard that are doubted by name.
const DOUBTED: usize = 256;
/// The time within which a request may still change its object, if its end was not seen.
const DOUBT: Duration = Duration::from_secs(900);

impl Default for Known {
    fn default() -> Self {
        Known { tick: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Known {
    fn shard(&self, path: &str) -> MutexGuard<'_, Shard> {
        let hash = twox_hash::XxHash3_64::oneshot(path.as_bytes());
        locked(&self.shards[mixed(hash) as usize % SHARDS])
    }

    /// The time before a request, for [`Known::learn`].
    pub fn tick(&self) -> u64 {
        self.tick.load(SeqCst)
    }

    pub fn find(&self, path: &str) -> Option<(Arc<Object>, Instant)> {
        self.shard(path).objects.get(path).cloned()
    }

    /// Notes the answer to a request that began at `tick`. Rule C4: not if the object may have been changed through the
    /// store since, and not after the answer to a later request.
    pub fn learn(&self, object: &Arc<Object>, tick: u64, asked: Instant) {
        let mut shard = self.shard(&object.path);
        if shard.changed > tick || shard.doubts(&object.path) {
            return;
        }
        if shard.objects.get(&object.path).is_some_and(|(_, later)| *later > asked) {
            return;
        }
        if shard.objects.len() >= OBJECTS && !shard.objects.contains_key(&object.path) {
            // Any object: it costs a request.
            if let Some(path) = shard.objects.keys().next().cloned() {
                shard.objects.remove(&path);
            }
        }
        shard.objects.insert(object.path.clone(), (Arc::clone(object), asked));
    }

    /// The object changes, or was found to have changed.
    pub fn forget(&self, path: &str) {
        self.forget_in(&mut self.shard(path), path);
    }

    fn forget_in(&self, shard: &mut Shard, path: &str) {
        shard.objects.remove(path);
        shard.changed = self.tick.fetch_add(1, SeqCst) + 1;
    }

    /// A change of the object has begun, and its end was not seen. So nothing is remembered of the object for a while.
    pub fn doubt(&self, path: &str) {
        let end = Instant::now() + DOUBT;
        let mut shard = self.shard(path);
        // In one step: no answer comes in between.
        self.forget_in(&mut shard, path);
        if shard.doubted.len() >= DOUBTED {
            let now = Instant::now();
            shard.doubted.retain(|_, end| *end > now);
        }
        if shard.doubted.len() >= DOUBTED {
            shard.all_doubted = Some(end);
            shard.objects.clear();
        } else {
            shard.doubted.insert(path.to_owned(), end);
        }
    }
}

impl Shard {
    fn doubts(&self, path: &str) -> bool {
        let end = self.doubted.get(path).max(self.all_doubted.as_ref());
        end.is_some_and(|end| *end > Instant::now())
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

    /// Of two heads in flight while another program changes the object, the one that was sent first may arrive last.
    #[test]
    fn a_late_answer_does_not_replace_a_newer_one() {
        let known = Known::default();
        let first = Instant::now();
        let (old, new) = (object("a"), object("a"));
        known.learn(&new, known.tick(), first + Duration::from_millis(1));
        known.learn(&old, known.tick(), first);
        assert!(Arc::ptr_eq(&known.find("a").unwrap().0, &new));
        known.learn(&old, known.tick(), first + Duration::from_millis(2));
        assert!(Arc::ptr_eq(&known.find("a").unwrap().0, &old));
        // After a change nothing older is left.
        known.forget("a");
        known.learn(&new, known.tick(), first);
        assert!(Arc::ptr_eq(&known.find("a").unwrap().0, &new));
    }

    #[test]
    fn of_an_object_in_doubt_nothing_is_remembered() {
        let known = Known::default();
        known.learn(&object("a"), known.tick(), Instant::now());
        known.doubt("a");
        known.learn(&object("a"), known.tick(), Instant::now());
        known.learn(&object("b"), known.tick(), Instant::now());
        assert!(known.find("a").is_none() && known.find("b").is_some());
        // Too many to name: all are doubted, and their names take no memory.
        let many = SHARDS * DOUBTED * 2;
        (0..many).for_each(|n| known.doubt(&n.to_string()));
        let named: usize = known.shards.iter().map(|shard| locked(shard).doubted.len()).sum();
        assert!(named <= SHARDS * DOUBTED);
        known.learn(&object("c"), known.tick(), Instant::now());
        assert!(known.find("b").is_none() && known.find("c").is_none());
        // The end of the time.
        for shard in &known.shards {
            let mut shard = locked(shard);
            shard.all_doubted = None;
            shard.doubted.values_mut().for_each(|end| *end = Instant::now());
        }
        known.learn(&object("a"), known.tick(), Instant::now());
        assert!(known.find("a").is_some());
    }

    /// Seen to fail when an answer came between the two steps of a doubt: it was remembered as long as `Never` allows.
    #[test]
    fn an_answer_that_comes_beside_a_doubt_is_not_remembered() {
        let (known, one, ends) = (Known::default(), object("a"), AtomicU8::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while ends.load(SeqCst) == 0 {
                    known.learn(&one, known.tick(), Instant::now());
                }
            });
            let is_found = (0..50_000).any(|_| {
                known.doubt("a");
                let is_found = known.find("a").is_some();
                // The end of the time.
                known.shard("a").doubted.clear();
                is_found
            });
            ends.store(1, SeqCst);
            assert!(!is_found);
        });
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
