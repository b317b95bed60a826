//! [`Scripted`]: a store in memory that counts its requests, and answers as a test chooses.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use super::object_store::memory::InMemory;
use super::object_store::path::Path;
use super::object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
    UploadPart,
};
use super::result;

/// A GET or a head.
#[derive(Clone, Debug)]
pub struct Ask {
    pub head: bool,
    pub is_conditional: bool,
    pub has_range: bool,
    /// The number of earlier requests of its kind.
    pub nth: u64,
}

/// The treatment of a request.
pub enum Act {
    Pass,
    Fail(Error),
    /// It fails when the sender sends.
    FailAfter(oneshot::Receiver<()>, Error),
    /// The body ends this number of bytes too early.
    Short(usize),
    /// This number of bytes follows the body.
    Long(usize),
    /// The answer is about bytes that begin elsewhere.
    Elsewhere(u64),
    /// The answer has this etag.
    ETag(Option<String>),
    /// The answer is that of now, and is late.
    After(Duration),
    /// The body never arrives.
    Stall,
    /// The body breaks with this error, after a third.
    Break(Error),
    /// The whole object, for any requested range.
    Whole,
    /// The answer is about an object of this length.
    Size(u64),
    /// The answer is about an object of this length, which ends before the bytes of the answer.
    Ended(u64),
    /// The answer has this time.
    Modified(DateTime<Utc>),
    /// Another put comes first.
    Replaced(Vec<u8>),
    /// The condition is left out.
    Unconditional,
    /// Objects have no etags, and no condition is ever met.
    Refuse,
    /// The condition must be without quotes, as Ceph's gateway has it, and etags have quotes.
    Bare,
}

type Script = Box<dyn FnMut(&Ask) -> Act + Send>;
/// The error of the delete of an object, if it fails.
type Failing = Box<dyn Fn(&Path) -> Option<Error> + Send>;

/// See the module.
pub struct Scripted {
    inner: Arc<InMemory>,
    script: Mutex<Script>,
    pub gets: AtomicU64,
    pub heads: AtomicU64,
    pub bytes: AtomicU64,
    asked: Mutex<Vec<Range<u64>>>,
    /// The next change waits for it.
    gate: Gate,
    fails_changes: AtomicBool,
    failing_deletes: Arc<Mutex<Option<Failing>>>,
}

type Gate = Arc<Mutex<Option<oneshot::Receiver<()>>>>;

async fn pass(gate: &Gate) {
    let gate = gate.lock().unwrap().take();
    if let Some(gate) = gate {
        gate.await.unwrap();
    }
}

/// An upload that is completed behind the gate.
#[derive(Debug)]
struct Slow(Box<dyn MultipartUpload>, Gate);

#[async_trait]
impl MultipartUpload for Slow {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.0.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        pass(&self.1).await;
        self.0.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.abort().await
    }
}

impl Scripted {
    pub fn new(inner: Arc<InMemory>) -> Scripted {
        let (gets, heads, bytes, gate, fails_changes, failing_deletes) = Default::default();
        let script: Mutex<Script> = Mutex::new(Box::new(|_| Act::Pass));
        Scripted { inner, script, gets, heads, bytes, asked: Mutex::default(), gate, fails_changes, failing_deletes }
    }

    pub fn script(&self, script: impl FnMut(&Ask) -> Act + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The next change waits until the sender sends.
    pub fn close_gate(&self) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        *self.gate.lock().unwrap() = Some(gate);
        open
    }

    /// Puts end with an error that leaves the outcome open.
    pub fn fail_changes(&self) {
        self.fails_changes.store(true, Relaxed);
    }

    /// Deletes of some objects end with an error, and do not happen.
    pub fn fail_deletes(&self, failing: impl Fn(&Path) -> Option<Error> + Send + 'static) {
        *self.failing_deletes.lock().unwrap() = Some(Box::new(failing));
    }

