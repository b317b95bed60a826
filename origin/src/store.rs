//! [`Store`]: the objects of one origin through a cache: the choice of the content that a get sees. Rules C1 to C6 of
//! `docs/origin.md`. Non-goals: the trait (`versioned`), and reading the bytes (`reading`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use twox_hash::XxHash3_64;

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
use crate::known::{Known, Learned, Object};
use crate::notices::locked;
use crate::options::{PATIENCE, Revalidate};
use crate::origin::{Condition, Meta, Origin};
use crate::pin::{Pinned, pin, unpin};
use crate::prefetch::{Prefetched, prefetch};
use crate::present::{CachedBytes, Verified, cached_bytes, verify};
use crate::process::PerProcess;
use crate::reading::read;
use crate::source::{Gets, Source, checked_body, checked_meta};

/// See the module.
#[derive(Debug)]
pub struct Store {
    pub cache: Cache,
    origin: Arc<dyn Origin>,
    /// The name of the origin in identities of granules.
    name: String,
    here: PerProcess<Arc<Learned>>,
}

/// Etags without quotes: the gateway of Ceph.
const BARE: u8 = 1;
/// No conditions. Answers are compared.
const NONE: u8 = 2;

/// How often a call begins again before it fails, if an object keeps changing.
const TRIES: u32 = 4;
/// One GET in this many may be sent a second time.
const HEDGED_SHARE: u64 = 10;
/// The most bytes of a first GET, which also returns the version.
const FIRST_BYTES: u64 = 2 << 20;
/// The most granules of an object. Of 4 KiB each they are 64 TiB, and a walk over them takes minutes.
const GRANULES_MOST: u64 = 1 << 34;

/// Chooses the bytes to read, given the length of the object.
pub type Cut<'a> = &'a (dyn Fn(u64) -> Result<Vec<Range<u64>>> + Send + Sync);

/// The result of a read.
pub enum Got {
    Parts(Arc<Object>, Vec<Bytes>),
    /// The object is not cached. The caller reads from the origin itself.
    Pass,
}

/// The facts about an object when a call begins.
enum Present {
    Fresh(Arc<Object>),
    /// The version must be asked for again.
    Stale(Arc<Object>),
    Nothing,
}

