//! Calls of a run, and their right results: the bytes of one content that the object had at a right time, or a typed
//! error that something explains.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use futures_executor::block_on;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all};
use object_store_0_14::path::Path;
use object_store_0_14::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore};

use super::program::{Form, Read, key};
use super::sea::{Content, bytes_of, wanted};
use super::world::World;
use crate::v0_14::Cached;

/// The result of a read.
#[derive(Clone, Debug)]
pub enum Got {
    Parts(Vec<Bytes>),
    Head(ObjectMeta),
}

/// An error of a store, which calls can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    Precondition,
    NotModified,
    Other,
}

pub type Outcome = Result<Got, (Kind, String)>;

/// A read that has begun, and what was true then.
pub struct Begun {
    pub read: Read,
    ranges: Vec<GetRange>,
    /// The moment of the origin.
    moment: usize,
    faults: u64,
    gets: u64,
    is_conditional: bool,
    pub call: Shared<BoxFuture<'static, Outcome>>,
}

fn failed(error: Error) -> (Kind, String) {
    let kind = match &error {
        Error::NotFound { .. } => Kind::NotFound,
        Error::Precondition { .. } => Kind::Precondition,
        Error::NotModified { .. } => Kind::NotModified,
        _ => Kind::Other,
    };
    (kind, error.to_string())
}

async fn called(cached: Cached, path: Path, form: Form, ranges: Vec<GetRange>, e_tag: Option<String>) -> Outcome {
    let one = |range: Option<GetRange>| GetOptions { range, ..Default::default() };
    let options = match form {
        Form::Ranges => {
            let bounded = |range: &GetRange| match range {
                GetRange::Bounded(range) => range.clone(),
                other => panic!("{other}"),
            };
            let ranges: Vec<Range<u64>> = ranges.iter().map(bounded).collect();
            return cached.get_ranges(&path, &ranges).await.map(Got::Parts).map_err(failed);
        }
        Form::Head => GetOptions { head: true, ..Default::default() },
        Form::Whole => one(None),
        Form::Conditional => GetOptions { if_match: e_tag, ..one(Some(ranges[0].clone())) },
        Form::Bounded | Form::Offset | Form::Suffix => one(Some(ranges[0].clone())),
    };
    let got = cached.get_opts(&path, options).await.map_err(failed)?;
    match form {
        Form::Head => Ok(Got::Head(got.meta)),
        _ => Ok(Got::Parts(vec![got.bytes().await.map_err(failed)?])),
    }
}

impl World {
    /// The content of an object now.
    fn there(&self, number: usize) -> Option<Content> {
        let name = key(number);
        *self.sea.since(&name, self.sea.now(&name)).last().unwrap()
    }

    /// Begins a read: its future, and what is true now.
    pub fn begin(&self, read: &Read) -> Begun {
        let mut rng = fastrand::Rng::with_seed(read.seed);
        let there = self.there(read.key);
        let len = there.map_or(50_000, |content| content.len);
        let mut range = || {
            let begin = rng.u64(..len);
            // Some end behind the object, and few begin there.
            let begin = if rng.u32(..40) == 0 { begin + len } else { begin };
            begin..begin + rng.u64(1..60_000)
        };
        let count = if matches!(read.form, Form::Ranges) { 1 + read.seed as usize % 12 } else { 1 };
        let bounded: Vec<Range<u64>> = (0..count).map(|_| range()).collect();
        let ranges: Vec<GetRange> = match read.form {
            Form::Offset => vec![GetRange::Offset(bounded[0].start)],
            Form::Suffix => vec![GetRange::Suffix(bounded[0].end - bounded[0].start)],
            _ => bounded.into_iter().map(GetRange::Bounded).collect(),
        };
        let has_condition = matches!(read.form, Form::Conditional) && self.settings.has_etags;
        let e_tag = there.filter(|_| has_condition).map(|content| format!("\"{}\"", content.number));
        let is_conditional = e_tag.is_some();
        let (cached, path) = (self.hand(read.hand).cached.clone(), Path::from(key(read.key)));
        let call = called(cached, path, read.form, ranges.clone(), e_tag).boxed().shared();
        let (moment, faults, gets) = (self.sea.now(&key(read.key)), self.sea.faults(), self.sea.gets());
        Begun { read: *read, ranges, moment, faults, gets, is_conditional, call }
    }

    pub fn reads(&mut self, reads: &[Read]) {
        let begun: Vec<Begun> = reads.iter().map(|read| self.begin(read)).collect();
        let got = block_on(join_all(begun.iter().map(|begun| begun.call.clone())));
        let is_alone = begun.len() == 1;
        for (begun, got) in begun.into_iter().zip(got) {
            if is_alone {
                self.check_gets(&begun, &got);
            }
            self.check(begun, got);
        }
    }

