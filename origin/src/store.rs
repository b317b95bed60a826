//! [`Store`]: the objects of one origin through a cache: which content a get sees. Rules C1 to C5 of `docs/origin.md`. Non-goals: the trait
//! (`versioned`), and where bytes come from (`reading`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::future::{Either, FutureExt, Shared, select};

use crate::cache::{Cache, Inner};
use crate::common::{Fault, Kind, Result, give_turn};
use crate::counters::add;
use crate::fetch::granules_of;
use crate::fill::Fill;
use crate::identity::ObjectId;
use crate::known::{Known, Object};
use crate::notices::locked;
use crate::options::{PATIENCE, Revalidate};
use crate::origin::{Condition, Meta, Origin};
use crate::pin::{Pinned, pin, unpin};
use crate::prefetch::{Prefetched, prefetch};
use crate::process::PerProcess;
use crate::reading::read;
use crate::source::{Gets, Source, checked_body, checked_meta};

/// See the module.
#[derive(Debug)]
pub struct Store {
    pub cache: Cache,
    origin: Arc<dyn Origin>,
    /// The origin, in identities of granules.
    name: String,
    here: PerProcess<Learned>,
}

/// What a process has learned of the origin.
#[derive(Debug, Default)]
struct Learned {
    known: Known,
    /// How the origin takes etags in conditions, as far as it was found: as it gives them at first, and then [`BARE`] or [`NONE`].
    etags: AtomicU8,
    /// First GETs of objects of which nothing is known.
    firsts: Mutex<HashMap<String, Shared<oneshot::Receiver<()>>>>,
}

/// Without quotes: the gateway of Ceph.
const BARE: u8 = 1;
/// Not at all. Answers are compared.
const NONE: u8 = 2;

/// How often a call begins again before it gives up on an object that keeps changing.
const TRIES: u32 = 4;
/// One GET in this many may be sent a second time.
const HEDGED_SHARE: u64 = 10;
/// Most bytes of a first GET, from which the version is learned.
const FIRST_BYTES: u64 = 2 << 20;

/// Which bytes to read of the wants. The function gets the length of the object.
pub type Cut<'a> = &'a (dyn Fn(u64) -> Result<Vec<Range<u64>>> + Send + Sync);

/// What a read gave.
pub enum Got {
    Parts(Arc<Object>, Vec<Bytes>),
    /// The object is not cached. The caller asks the origin itself.
    Pass,
}

/// What is known of an object when a call begins.
enum Present {
    Fresh(Arc<Object>),
    /// To be asked for again.
    Stale(Arc<Object>),
    Nothing,
}

#[async_trait]
impl Gets for Store {
    /// Rule F6.
    async fn get(&self, object: &Object, range: Range<u64>) -> Result<Bytes> {
        let cache = self.inner()?;
        let Some(time) = cache.options.cost.hedge_after else { return self.get_once(object, range).await };
        let first = std::pin::pin!(self.get_once(object, range.clone()));
        let first = match select(first, cache.timer.after(time)).await {
            Either::Left((got, _)) => return got,
            Either::Right((_, first)) => first,
        };
        let (gets, hedged) = (cache.tally.gets.load(Relaxed), cache.tally.hedged.load(Relaxed));
        if (hedged + 1) * HEDGED_SHARE > gets.max(HEDGED_SHARE) {
            return first.await;
        }
        add(&cache.tally.hedged, 1);
        match select(first, std::pin::pin!(self.get_once(object, range))).await {
            Either::Left((Err(_), other)) => other.await,
            Either::Right((Err(_), other)) => other.await,
            Either::Left((got, _)) | Either::Right((got, _)) => got,
        }
    }
}

impl Store {
    pub fn new(cache: Cache, origin: Arc<dyn Origin>, name: &str) -> Store {
        Store { cache, origin, name: name.to_owned(), here: PerProcess::new(Learned::default()) }
    }

    /// What this process has of the cache.
    pub fn inner(&self) -> Result<&Inner> {
        self.cache
            .here()
            .map_err(|error| Fault::other(format!("the cache cannot be opened in this forked process: {error}")))
    }

