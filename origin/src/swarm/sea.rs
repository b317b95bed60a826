//! [`Sea`]: a hostile origin. It computes its objects, and knows all contents that each object had. Its answers may be
//! wrong in each way that a cache can notice.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::future::poll_fn;
use futures_util::stream::{self, BoxStream};
use object_store_0_14::path::Path;
use object_store_0_14::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};

use crate::common::v0_14 as results;
use crate::notices::locked;

/// One content of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// No other content has it.
    pub number: u64,
    pub len: u64,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// It does not happen, and the origin says so.
    Refused,
    /// The answer is lost. The change has happened, never happens, or happens later.
    LostDone,
    LostNever,
    LostLater,
    /// No answer comes, and the change happens later.
    Silent,
}

/// See the module.
pub struct Sea(Mutex<State>);

struct State {
    /// The contents of each object so far, and the moments without one. The last one is that of now.
    objects: BTreeMap<String, Vec<Option<Content>>>,
    rng: fastrand::Rng,
    /// Of 100 requests, how many get a wrong answer or an error.
    trouble: u32,
    /// Wrong answers and errors so far.
    faults: u64,
    has_etags: bool,
    numbers: u64,
    /// The content and the outcome of the next changes.
    planned: VecDeque<(Option<Content>, Fate)>,
    later: Vec<(String, Option<Content>)>,
    gets: u64,
}

/// The bytes of a content: each word by its number and place.
pub fn bytes_of(number: u64, range: Range<u64>) -> Vec<u8> {
    let word = |place: u64| crate::identity::mixed(number << 32 ^ place.wrapping_mul(0x9e37_79b9)).to_le_bytes();
    let words: Vec<u8> = (range.start / 8..range.end.div_ceil(8)).flat_map(word).collect();
    let begin = (range.start % 8) as usize;
    words[begin..begin + (range.end - range.start) as usize].to_vec()
}

impl Sea {
    pub fn new(seed: u64, has_etags: bool) -> Sea {
        let (objects, planned, later) = Default::default();
        let rng = fastrand::Rng::with_seed(seed);
        Sea(Mutex::new(State { objects, rng, trouble: 0, faults: 0, has_etags, numbers: 0, planned, later, gets: 0 }))
    }

    pub fn set_trouble(&self, percent: u32) {
        locked(&self.0).trouble = percent;
    }

    pub fn faults(&self) -> u64 {
        locked(&self.0).faults
    }

    pub fn gets(&self) -> u64 {
        locked(&self.0).gets
    }

    /// A content that no object has had.
    pub fn content(&self, len: u64) -> Content {
        let mut state = locked(&self.0);
        state.numbers += 1;
        Content { number: state.numbers, len }
    }

    /// The next change puts this content, or deletes, with this outcome.
    pub fn plan(&self, content: Option<Content>, fate: Fate) {
        locked(&self.0).planned.push_back((content, fate));
    }

    pub fn forget_plans(&self) {
        locked(&self.0).planned.clear();
    }

    /// A change by another program.
    pub fn set(&self, key: &str, content: Option<Content>) {
        locked(&self.0).set(key, content);
    }

    /// The number of contents before that of now.
    pub fn now(&self, key: &str) -> usize {
        locked(&self.0).objects.get(key).map_or(0, |history| history.len() - 1)
    }

    /// The contents from a moment on.
    pub fn since(&self, key: &str, moment: usize) -> Vec<Option<Content>> {
        match locked(&self.0).objects.get(key) {
            Some(history) => history[moment..].to_vec(),
            None => vec![None],
        }
    }

    /// The late changes happen now. Returns the objects.
    pub fn tide(&self) -> Vec<String> {
        let mut state = locked(&self.0);
        let later = std::mem::take(&mut state.later);
        later.iter().for_each(|(key, content)| state.set(key, *content));
        later.into_iter().map(|(key, _)| key).collect()
    }

