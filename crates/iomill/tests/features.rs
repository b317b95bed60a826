//! The features `futures-io` and `tracing`.

use std::fmt::{self, Write};
use std::future::poll_fn;
use std::io::SeekFrom;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};
use iomill::{Array, ArrayOptions, AsyncCursor, EngineKind, File, FileOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::executor::block_on;

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

/// Keeps the events of iomill, a line each.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

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

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn what_happens_to_an_array_is_traced() {
    // A subscriber of one thread may miss what another thread traces first.
    alone!();
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = || ArrayOptions::new().cache_bytes(1 << 20).engine(EngineKind::Posix);
        options().create([root.path()]).unwrap().close().unwrap();
        // Where the engine cannot poll, a notice says so. The engine is named, so that the lines are the same where io_uring is forbidden.
        let array = options().with_tuning(|tuning| tuning.poll(true)).open(root.path()).unwrap();
        assert_eq!(array.notices().len(), 2, "{:?}", array.notices());
        array.close().unwrap();
    });
    let lines = lines.0.lock().unwrap();
    let has = |level: Level, text: &str| lines.iter().any(|line| line.0 == level && line.1.contains(text));
    assert!(has(Level::INFO, "array opened drives=1 files=0"), "{lines:?}");
    assert!(has(Level::INFO, "array closed drives=1"), "{lines:?}");
    assert!(has(Level::WARN, "posix cannot poll"), "{lines:?}");
    assert_eq!(lines.len(), 7, "{lines:?}");
}