    /// GETs and heads so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.gets.load(Relaxed), self.heads.load(Relaxed))
    }

    /// The ranges of the GETs since the last call.
    pub fn asked(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn act(&self, options: &GetOptions) -> Act {
        let counter = if options.head { &self.heads } else { &self.gets };
        let nth = counter.fetch_add(1, Relaxed);
        if let (false, Some(GetRange::Bounded(range))) = (options.head, &options.range) {
            self.asked.lock().unwrap().push(range.clone());
        }
        let has_range = options.range.is_some();
        let ask = Ask { head: options.head, is_conditional: options.if_match.is_some(), has_range, nth };
        (self.script.lock().unwrap())(&ask)
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

/// The etag of a store in memory, in quotes.
fn quoted(mut got: GetResult) -> GetResult {
    got.meta.e_tag = got.meta.e_tag.map(|e_tag| format!("\"{e_tag}\""));
    got
}

async fn body(got: GetResult) -> Result<(GetResult, Vec<u8>)> {
    let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
    let bytes = got.bytes().await?;
    let empty = GetResultPayload::Stream(stream::empty().boxed());
    Ok((result::get(empty, meta, range, attributes), bytes.to_vec()))
}

fn with_body(mut got: GetResult, bytes: Vec<u8>) -> GetResult {
    // Several chunks, of which one is empty.
    let (one, two) = bytes.split_at(bytes.len() / 3);
    let chunks = [one, &[], two].map(|chunk| Ok(Bytes::copy_from_slice(chunk)));
    got.payload = GetResultPayload::Stream(stream::iter(chunks).boxed());
    got
}

/// An answer about an object of another length. `ends`: its range ends there, too.
fn of_size(mut got: GetResult, size: u64, ends: bool) -> GetResult {
    let end = if ends { size } else { got.range.end };
    (got.meta.size, got.range) = (size, got.range.start..end);
    got
}

/// The reason for which an act refuses the conditions of a GET.
fn refusal(act: &Act, options: &GetOptions) -> Option<&'static str> {
    let has_quotes = options.if_match.as_ref().is_some_and(|e_tag| e_tag.starts_with('"'));
    match act {
        Act::Refuse if options.if_match.is_some() || options.if_unmodified_since.is_some() => Some("refused"),
        Act::Bare if has_quotes => Some("quotes"),
        _ => None,
    }
}

/// The error of an act that is one.
async fn failed(act: Act) -> Result<Act> {
    match act {
        Act::Fail(error) => Err(error),
        Act::FailAfter(sent, error) => {
            sent.await.unwrap();
            Err(error)
        }
        act => Ok(act),
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn get_opts(&self, path: &Path, mut options: GetOptions) -> Result<GetResult> {
        let act = self.act(&options);
        match &act {
            Act::Replaced(bytes) => drop(self.inner.put(path, bytes.clone().into()).await?),
            Act::Unconditional | Act::ETag(_) => options.if_match = None,
            Act::Modified(_) => (options.if_match, options.if_unmodified_since) = (None, None),
            Act::Whole => options.range = None,
            _ => {}
        }
        if let Some(why) = refusal(&act, &options) {
            return Err(Error::Precondition { path: path.to_string(), source: why.into() });
        }
        let act = failed(act).await?;
        let mut got = self.inner.get_opts(path, options).await?;
        self.bytes.fetch_add(got.range.end - got.range.start, Relaxed);
        Ok(match act {
            Act::After(delay) => {
                let (got, bytes) = body(got).await?;
                tokio::time::sleep(delay).await;
                with_body(got, bytes)
            }
            Act::Short(n) => {
                let (got, mut bytes) = body(got).await?;
                bytes.truncate(bytes.len().saturating_sub(n));
                with_body(got, bytes)
            }
            Act::Long(n) => {
                let (got, mut bytes) = body(got).await?;
                bytes.extend(vec![7; n]);
                with_body(got, bytes)
            }
            Act::Elsewhere(by) => {
                got.range = got.range.start + by..got.range.end + by;
                got
            }
            Act::ETag(e_tag) => {
                got.meta.e_tag = e_tag;
                got
            }
            Act::Refuse => {
                got.meta.e_tag = None;
                got
            }
            Act::Stall => {
                got.payload = GetResultPayload::Stream(stream::pending().boxed());
                got
            }
            Act::Break(error) => {
                let (mut got, bytes) = body(got).await?;
                let begun = Bytes::copy_from_slice(&bytes[..bytes.len() / 3]);
                got.payload = GetResultPayload::Stream(stream::iter([Ok(begun), Err(error)]).boxed());
                got
            }
            Act::Size(size) => of_size(got, size, false),
            Act::Ended(size) => of_size(got, size, true),
            Act::Modified(time) => {
                (got.meta.e_tag, got.meta.last_modified) = (None, time);
                got
            }
            Act::Bare => quoted(got),
            _ => {
                let (got, bytes) = body(got).await?;
                with_body(got, bytes)
            }
        })
    }

    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if self.fails_changes.load(Relaxed) {
            return Err(Error::Generic { store: "S3", source: "the connection was lost".into() });
        }
        pass(&self.gate).await;
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Slow(self.inner.put_multipart_opts(path, options).await?, Arc::clone(&self.gate))))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (gate, failing) = (Arc::clone(&self.gate), Arc::clone(&self.failing_deletes));
        let behind = locations.then(move |location| {
            let (gate, failing) = (Arc::clone(&gate), Arc::clone(&failing));
            async move {
                pass(&gate).await;
                let location = location?;
                let failed = failing.lock().unwrap().as_ref().and_then(|failing| failing(&location));
                failed.map_or(Ok(location), Err)
            }
        });
        self.inner.delete_stream(behind.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        pass(&self.gate).await;
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        pass(&self.gate).await;
        self.inner.rename_opts(from, to, options).await
    }
}