    /// What this process has learned.
    fn here(&self) -> &Learned {
        let Ok(here) = self.here.get_or_try(|| Ok::<_, Infallible>(Learned::default()));
        here
    }

    pub fn known(&self) -> &Known {
        &self.here().known
    }

    fn object(&self, path: &str, meta: Meta) -> Arc<Object> {
        let version = meta.identity(self.cache.options().by_time);
        let id = version.map(|version| ObjectId::new(&self.name, path, &version, meta.size));
        Arc::new(Object { path: path.to_owned(), meta, id })
    }

    /// Notes what an origin said in answer to a request that began at `tick`.
    pub fn learn(&self, path: &str, meta: Meta, tick: u64, asked: Instant) -> Arc<Object> {
        let object = self.object(path, meta);
        self.known().learn(&object, tick, asked);
        object
    }

    async fn get_once(&self, object: &Object, range: Range<u64>) -> Result<Bytes> {
        let cache = self.inner()?;
        // A program that does not know the object yet then asks for its head, and not for bytes that are there.
        cache.note_object(object_hash(&self.name, &object.path));
        loop {
            let (condition, how) = self.condition(object);
            let _permit = cache.permit().await;
            add(&cache.tally.gets, 1);
            match self.origin.get(&object.path, range.clone(), condition).await {
                Ok(answer) => {
                    checked_meta(&object.path, &object.meta, &answer.meta)?;
                    return checked_body(cache, &object.path, &range, answer).await;
                }
                // The origin may not understand the condition.
                Err(fault) if fault.kind == Kind::Precondition && self.learns_etags(object, how).await => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    fn condition(&self, object: &Object) -> (Condition, u8) {
        let how = self.here().etags.load(Relaxed);
        let condition = match &object.meta.e_tag {
            // A weak etag never matches.
            Some(e_tag) if how != NONE && !e_tag.starts_with("W/") => {
                Condition::Match(if how == BARE { e_tag.trim_matches('"').to_owned() } else { e_tag.clone() })
            }
            Some(_) => Condition::Any,
            None if object.meta.version.is_none() => Condition::Unmodified(object.meta.modified),
            None => Condition::Any,
        };
        (condition, how)
    }

    /// An origin has refused a condition. If the object has not changed, the origin takes etags in another form: rule C2. `true` if the GET is to be
    /// sent again.
    async fn learns_etags(&self, object: &Object, how: u8) -> bool {
        if object.meta.e_tag.is_none() || how == NONE {
            return false;
        }
        let Ok(cache) = self.inner() else { return false };
        let Ok(meta) = self.origin.head(&object.path).await else { return false };
        add(&cache.tally.heads, 1);
        if !meta.is_same(&object.meta) {
            return false;
        }
        let _by_another_call = self.here().etags.compare_exchange(how, how + 1, Relaxed, Relaxed);
        true
    }

    /// The object as it is now.
    pub async fn head(&self, path: &str) -> Result<Arc<Object>> {
        let (tick, asked) = (self.known().tick(), Instant::now());
        add(&self.inner()?.tally.heads, 1);
        match self.origin.head(path).await {
            Ok(meta) => Ok(self.learn(path, meta, tick, asked)),
            Err(fault) => {
                if fault.kind == Kind::NotFound {
                    self.known().forget(path);
                }
                Err(fault)
            }
        }
    }

    fn present(&self, path: &str) -> Present {
        let Some((object, asked)) = self.known().find(path) else { return Present::Nothing };
        let fresh = match self.cache.options().when(path) {
            Revalidate::Always => false,
            Revalidate::After(most) => asked.elapsed() < most,
            Revalidate::Never => true,
        };
        if fresh { Present::Fresh(object) } else { Present::Stale(object) }
    }

    /// Reads an object as it is now. `first` is what a first GET asks for, if nothing is known of the object; without it, its head is asked for.
    pub async fn read(&self, path: &str, first: Option<Range<u64>>, cut: Cut<'_>) -> Result<Got> {
        give_turn().await;
        for _ in 0..TRIES {
            let (object, have, fresh) = match self.begin(path, first.clone()).await {
                // An origin without ranges gives whole objects.
                Err(fault) if fault.kind == Kind::NotSupported => return Ok(Got::Pass),
                begun => begun?,
            };
            if object.id.is_none() {
                return Ok(Got::Pass);
            }
            match self.read_of(&object, have, fresh, cut).await {
                Ok(Some(parts)) => return Ok(Got::Parts(object, parts)),
                Ok(None) => {}
                Err(fault) if fault.kind == Kind::NotSupported => return Ok(Got::Pass),
                // Rule C1: nothing of what was read is used.
                Err(fault) if fault.kind == Kind::Precondition => self.known().forget(path),
                Err(fault) => return Err(fault),
            }
            add(&self.inner()?.tally.restarts, 1);
        }
        Err(Fault::changed(path))
    }

    /// The object as a call that begins now sees it.
    pub async fn open(&self, path: &str) -> Result<Arc<Object>> {
        match self.present(path) {
            Present::Fresh(object) => Ok(object),
            _ => self.head(path).await,
        }
    }

    /// Rule C5: brings ranges of one content to the drives.
    pub async fn prefetch(&self, object: &Object, range: Range<u64>) -> Result<Prefetched> {
        prefetch(&Source { cache: self.inner()?, object, gets: self }, range).await
    }

    /// Rule C5: brings ranges of one content, and pins them.
    pub async fn pin(
        &self,
        object: &Object,
        ranges: &[Range<u64>],
        done: &mut Pinned,
        progress: &mut (dyn FnMut(Pinned) + Send),
    ) -> Result<()> {
        let source = Source { cache: self.inner()?, object, gets: self };
        for range in ranges {
            pin(&source, range.clone(), done, progress).await?;
        }
        done.objects += 1;
        progress(*done);
        Ok(())
    }

    /// Makes pinned granules of one content like others.
    pub fn unpin(&self, object: &Object, ranges: &[Range<u64>]) -> Result<()> {
        let (cache, Some(id)) = (self.inner()?, object.id) else { return Ok(()) };
        let within = |range: &Range<u64>| range.start..range.end.min(object.meta.size);
        ranges.iter().map(within).for_each(|range| unpin(cache, id, range));
        Ok(())
    }

    /// Rule C5: reads ranges of one content, and of no other: what goes on after a call has begun to answer.
    pub async fn read_more(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        give_turn().await;
        let source = Source { cache: self.inner()?, object, gets: self };
        let id = object.id.ok_or_else(|| Fault::other("an object without a version is not cached"))?;
        let read = read(&source, id, ranges, HashMap::new()).await;
        if read.as_ref().is_err_and(|fault| matches!(fault.kind, Kind::Precondition | Kind::NotFound)) {
            // The next call asks again, whatever `Revalidate` says.
            self.known().forget(&object.path);
        }
        Ok(read?.parts)
    }

    /// The object that a call begins with, granules that are in memory by then, and whether it is known to be the present one.
    async fn begin(&self, path: &str, first: Option<Range<u64>>) -> Result<(Arc<Object>, HashMap<u64, Bytes>, bool)> {
        let (inner, mut has_waited) = (self.inner()?, false);
        loop {
            match self.present(path) {
                Present::Fresh(object) => return Ok((object, HashMap::new(), true)),
                Present::Stale(object) => return Ok((object, HashMap::new(), false)),
                Present::Nothing => {}
            }
            // Of an object with granules on the drives, only the version is lacking.
            let Some(range) = first.clone().filter(|_| !self.may_be_cached(inner, path)) else {
                return Ok((self.head(path).await?, HashMap::new(), true));
            };
            // After a wait the other call has failed, or nothing polls it. Calls that waited do not wait for each other.
            let _leading = match self.lead(path) {
                Err(other) if !has_waited => {
                    // Rule F1.
                    let _ended_or_late = select(other, inner.timer.after(PATIENCE)).await;
                    has_waited = true;
                    continue;
                }
                leading => leading.ok(),
            };
            let (object, have) = self.first(path, range).await?;
            return Ok((object, have, true));
        }
    }

    /// The duty to make the first GET of an object, or the end of the call that has it.
    fn lead<'a>(&'a self, path: &'a str) -> std::result::Result<First<'a>, Shared<oneshot::Receiver<()>>> {
        let mut firsts = locked(&self.here().firsts);
        if let Some(other) = firsts.get(path) {
            return Err(other.clone());
        }
        let (sender, receiver) = oneshot::channel();
        firsts.insert(path.to_owned(), receiver.shared());
        Ok(First { store: self, path, _told_by_drop: sender })
    }

    fn may_be_cached(&self, inner: &Inner, path: &str) -> bool {
        inner.may_have_object(object_hash(&self.name, path))
    }

    /// Learns of an object by a GET of bytes that are wanted anyway. No head is asked for before it.
    async fn first(&self, path: &str, range: Range<u64>) -> Result<(Arc<Object>, HashMap<u64, Bytes>)> {
        let cache = self.inner()?;
        let begin = range.start / cache.granule_bytes * cache.granule_bytes;
        let end = range.end.checked_next_multiple_of(cache.granule_bytes).unwrap_or(range.end);
        let range = begin..end.min(begin.saturating_add(FIRST_BYTES));
        let (tick, asked) = (self.known().tick(), Instant::now());
        cache.note_object(object_hash(&self.name, path));
        let _permit = cache.permit().await;
        add(&cache.tally.gets, 1);
        let answer = match self.origin.get(path, range.clone(), Condition::Any).await {
            Ok(answer) => answer,
            Err(fault) if fault.kind == Kind::Other => {
                // The range may begin behind the end of the object, which is for the caller to say. An object without a version passes uncached:
                // its origin may give whole objects only.
                let object = self.head(path).await?;
                let goes_on = object.meta.size <= range.start || object.id.is_none();
                return if goes_on { Ok((object, HashMap::new())) } else { Err(fault) };
            }
            Err(fault) => return Err(fault),
        };
        let object = self.object(path, answer.meta.clone());
        let Some(id) = object.id else {
            self.known().learn(&object, tick, asked);
            return Ok((object, HashMap::new()));
        };
        let body = checked_body(cache, path, &range, answer).await?;
        self.known().learn(&object, tick, asked);
        let granules: HashMap<u64, Bytes> =
            granules_of(&body, begin / cache.granule_bytes, cache.granule_bytes).collect();
        for (granule, bytes) in &granules {
            cache.offer(Fill { id: id.granule(*granule), bytes: bytes.clone(), claim: None }, false);
        }
        Ok((object, granules))
    }

    /// `None` if the object is another one by now.
    async fn read_of(
        &self,
        object: &Arc<Object>,
        have: HashMap<u64, Bytes>,
        fresh: bool,
        cut: Cut<'_>,
    ) -> Result<Option<Vec<Bytes>>> {
        let (tick, asked) = (self.known().tick(), Instant::now());
        let is_same = |now: Arc<Object>| now.meta.is_same(&object.meta);
        let ranges = match cut(object.meta.size) {
            Err(fault) if fresh || is_same(self.head(&object.path).await?) => return Err(fault),
            Err(_) => return Ok(None),
            Ok(ranges) => ranges,
        };
        let source = Source { cache: self.inner()?, object, gets: self };
        let Some(id) = object.id else { return Ok(None) };
        let read = read(&source, id, &ranges, have).await?;
        if fresh {
            return Ok(Some(read.parts));
        }
        // Rule C3: a GET of this call has seen the version. Otherwise the head tells it, after the bytes were read.
        if read.validated {
            self.known().learn(object, tick, asked);
        } else if !is_same(self.head(&object.path).await?) {
            return Ok(None);
        }
        Ok(Some(read.parts))
    }
}

/// The first GET of an object is under way. Its drop tells the calls that wait.
struct First<'a> {
    store: &'a Store,
    path: &'a str,
    _told_by_drop: oneshot::Sender<()>,
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        locked(&self.store.here().firsts).remove(self.path);
    }
}

fn object_hash(origin: &str, path: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(path.as_bytes(), xxhash_rust::xxh3::xxh3_64(origin.as_bytes()))
}
