//! [`World`]: the processes, drives and origin of a run, and the effects of its steps. Non-goals: the right results of
//! calls (`checks`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_executor::block_on;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, StreamExt, stream};
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt, PutPayload};
use tempfile::TempDir;

use super::damage;
use super::program::{HANDS, How, KEYS, Program, Read, Settings, Step, key};
use super::sea::{Content, Fate, Sea, Shore};
use crate::cache::Cache;
use crate::faults::{Death, Unsynced};
use crate::notices::locked;
use crate::options::{Cost, Options, Revalidate};
use crate::v0_14::{Cached, Content as Opened};

/// See the module.
pub struct World {
    pub settings: Settings,
    pub sea: Arc<Sea>,
    pub hands: Vec<Option<Hand>>,
    pub dir: TempDir,
    /// The pages that a crash may bring back.
    pub unsynced: Unsynced,
    /// Copies of data files.
    pub saved: HashMap<usize, Vec<u8>>,
    /// A drive that is unmounted.
    pub away: Option<usize>,
    /// The label of a drive before its damage.
    pub label: Option<(usize, Vec<u8>)>,
    /// The pinned granules of each content of an object, by its number. They are certain if `knows_pins`.
    pub pinned: BTreeMap<(usize, u64), BTreeSet<u64>>,
    pub knows_pins: bool,
    /// The processes may have two indexes, because the head of one was damaged between their openings.
    pub may_be_split: bool,
    pub allocates_nothing: bool,
    pub rng: fastrand::Rng,
}

/// A process.
pub struct Hand {
    pub cached: Cached,
    /// The moment of each object before which this process sees no content: it has opened the cache, has changed the
    /// object, or has seen the content of that moment.
    pub floors: [usize; KEYS],
    /// Objects with a change of this process that has an unknown outcome.
    pub doubted: [bool; KEYS],
    pub opened: Option<(usize, Content, Opened)>,
    pub cache: Cache,
}

impl World {
    pub fn new(program: &Program) -> World {
        let settings = program.settings.clone();
        // Memory, if there is any: the pages of a run need no drive.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let sea = Arc::new(Sea::new(program.seed, settings.has_etags));
        let (unsynced, saved, pinned) = Default::default();
        let mut world = World {
            settings,
            sea,
            hands: (0..HANDS).map(|_| None).collect(),
            dir,
            unsynced,
            saved,
            away: None,
            label: None,
            pinned,
            knows_pins: true,
            may_be_split: false,
            allocates_nothing: false,
            rng: fastrand::Rng::with_seed(!program.seed),
        };
        world.drives().iter().for_each(|drive| fs::create_dir(drive).unwrap());
        fs::create_dir(world.index_dir()).unwrap();
        world.open_all();
        world
    }

    pub fn drives(&self) -> Vec<PathBuf> {
        (0..self.settings.drives).map(|n| self.dir.path().join(format!("ssd{n}"))).collect()
    }

    pub fn index_dir(&self) -> PathBuf {
        self.dir.path().join("index")
    }

    fn options(&self) -> Options {
        const PATIENCE: Duration = Duration::from_secs(600);
        let settings = &self.settings;
        let cost = Cost::default().latency(Duration::from_micros(50)).in_flight(4);
        let cost = if settings.hedges { cost.hedge_after(Duration::ZERO) } else { cost };
        Options::new()
            .bytes(settings.drives as u64 * settings.region_bytes * settings.regions)
            .region_bytes(settings.region_bytes)
            .granule_bytes(settings.granule_bytes)
            .memory_bytes(1 << 20)
            .index_dir(self.index_dir())
            .revalidate("never/", Revalidate::Never)
            .by_time(true)
            .cost(cost)
            .fill_bytes(settings.fill_bytes)
            .admit(settings.admit)
            .wait_for_others(Duration::from_millis(2))
            .on_root(true)
            .read_within(PATIENCE)
            .write_within(PATIENCE)
    }

    /// Whether all drives are as the cache has left them, apart from their data.
    fn is_in_order(&self) -> bool {
        self.away.is_none() && self.label.is_none()
    }

    pub fn open(&mut self, hand: usize) {
        let cache = Cache::open(self.drives(), self.options()).unwrap();
        let notices = cache.notices();
        assert_eq!(notices.len(), usize::from(!self.is_in_order()), "{notices:?}");
        cache.wait_until_loaded();
        for drive in &cache.here().unwrap().drives {
            *locked(&drive.faults.unsynced) = Some(Arc::clone(&self.unsynced));
            drive.faults.allocates_nothing.store(self.allocates_nothing, std::sync::atomic::Ordering::Relaxed);
        }
        let cached = Cached::new(&cache, Arc::new(Shore(Arc::clone(&self.sea))), "sea://");
        let floors = std::array::from_fn(|n| self.sea.now(&key(n)));
        self.hands[hand] = Some(Hand { cached, floors, doubted: [false; KEYS], opened: None, cache });
    }