    /// A future that is dropped leaves nothing undone.
    pub fn dropped(&mut self, read: &Read, polls: u32) {
        let mut begun = self.begin(read);
        let got = block_on(async {
            for _ in 0..polls {
                if let std::task::Poll::Ready(got) = futures_util::poll!(&mut begun.call) {
                    return Some(got);
                }
            }
            None
        });
        if let Some(got) = got {
            self.check(begun, got);
        }
    }

    /// Bytes that are pinned need no GET.
    fn check_gets(&self, begun: &Begun, got: &Outcome) {
        let (Ok(Got::Parts(_)), Some(content)) = (got, self.there(begun.read.key)) else { return };
        let unchanged = self.sea.now(&key(begun.read.key)) == begun.moment && self.sea.faults() == begun.faults;
        let Some(pinned) = self.pinned.get(&(begun.read.key, content.number)) else { return };
        let granule_bytes = u64::from(self.settings.granule_bytes);
        let whole = GetRange::Bounded(0..content.len);
        let ranges = if matches!(begun.read.form, Form::Whole) { std::slice::from_ref(&whole) } else { &begun.ranges };
        let is_pinned = ranges.iter().all(|range| match range.as_range(content.len) {
            Ok(range) => (range.start / granule_bytes..range.end.div_ceil(granule_bytes)).all(|n| pinned.contains(&n)),
            Err(_) => false,
        });
        // A process that knows an older content, or a wrong version, asks for its missing granules first.
        let is_known = self.hand(begun.read.hand).floors[begun.read.key] == begun.moment;
        if self.knows_pins && unchanged && is_pinned && is_known && begun.faults == 0 {
            assert_eq!(self.sea.gets(), begun.gets, "pinned bytes were fetched: {:?}", begun.read);
        }
    }

    /// The right contents of a read that ends now, as moments.
    fn window(&self, begun: &Begun) -> Range<usize> {
        let (hand, number) = (self.hand(begun.read.hand), begun.read.key);
        let asks = number.is_multiple_of(2) || hand.doubted[number] || begun.is_conditional;
        let asks = asks || matches!(begun.read.form, Form::Head);
        let first = if asks { begun.moment } else { hand.floors[number].min(begun.moment) };
        first..self.sea.now(&key(number)) + 1
    }

    pub fn check(&mut self, begun: Begun, got: Outcome) {
        let name = key(begun.read.key);
        let window = self.window(&begun);
        let contents = self.sea.since(&name, window.start);
        let has_changed = self.sea.now(&name) > begun.moment;
        let is_hostile = self.sea.faults() > begun.faults;
        let read = begun.read;
        match &got {
            Ok(got) => {
                let is_right = |content: &Option<Content>| content.is_some_and(|content| is_of(&begun, got, content));
                let place = contents.iter().rposition(is_right);
                // A wrong etag, which is that of no content, is only in a head or in an answer.
                assert!(place.is_some(), "wrong bytes: {read:?} of {name}, contents {contents:?} from {window:?}");
                if let Some(hand) = &mut self.hands[read.hand] {
                    let seen = window.start + contents.iter().position(is_right).unwrap();
                    hand.floors[read.key] = hand.floors[read.key].max(seen);
                }
            }
            Err((Kind::NotFound, _)) if contents.contains(&None) || is_hostile => {}
            Err((Kind::Precondition | Kind::NotModified, _)) if has_changed || is_hostile => {}
            // A range past the end of a content.
            Err((Kind::Other, _)) if contents.iter().flatten().any(|content| is_behind(&begun, *content)) => {}
            Err(_) if is_hostile => {}
            Err((kind, why)) => {
                panic!("{kind:?}: {why}: {read:?} {:?} of {name}, contents {contents:?}", begun.ranges)
            }
        }
    }

    pub fn open_content(&mut self, hand: usize, number: usize) {
        let read = Read { hand, key: number, form: Form::Bounded, seed: 0 };
        self.hands[hand].as_mut().unwrap().opened = None;
        let begun = self.begin(&read);
        let (cached, path) = (self.hand(hand).cached.clone(), Path::from(key(number)));
        let opened = match block_on(cached.open(&path)) {
            Ok(opened) => opened,
            Err(error) => return self.check(begun, Err(failed(error))),
        };
        let content = self.content_of(number, &opened.meta());
        let window = self.window(&begun);
        let is_right = self.sea.since(&key(number), window.start).contains(&content);
        assert!(is_right || content.is_none() && self.sea.faults() > 0, "{content:?} of {window:?}");
        let opened = content.map(|content| (number, content, opened));
        self.hands[hand].as_mut().unwrap().opened = opened;
    }