/// How current the facts about an object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The origin has told them to this call.
    Now,
    /// It told them to an earlier call, and they still count.
    Before,
    /// They count only if the origin confirms them to this call.
    TooLongAgo,
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
        let here = PerProcess::new(new_learned(&cache, name));
        Store { cache, origin, name: name.to_owned(), here }
    }

    /// The state of the cache in this process.
    pub fn inner(&self) -> Result<&Inner> {
        self.cache
            .here()
            .map_err(|error| Fault::other(format!("the cache cannot be opened in this forked process: {error}")))
    }

    /// The facts that this store has found in this process.
    fn here(&self) -> &Learned {
        let Ok(here) = self.here.get_or_try(|| Ok::<_, Infallible>(new_learned(&self.cache, &self.name)));
        here
    }

    pub fn known(&self) -> &Known {
        &self.here().known
    }

    /// Rule C4: the facts of all stores of this origin, which a change concerns. If this process has not opened the
    /// cache, there are none.
    pub fn all_learned(&self) -> Vec<Arc<Learned>> {
        self.cache.opened().map(|inner| inner.learned(&self.name)).unwrap_or_default()
    }

    fn object(&self, path: &str, meta: Meta) -> Arc<Object> {
        let version = meta.identity(self.cache.options().by_time);
        let id = version.map(|version| ObjectId::new(&self.name, path, &version, meta.size));
        Arc::new(Object { path: path.to_owned(), meta, id })
    }

    /// Notes the answer of an origin to a request that began at `tick`.
    pub fn learn(&self, path: &str, meta: Meta, tick: u64, asked: Instant) -> Arc<Object> {
        let object = self.object(path, meta);
        self.known().learn(&object, tick, asked);
        object
    }

    async fn get_once(&self, object: &Object, range: Range<u64>) -> Result<Bytes> {
        let cache = self.inner()?;
        // A program that does not know the object yet then requests its head, instead of bytes that are cached.
        cache.note_object(object_hash(&self.name, &object.path));
        loop {
            let (condition, how) = self.condition(object);
            let _permit = cache.permit().await;
            add(&cache.tally.gets, 1);
            let (tick, asked) = (self.known().tick(), Instant::now());
            match self.origin.get(&object.path, range.clone(), condition).await {
                Ok(answer) => {
                    checked_meta(&object.path, &object.meta, &answer.meta)?;
                    if answer.meta.modified != object.meta.modified {
                        // The same content, with other attributes: it was copied onto itself.
                        self.learn(&object.path, answer.meta.clone(), tick, asked);
                    }
                    return checked_body(cache, &object.path, &range, answer).await;
                }
                // The origin may not understand the condition.
                Err(fault) if fault.kind == Kind::Precondition && self.learns_etags(object, how).await => {}
                Err(fault) if may_be_of_range(&fault) => return Err(self.reason(object, fault).await),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Rule C6: a range within the known length was refused. If the object is another one by now, that is the reason:
    /// an origin that ignores conditions does not name it.
    async fn reason(&self, object: &Object, fault: Fault) -> Fault {
        let Ok(cache) = self.inner() else { return fault };
        add(&cache.tally.heads, 1);
        match self.origin.head(&object.path).await {
            Ok(meta) if !meta.is_same(&object.meta) => Fault::changed(&object.path),
            Err(gone) if gone.kind == Kind::NotFound => gone,
            _ => fault,
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
            None if how != NONE && object.meta.version.is_none() => Condition::Unmodified(object.meta.modified),
            None => Condition::Any,
        };
        (condition, how)
    }

    /// An origin has refused a condition. If the object has not changed, the origin needs etags in another form, or its
    /// conditions do not work: rule C2. `true` if the GET should be sent again.
    async fn learns_etags(&self, object: &Object, how: u8) -> bool {
        if how == NONE {
            return false;
        }
        // A time has one form only.
        let next = if object.meta.e_tag.is_some() { how + 1 } else { NONE };
        let Ok(cache) = self.inner() else { return false };
        let Ok(meta) = self.origin.head(&object.path).await else { return false };
        add(&cache.tally.heads, 1);
        if !meta.is_same(&object.meta) {
            return false;
        }
        let _by_another_call = self.here().etags.compare_exchange(how, next, Relaxed, Relaxed);
        true
    }

    /// The object in its present version.
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

    /// The object in its present version, also of an origin that refuses heads: then a GET of its first granule has it.
    pub async fn ask(&self, path: &str) -> Result<Arc<Object>> {
        match self.head(path).await {
            Err(fault) if may_be_of_head(&fault) => Ok(self.first(path, 0..1).await?.0),
            asked => asked,
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

    /// Reads an object in its present version. If nothing is known of the object, the first GET requests `first`;
    /// without `first`, its head is requested.
    pub async fn read(&self, path: &str, first: Option<Range<u64>>, cut: Cut<'_>) -> Result<Got> {
        give_turn().await;
        for _ in 0..TRIES {
            let (object, have, asked) = match self.begin(path, first.clone()).await {
                // An origin without ranges gives whole objects.
                Err(fault) if fault.kind == Kind::NotSupported => return Ok(Got::Pass),
                begun => begun?,
            };
            if object.id.is_none() {
                return Ok(Got::Pass);
            }
            match self.read_of(object, have, asked, cut).await {
                Ok(Some(got)) => return Ok(got),
                Ok(None) => {}
                Err(fault) if fault.kind == Kind::NotSupported => return Ok(Got::Pass),
                // Rule C1: no byte of this read is used.
                Err(fault) if fault.kind == Kind::Precondition => {}
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
            _ => self.ask(path).await,
        }
    }

    /// Rule C5: fetches ranges of one content to the drives.
    pub async fn prefetch(&self, object: &Object, range: Range<u64>) -> Result<Prefetched> {
        let source = Source { cache: self.inner()?, object, gets: self, is_ahead: true };
        self.seen(object, prefetch(&source, range).await)
    }

    /// Rule C5: fetches ranges of one content, and pins them.
    pub async fn pin(
        &self,
        object: &Object,
        ranges: &[Range<u64>],
        done: &mut Pinned,
        progress: &mut (dyn FnMut(Pinned) + Send),
    ) -> Result<()> {
        let source = Source { cache: self.inner()?, object, gets: self, is_ahead: true };
        for range in ranges {
            self.seen(object, pin(&source, range.clone(), done, progress).await)?;
        }
        done.objects += 1;
        progress(*done);
        Ok(())
    }

    /// Unpins the granules of one content.
    pub async fn unpin(&self, object: &Object, ranges: &[Range<u64>]) -> Result<()> {
        let (cache, Some(id)) = (self.inner()?, object.id) else { return Ok(()) };
        check_length(cache, object)?;
        for range in ranges {
            unpin(cache, id, range.start..range.end.min(object.meta.size)).await?;
        }
        Ok(())
    }

    /// The cached part of one content.
    pub fn cached_bytes(&self, object: &Object) -> Result<CachedBytes> {
        let (cache, Some(id)) = (self.inner()?, object.id) else { return Ok(CachedBytes::default()) };
        check_length(cache, object)?;
        Ok(cached_bytes(cache, id, object))
    }

    /// Compares the sums of the cached part of one content.
    pub async fn verify(&self, object: &Object) -> Result<Verified> {
        let (cache, Some(id)) = (self.inner()?, object.id) else { return Ok(Verified::default()) };
        check_length(cache, object)?;
        Ok(verify(cache, id, object).await)
    }

    /// Rule C5: reads ranges of one content, and of no other, for a call that has begun to answer.
    pub async fn read_more(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        give_turn().await;
        let source = Source { cache: self.inner()?, object, gets: self, is_ahead: false };
        let id = object.id.ok_or_else(|| Fault::other("an object without a version is not cached"))?;
        self.seen(object, read(&source, id, ranges, HashMap::new()).await).map(|read| read.parts)
    }

    /// The result of a call on one content. If the call has seen another one, or none, the next call asks again, with
    /// any `Revalidate`.
    fn seen<T>(&self, object: &Object, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(|fault| matches!(fault.kind, Kind::Precondition | Kind::NotFound)) {
            self.known().forget(&object.path);
        }
        result
    }

    /// The object with which a call begins, the granules that are in memory by then, and how current it is.
    async fn begin(&self, path: &str, first: Option<Range<u64>>) -> Result<(Arc<Object>, HashMap<u64, Bytes>, Asked)> {
        let (inner, mut has_waited) = (self.inner()?, false);
        loop {
            match self.present(path) {
                Present::Fresh(object) => return Ok((object, HashMap::new(), Asked::Before)),
                Present::Stale(object) => return Ok((object, HashMap::new(), Asked::TooLongAgo)),
                Present::Nothing => {}
            }
            // The object has granules on the drives, so only its version is missing.
            let Some(range) = first.clone().filter(|_| !self.may_be_cached(inner, path)) else {
                return Ok((self.ask(path).await?, HashMap::new(), Asked::Now));
            };
            // After a wait the other call has failed, or nothing polls it. Calls that waited do not wait for each
            // other.
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
            return Ok((object, have, Asked::Now));
        }
    }

    /// The duty to make the first GET of an object, or the end of the call that has this duty.
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

    /// Learns the version of an object by a GET of bytes that the call needs anyway. No head is requested before it.
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
                // The range may begin past the end of the object, which the caller reports. An object without a
                // version is not cached: its origin may return whole objects only.
                let object = match self.head(path).await {
                    // Nothing tells the version. An object without bytes has no range.
                    Err(no_head) if may_be_of_head(&no_head) && may_be_of_range(&fault) => {
                        return Err(Fault { kind: Kind::NotSupported, ..fault });
                    }
                    Err(no_head) if may_be_of_head(&no_head) => return Err(fault),
                    asked => asked?,
                };
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
            cache.offer(Fill { id: id.granule(*granule), bytes: bytes.clone(), claim: None, is_ahead: false }, false);
        }
        Ok((object, granules))
    }

    /// `None` if the object is another one by now.
    async fn read_of(
        &self,
        object: Arc<Object>,
        have: HashMap<u64, Bytes>,
        asked: Asked,
        cut: Cut<'_>,
    ) -> Result<Option<Got>> {
        let (tick, begun) = (self.known().tick(), Instant::now());
        let ranges = match cut(object.meta.size) {
            // Rule C6: a longer object may have the range.
            Err(fault) if asked == Asked::Now || self.ask(&object.path).await?.meta.is_same(&object.meta) => {
                return Err(fault);
            }
            Err(_) => return Ok(None),
            Ok(ranges) => ranges,
        };
        let source = Source { cache: self.inner()?, object: &object, gets: self, is_ahead: false };
        let Some(id) = object.id else { return Ok(None) };
        let read = self.seen(&object, read(&source, id, &ranges, have).await)?;
        // Rule C3: a GET of this call has seen the version. Otherwise the head shows it, after the bytes were read.
        let now = match (asked, read.validated) {
            (Asked::TooLongAgo, false) => self.ask(&object.path).await?,
            (Asked::TooLongAgo, true) => self.confirmed(&object, tick, begun),
            _ => Arc::clone(&object),
        };
        Ok(now.meta.is_same(&object.meta).then_some(Got::Parts(now, read.parts)))
    }

    /// A GET has confirmed the version of an object. The result may have later attributes.
    fn confirmed(&self, object: &Arc<Object>, tick: u64, begun: Instant) -> Arc<Object> {
        self.known().learn(object, tick, begun);
        let now = self.known().find(&object.path).map(|(now, _)| now);
        now.filter(|now| now.meta.is_same(&object.meta)).unwrap_or_else(|| Arc::clone(object))
    }
}

/// The first GET of an object is in flight. Its drop wakes the waiting calls.
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

/// An error if a walk over all granules of an object would take days: the length is what its origin says.
fn check_length(cache: &Inner, object: &Object) -> Result<()> {
    let size = object.meta.size;
    if size.div_ceil(cache.granule_bytes) <= GRANULES_MOST {
        return Ok(());
    }
    let why = format!("{:?} has {size} bytes, says its origin; no object store has one of that length", object.path);
    Err(Fault::other(why))
}

/// Whether an origin has refused a range. No kind of error says so, hence its text decides: clients of HTTP have the
/// status in it, and other stores name the range. A wrong guess costs a head.
fn may_be_of_range(fault: &Fault) -> bool {
    if fault.kind != Kind::Other {
        return false;
    }
    let text = fault.source.to_string().to_ascii_lowercase();
    text.contains("416") || text.contains("range")
}

/// The same for heads: status 405 or 501.
fn may_be_of_head(fault: &Fault) -> bool {
    let text = fault.source.to_string();
    fault.kind == Kind::Other && (text.contains("405") || text.contains("501"))
}

fn new_learned(cache: &Cache, name: &str) -> Arc<Learned> {
    // A process without the cache fails at its first call.
    cache.here().map_or_else(|_| Arc::default(), |inner| inner.new_learned(name))
}

fn object_hash(origin: &str, path: &str) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(origin.as_bytes()), path.as_bytes())
}