    pub fn open_all(&mut self) {
        (0..HANDS).for_each(|hand| self.open(hand));
        self.may_be_split = false;
    }

    pub fn close_all(&mut self) {
        self.hands.iter_mut().for_each(|hand| drop(hand.take()));
    }

    pub fn hand(&self, hand: usize) -> &Hand {
        self.hands[hand].as_ref().unwrap()
    }

    fn hand_mut(&mut self, hand: usize) -> &mut Hand {
        self.hands[hand].as_mut().unwrap()
    }

    fn flush(&self) {
        self.hands.iter().flatten().for_each(|hand| hand.cache.flush());
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Read(read) => self.reads(std::slice::from_ref(read)),
            Step::Together(reads) => self.reads(reads),
            Step::Dropped { read, polls } => self.dropped(read, *polls),
            Step::Change { hand, key, how, len, fate, beside } => {
                self.change(*hand, *key, *how, *len, *fate, beside.as_ref())
            }
            Step::DeleteMany { hand, fates } => self.delete_many(*hand, fates),
            Step::Behind { key: number, len } => {
                let content = len.map(|len| self.sea.content(len));
                self.sea.set(&key(*number), content);
            }
            Step::Tide => drop(self.sea.tide()),
            Step::Trouble(percent) => self.sea.set_trouble(*percent),
            Step::Open { hand, key } => self.open_content(*hand, *key),
            Step::ReadOpened { hand, seed } => self.read_opened(*hand, *seed),
            Step::Prefetch { hand, key } => self.prefetch(*hand, *key),
            Step::Pin { hand, key, seed } => self.pin(*hand, *key, *seed),
            Step::Unpin { hand, key, seed } => self.unpin(*hand, *key, *seed),
            Step::UnpinAll { hand } => {
                self.hand(*hand).cache.unpin_all().unwrap();
                self.pinned.clear();
                self.knows_pins = self.is_whole();
            }
            Step::Evict { hand } => {
                self.hand(*hand).cache.evict().unwrap();
                self.pinned.clear();
            }
            Step::Reopen { hand } => {
                self.hands[*hand] = None;
                self.open(*hand);
            }
            Step::Kill { hand, steps, torn, read } => {
                self.kill(&[*hand], *steps, *torn, read);
                self.hands[*hand] = None;
                self.open(*hand);
            }
            Step::Crash { steps, torn, lost, read } => {
                self.kill(&[0, 1], *steps, *torn, read);
                self.close_all();
                damage::lose_pages(self, *lost);
                self.open_all();
            }
            other => damage::step(self, other),
        }
        if self.rng.u32(..8) > 0 {
            self.flush();
            self.check_pins();
        }
    }

    /// Whether all processes use all drives, and no write is to fail.
    fn is_whole(&self) -> bool {
        let is_well = |hand: &Hand| {
            let drives = &hand.cache.here().unwrap().drives;
            let fails = |drive: &Arc<crate::drive::Drive>| locked(&drive.faults.failing).is_some_and(|(_, n)| n > 0);
            !drives.iter().any(|drive| drive.is_dead() || fails(drive))
        };
        self.is_in_order() && !self.may_be_split && self.hands.iter().flatten().all(is_well)
    }

    /// The marks are those of the granules that were pinned, and of no other one.
    fn check_pins(&self) {
        if !self.knows_pins {
            return;
        }
        let hand = self.hands.iter().flatten().next().unwrap();
        let drives = &hand.cache.here().unwrap().drives;
        let marked: u64 = drives.iter().map(|drive| drive.index.count_pinned()).sum();
        let pinned: usize = self.pinned.values().map(BTreeSet::len).sum();
        assert_eq!(marked, pinned as u64, "marks, and pinned granules {:?}", self.pinned);
    }

    /// The outcome of a change is known to the process that made it, or not.
    fn changed(&mut self, hand: usize, number: usize, fate: Fate) {
        let now = self.sea.now(&key(number));
        let hand = self.hand_mut(hand);
        match fate {
            Fate::Done => hand.floors[number] = now,
            Fate::Refused => {}
            _ => hand.doubted[number] = true,
        }
    }

    fn change(&mut self, hand: usize, number: usize, how: How, len: u64, fate: Fate, beside: Option<&Read>) {
        // A rename to itself changes nothing, and so meets none of the faults of a change.
        if matches!(how, How::Rename { from } if from == number) {
            let (cached, path) = (self.hand(hand).cached.clone(), Path::from(key(number)));
            let is_there = self.sea.since(&key(number), self.sea.now(&key(number)))[0].is_some();
            let renamed = block_on(cached.rename(&path, &path));
            assert_eq!(renamed.is_ok(), is_there, "{renamed:?}");
            return;
        }
        let content = (!matches!(how, How::Delete)).then(|| self.sea.content(len));
        self.sea.plan(content, fate);
        let (cached, path) = (self.hand(hand).cached.clone(), Path::from(key(number)));
        let source = match how {
            How::Copy { from } | How::Rename { from } => Some(from),
            _ => None,
        };
        let from = source.map(|from| Path::from(key(from)));
        let is_there = source.is_none_or(|from| self.sea.since(&key(from), self.sea.now(&key(from)))[0].is_some());
        let call = async move {
            match how {
                How::Put => cached.put(&path, PutPayload::new()).await.map(drop),
                How::Upload => {
                    let mut upload = cached.put_multipart(&path).await?;
                    upload.complete().await.map(drop)
                }
                How::Delete => cached.delete(&path).await,
                How::Copy { .. } => cached.copy(&from.unwrap(), &path).await,
                How::Rename { .. } => cached.rename(&from.unwrap(), &path).await,
            }
        };
        // Reads beside the change begin before it and end after it.
        let begun = beside.map(|read| self.begin(read));
        let reads: Vec<BoxFuture<'_, _>> = begun.iter().map(|begun| begun.call.clone().boxed()).collect();
        let mut call = Box::pin(call);
        let (ended, got) = block_on(async {
            let reads = join_all(reads);
            match fate {
                // No answer comes: the program gives up.
                Fate::Silent if is_there => {
                    for _ in 0..8 {
                        assert!(futures_util::poll!(&mut call).is_pending());
                    }
                    drop(call);
                    (None, reads.await)
                }
                _ => {
                    let (ended, got) = futures_util::future::join(call, reads).await;
                    (Some(ended), got)
                }
            }
        });
        self.sea.forget_plans();
        if let Some(ended) = &ended {
            assert_eq!(ended.is_ok(), is_there && fate == Fate::Done, "{ended:?}");
        }
        if is_there {
            self.changed(hand, number, fate);
            if let How::Rename { from } = how {
                self.changed(hand, from, fate);
            }
        }
        begun.into_iter().zip(got).for_each(|(begun, got)| self.check(begun, got));
    }

    fn delete_many(&mut self, hand: usize, fates: &[(usize, Fate)]) {
        // A stream without an end is dropped.
        let fates: Vec<(usize, Fate)> = fates.to_vec();
        let is_silent = fates.iter().any(|(_, fate)| *fate == Fate::Silent);
        fates.iter().for_each(|(_, fate)| self.sea.plan(None, *fate));
        let paths: Vec<_> = fates.iter().map(|(number, _)| Ok(Path::from(key(*number)))).collect();
        let mut deleted = self.hand(hand).cached.delete_stream(stream::iter(paths).boxed());
        let mut answers = Vec::new();
        block_on(async {
            for _ in 0..40 {
                match futures_util::poll!(deleted.next()) {
                    std::task::Poll::Ready(Some(answer)) => answers.push(answer.is_ok()),
                    std::task::Poll::Ready(None) => break,
                    std::task::Poll::Pending => {}
                }
            }
        });
        drop(deleted);
        self.sea.forget_plans();
        assert!(is_silent || answers.len() == fates.len(), "{answers:?}");
        for (place, (number, fate)) in fates.into_iter().enumerate() {
            // Without its answer the process knows nothing.
            let is_known = answers.get(place).is_some();
            self.changed(hand, number, if is_known { fate } else { Fate::Silent });
        }
    }

    /// A process is killed in the midst of its appends, or after them.
    fn kill(&mut self, hands: &[usize], steps: u32, torn: usize, read: &Read) {
        self.knows_pins = false;
        let death = Death::after(steps);
        for hand in hands {
            for drive in &self.hand(*hand).cache.here().unwrap().drives {
                *locked(&drive.faults.torn) = torn;
                *locked(&drive.faults.death) = Some(Arc::clone(&death));
                *locked(&drive.index.death) = Some(Arc::clone(&death));
            }
        }
        self.reads(std::slice::from_ref(read));
        self.flush();
        death.now();
    }
}