    /// The content that metadata name. `None` if a wrong answer has told of it.
    fn content_of(&self, number: usize, meta: &ObjectMeta) -> Option<Content> {
        let named = match &meta.e_tag {
            Some(e_tag) => e_tag.trim_matches('"').parse().unwrap(),
            None => meta.last_modified.timestamp() as u64,
        };
        let all = self.sea.since(&key(number), 0);
        all.into_iter().flatten().find(|content| content.number == named && content.len == meta.size)
    }

    /// All reads of an open content are of that content.
    pub fn read_opened(&mut self, hand: usize, seed: u64) {
        let Some((number, content, opened)) = self.hand(hand).opened.clone() else { return };
        let mut rng = fastrand::Rng::with_seed(seed);
        let range = |rng: &mut fastrand::Rng| {
            let begin = rng.u64(..content.len);
            begin..(begin + rng.u64(1..60_000)).min(content.len)
        };
        let ranges: Vec<_> = (0..rng.usize(1..6)).map(|_| range(&mut rng)).collect();
        let faults = self.sea.faults();
        let got = block_on(opened.read(&ranges));
        let is_replaced = self.there(number) != Some(content);
        match got.map_err(failed) {
            Ok(parts) => {
                let right =
                    ranges.iter().zip(&parts).all(|(range, part)| *part == bytes_of(content.number, range.clone()));
                assert!(right, "wrong bytes of {content:?}, open");
            }
            Err((Kind::Precondition | Kind::NotFound, _)) if is_replaced => {}
            Err(_) if self.sea.faults() > faults => {}
            Err((kind, why)) => panic!("{kind:?}: {why}: {content:?}, open"),
        }
    }

    pub fn prefetch(&mut self, hand: usize, number: usize) {
        self.open_content(hand, number);
        let Some((_, content, opened)) = self.hand(hand).opened.clone() else { return };
        let faults = self.sea.faults();
        let got = block_on(opened.prefetch(0..u64::MAX));
        let is_replaced = self.there(number) != Some(content);
        assert!(got.is_ok() || is_replaced || self.sea.faults() > faults, "{got:?}");
    }

    /// A range of a content, and its granules.
    fn part(&self, content: Content, seed: u64) -> (Range<u64>, BTreeSet<u64>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let begin = rng.u64(..content.len);
        let range = begin..rng.u64(begin..content.len) + 1;
        let granule_bytes = u64::from(self.settings.granule_bytes);
        let granules = range.start / granule_bytes..range.end.div_ceil(granule_bytes);
        (range, granules.collect())
    }

    pub fn pin(&mut self, hand: usize, number: usize, seed: u64) {
        self.open_content(hand, number);
        let Some((_, content, opened)) = self.hand(hand).opened.clone() else { return };
        let (range, granules) = self.part(content, seed);
        let faults = self.sea.faults();
        match block_on(opened.pin(std::slice::from_ref(&range), |_| {})) {
            Ok(_) => self.pinned.entry((number, content.number)).or_default().extend(granules),
            // Too much is refused before anything is pinned.
            Err(error) if error.to_string().contains("at most") => {}
            Err(error) => {
                let is_replaced = self.there(number) != Some(content);
                let is_explained = is_replaced || self.sea.faults() > faults || !self.knows_pins;
                assert!(is_explained, "{error}");
                self.knows_pins = false;
            }
        }
    }

    pub fn unpin(&mut self, hand: usize, number: usize, seed: u64) {
        self.open_content(hand, number);
        let Some((_, content, opened)) = self.hand(hand).opened.clone() else { return };
        let (range, granules) = self.part(content, seed);
        block_on(opened.unpin(std::slice::from_ref(&range))).unwrap();
        if let Some(pinned) = self.pinned.get_mut(&(number, content.number)) {
            pinned.retain(|granule| !granules.contains(granule));
        }
    }
}

/// Whether a result is that of a content.
fn is_of(begun: &Begun, got: &Got, content: Content) -> bool {
    match got {
        Got::Head(meta) => meta.size == content.len && meta.last_modified.timestamp() as u64 == content.number,
        Got::Parts(parts) => match begun.read.form {
            Form::Whole => parts[0] == wanted(content, None).unwrap(),
            _ => begun
                .ranges
                .iter()
                .zip(parts)
                .all(|(range, part)| wanted(content, Some(range)).is_some_and(|w| *part == w)),
        },
    }
}

fn is_behind(begun: &Begun, content: Content) -> bool {
    !matches!(begun.read.form, Form::Whole | Form::Head)
        && begun.ranges.iter().any(|range| wanted(content, Some(range)).is_none())
}
