//! The features `futures-io` and `tracing`.

use std::fmt::{self, Write};
use std::future::poll_fn;
use std::io::SeekFrom;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};
use iomill::{Array, ArrayOptions, AsyncCursor, EngineKind, File, FileOptions, PutOptions, When};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

use crate::executor::block_on;
use crate::on_event::OnEvent;

fn array() -> (tempfile::TempDir, Array, File) {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = ArrayOptions::new().cache_bytes(1 << 20).create([root.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    (root, array, file)
}

async fn write_all(cursor: &mut AsyncCursor, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let written = poll_fn(|context| Pin::new(&mut *cursor).poll_write(context, bytes)).await.unwrap();
        bytes = &bytes[written..];
    }
    poll_fn(|context| Pin::new(&mut *cursor).poll_flush(context)).await.unwrap();
}

#[test]
fn a_cursor_has_the_traits_of_futures() {
    let (_root, array, file) = array();
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
    let mut cursor = file.async_cursor();
    block_on(async {
        write_all(&mut cursor, &bytes).await;
        file.advise(.., iomill::Advice::DontNeed).unwrap();
        let at = poll_fn(|context| Pin::new(&mut cursor).poll_seek(context, SeekFrom::Start(123))).await.unwrap();
        assert_eq!(at, 123);
        let (mut got, mut part) = (Vec::new(), vec![0; 70_000]);
        loop {
            let read = poll_fn(|context| Pin::new(&mut cursor).poll_read(context, &mut part)).await.unwrap();
            got.extend_from_slice(&part[..read]);
            if read == 0 {
                break;
            }
        }
        assert!(got == bytes[123..]);
        poll_fn(|context| Pin::new(&mut cursor).poll_close(context)).await.unwrap();
    });
    drop((file, cursor));
    array.close().unwrap();
}

/// Keeps the events of iomill, a line each, and its spans.
#[derive(Clone, Default)]
struct Lines {
    events: Arc<Mutex<Vec<(Level, String)>>>,
    /// One line per span, after its parent's line. A span's number is its index here plus one.
    spans: Arc<Mutex<Vec<String>>>,
    metadata: Arc<Mutex<Vec<&'static Metadata<'static>>>>,
    /// The numbers of the spans that a thread is in.
    inside: Arc<Mutex<Vec<(ThreadId, u64)>>>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "iomill"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let here = thread::current().id();
        let parent =
            self.inside.lock().unwrap().iter().rev().find(|entered| entered.0 == here).map(|entered| entered.1);
        let mut spans = self.spans.lock().unwrap();
        let parent = parent.map_or(String::new(), |parent| format!("{}> ", spans[parent as usize - 1]));
        let mut line = Line(format!("{parent}{} ", span.metadata().name()));
        span.record(&mut line);
        spans.push(line.0);
        self.metadata.lock().unwrap().push(span.metadata());
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.events.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn current_span(&self) -> Current {
        let here = thread::current().id();
        let inside = self.inside.lock().unwrap();
        let entered = inside.iter().rev().find(|entered| entered.0 == here);
        let metadata = self.metadata.lock().unwrap();
        entered.map_or_else(Current::none, |entered| {
            Current::new(Id::from_u64(entered.1), metadata[entered.1 as usize - 1])
        })
    }

    fn enter(&self, span: &Id) {
        self.inside.lock().unwrap().push((thread::current().id(), span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        let left = (thread::current().id(), span.into_u64());
        let mut inside = self.inside.lock().unwrap();
        let at = inside.iter().rposition(|entered| *entered == left).unwrap();
        inside.remove(at);
    }
}

#[test]
fn what_happens_to_an_array_is_traced() {
    // A subscriber of one thread may miss call sites that another thread reaches first.
    alone!();
    let lines = Lines::default();
    let notices = tracing::subscriber::with_default(lines.clone(), || {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = || ArrayOptions::new().cache_bytes(1 << 20).engine(EngineKind::Posix);
        let created = options().create([root.path()]).unwrap();
        let mut notices = created.notices();
        created.close().unwrap();
        // An engine that cannot poll is in the notices.
        let array = options().with_tuning(|tuning| tuning.poll(true)).open(root.path()).unwrap();
        notices.extend(array.notices());
        array.close().unwrap();
        notices
    });
    let lines = lines.events.lock().unwrap();
    let has = |level: Level, text: &str| lines.iter().any(|line| line.0 == level && line.1.contains(text));
    assert!(has(Level::INFO, "array opened drives=1 files=0"), "{lines:?}");
    assert!(has(Level::INFO, "array closed drives=1"), "{lines:?}");
    assert!(has(Level::WARN, "posix cannot poll"), "{lines:?}");
    assert!(notices.iter().all(|notice| lines.iter().any(|line| line.1.contains(&**notice))), "{notices:?} {lines:?}");
    assert_eq!(lines.len(), notices.len() + 4, "{notices:?} {lines:?}");
}

/// A subscriber that panics at each event.
///
/// Seen to fail the open.
#[test]
fn a_subscriber_that_panics_fails_no_call() {
    alone!();
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = || ArrayOptions::new().cache_bytes(1 << 20).engine(EngineKind::Posix);
    options().create([root.path()]).unwrap().close().unwrap();
    tracing::subscriber::with_default(OnEvent(|_: &Event<'_>| panic!("a test's own")), || {
        let array = options().with_tuning(|tuning| tuning.poll(true)).open(root.path()).unwrap();
        assert!(!array.notices().is_empty());
        array.close().unwrap();
    });
}

/// Each call that takes long has a span. The spans of a future have the span of its creation as their parent.
#[test]
fn calls_that_take_long_have_spans() {
    alone!();
    let lines = Lines::default();
    // For all threads, because the array's threads work for futures.
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = || ArrayOptions::new().cache_bytes(0).engine(EngineKind::Posix);
    options().create([root.path()]).unwrap().close().unwrap();
    let array = options().open(root.path()).unwrap();
    array.put("a", b"one", &PutOptions::new()).unwrap();
    let request = tracing::info_span!(target: "iomill", "request");
    block_on(request.in_scope(|| array.put_async("b", *b"two", &PutOptions::new()))).unwrap();
    block_on(request.in_scope(|| array.put_async("c", [3; 100_000], &PutOptions::new()))).unwrap();
    block_on(array.copy_async("b", "d", When::Absent)).unwrap();
    let draft = array.draft(&FileOptions::new()).unwrap();
    draft.publish("e", When::Always).unwrap();
    let file = array.open_file("a").unwrap();
    file.write_at(b"three", 0).unwrap();
    block_on(request.in_scope(|| file.sync_async())).unwrap();
    // Neither a hit nor a miss has one.
    file.read_at(&mut [0; 3], 0).unwrap();
    drop((file, draft));
    array.close().unwrap();
    Array::check([root.path()]).unwrap();
    Array::repair([root.path()]).unwrap();
    let mut spans = lines.spans.lock().unwrap().clone();
    spans.iter_mut().for_each(|span| *span = span.replace(&format!("{:?}", root.path()), "DRIVE"));
    for wanted in [
        "create drives=[DRIVE] ",
        "open drives=[DRIVE] ",
        "close drives=[DRIVE] ",
        "check drives=[DRIVE] ",
        "repair drives=[DRIVE] ",
        "put file=\"a\" ",
        "request > put file=\"b\" ",
        "request > put file=\"c\" ",
        "copy file=\"d\" ",
        "publish file=\"e\" ",
        "request > sync file=\"a\" ",
    ] {
        assert!(spans.iter().any(|span| span == wanted), "{wanted:?} is not in {spans:#?}");
    }
    assert!(!spans.iter().any(|span| span.contains("read")), "{spans:#?}");
    assert!(lines.inside.lock().unwrap().is_empty(), "{spans:#?}");
}