    /// A change through the store. `made`: the content that the call has, if it puts one.
    async fn change(&self, key: &str, made: Option<Option<Content>>) -> Result<()> {
        let (planned, fate) = locked(&self.0).planned.pop_front().expect("each change is planned");
        let content = made.unwrap_or(planned);
        self.turns().await;
        let lost = || Error::Generic { store: "sea", source: "the connection was lost".into() };
        match fate {
            Fate::Done => self.set(key, content),
            Fate::Refused => {
                return Err(Error::PermissionDenied { path: key.to_owned(), source: "403".into() });
            }
            Fate::LostDone => self.set(key, content),
            Fate::LostLater | Fate::Silent => locked(&self.0).later.push((key.to_owned(), content)),
            Fate::LostNever => {}
        }
        match fate {
            Fate::Done => Ok(()),
            Fate::Silent => futures_util::future::pending().await,
            _ => Err(lost()),
        }
    }

    /// Some polls that are not ready.
    async fn turns(&self) {
        let mut left = locked(&self.0).rng.u32(..4);
        poll_fn(move |context| {
            if left == 0 {
                return std::task::Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }
}

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Denied,
    Busy,
    Missing,
    Changed,
    Short,
    Long,
    Elsewhere,
    ETag,
    Break,
    Refused,
    Whole,
}

const WRONG: [Wrong; 11] = [
    Wrong::Denied,
    Wrong::Busy,
    Wrong::Missing,
    Wrong::Changed,
    Wrong::Short,
    Wrong::Long,
    Wrong::Elsewhere,
    Wrong::ETag,
    Wrong::Break,
    Wrong::Refused,
    Wrong::Whole,
];

impl State {
    fn set(&mut self, key: &str, content: Option<Content>) {
        self.objects.entry(key.to_owned()).or_insert_with(|| vec![None]).push(content);
    }

    fn wrong(&mut self, is_head: bool) -> Option<Wrong> {
        if self.rng.u32(..100) >= self.trouble {
            return None;
        }
        self.faults += 1;
        // A head has no body.
        let most = if is_head { 4 } else { WRONG.len() };
        Some(WRONG[self.rng.usize(..most)])
    }

    fn meta(&self, path: &Path, content: Content) -> ObjectMeta {
        let e_tag = self.has_etags.then(|| format!("\"{}\"", content.number));
        let last_modified: DateTime<Utc> =
            DateTime::from_timestamp(content.number as i64, 0).expect("a number is a time");
        ObjectMeta { location: path.clone(), last_modified, size: content.len, e_tag, version: None }
    }

    fn get(&mut self, path: &Path, options: &GetOptions, wrong: Option<Wrong>) -> Result<GetResult> {
        let key = path.as_ref();
        let error = |kind: fn(String) -> Error| Err(kind(key.to_owned()));
        match wrong {
            Some(Wrong::Denied) => return error(|path| Error::PermissionDenied { path, source: "403".into() }),
            Some(Wrong::Busy) => return error(|_| Error::Generic { store: "sea", source: "503".into() }),
            Some(Wrong::Missing) => return error(|path| Error::NotFound { path, source: "404".into() }),
            Some(Wrong::Refused) => return error(|path| Error::Precondition { path, source: "412".into() }),
            Some(Wrong::Changed) => {
                let was = self.objects.get(key).and_then(|history| *history.last()?);
                self.numbers += 1;
                let content = was.map(|was| Content { number: self.numbers, len: (was.len * 7 / 5) % 500_000 + 1 });
                self.set(key, content);
            }
            _ => {}
        }
        let content = self.objects.get(key).and_then(|history| *history.last()?);
        let missing = || Error::NotFound { path: key.to_owned(), source: "404".into() };
        let content = content.ok_or_else(missing)?;
        let mut meta = self.meta(path, content);
        options.check_preconditions(&meta)?;
        if options.head {
            return Ok(results::get(body(Vec::new(), None), meta, 0..content.len, Default::default()));
        }
        self.gets += 1;
        let wanted = options.range.as_ref().filter(|_| wrong != Some(Wrong::Whole));
        let range = wanted.map_or(Ok(0..content.len), |range| range.as_range(content.len));
        let mut range = range.map_err(|why| Error::Generic { store: "sea", source: why.into() })?;
        let mut bytes = bytes_of(content.number, range.clone());
        let mut breaks = None;
        match wrong {
            Some(Wrong::Short) => bytes.truncate(bytes.len() - 1),
            Some(Wrong::Long) => bytes.push(7),
            Some(Wrong::Elsewhere) => range = range.start + 1..range.end + 1,
            Some(Wrong::ETag) => {
                // That of no content.
                self.numbers += 1;
                let other = self.meta(path, Content { number: self.numbers, ..content });
                (meta.e_tag, meta.last_modified) = (other.e_tag, other.last_modified);
            }
            Some(Wrong::Break) => {
                bytes.truncate(bytes.len() / 2);
                breaks = Some(Error::Generic { store: "sea", source: "the connection was lost".into() });
            }
            _ => {}
        }
        Ok(results::get(body(bytes, breaks), meta, range, Default::default()))
    }
}

/// A body of a few chunks, and an error behind it.
fn body(bytes: Vec<u8>, error: Option<Error>) -> GetResultPayload {
    let mut chunks: Vec<Result<Bytes>> =
        bytes.chunks((bytes.len() / 3).max(1)).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    chunks.extend(error.map(Err));
    GetResultPayload::Stream(stream::iter(chunks).boxed())
}

impl fmt::Debug for Sea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sea")
    }
}

impl fmt::Display for Sea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sea")
    }
}

/// A store of the origin, as a client of a program has one.
#[derive(Clone, Debug)]
pub struct Shore(pub std::sync::Arc<Sea>);

impl fmt::Display for Shore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shore")
    }
}

#[derive(Debug)]
struct Upload(Shore, Path);

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, _: PutPayload) -> UploadPart {
        Box::pin(async { Ok(()) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.0.0.change(self.1.as_ref(), None).await?;
        Ok(results::put(String::new()))
    }

    async fn abort(&mut self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ObjectStore for Shore {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.turns().await;
        let got = {
            let mut state = locked(&self.0.0);
            let wrong = state.wrong(options.head);
            state.get(path, &options, wrong)
        };
        self.0.turns().await;
        got
    }

    async fn put_opts(&self, path: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.0.change(path.as_ref(), None).await?;
        Ok(results::put(String::new()))
    }

    async fn put_multipart_opts(&self, path: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload(self.clone(), path.clone())))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let shore = self.clone();
        let delete = move |location: Result<Path>| {
            let shore = shore.clone();
            async move {
                let location = location?;
                shore.0.change(location.as_ref(), None).await?;
                Ok(location)
            }
        };
        locations.map(delete).buffered(3).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Ok(results::list(Vec::new(), Vec::new()))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        let content = self.there(from)?;
        self.0.change(to.as_ref(), Some(Some(content))).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, _: RenameOptions) -> Result<()> {
        let content = self.there(from)?;
        self.0.change(to.as_ref(), Some(Some(content))).await?;
        self.0.set(from.as_ref(), None);
        Ok(())
    }
}

impl Shore {
    fn there(&self, from: &Path) -> Result<Content> {
        let found = self.0.since(from.as_ref(), self.0.now(from.as_ref()));
        let missing = || Error::NotFound { path: from.to_string(), source: "404".into() };
        found.last().copied().flatten().ok_or_else(missing).inspect_err(|_| {
            // The plan of this change is not used.
            locked(&self.0.0).planned.pop_front();
        })
    }
}

/// The bytes of a range of a content, or none if it begins past its end.
pub fn wanted(content: Content, range: Option<&GetRange>) -> Option<Vec<u8>> {
    let range = range.map_or(Ok(0..content.len), |range| range.as_range(content.len)).ok()?;
    Some(bytes_of(content.number, range))
}
