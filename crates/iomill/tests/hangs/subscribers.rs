//! Subscribers of events of `tracing` that use the array of the event.

use std::fmt;

use iomill::ErrorKind;
use tracing::Event;
use tracing::field::{Field, Visit};

use super::*;
use crate::on_event::OnEvent;

/// The most events in which the subscriber uses the file.
const USES: usize = 20;

/// What the subscriber has done in an event: the kinds of the errors of blocking calls, and futures that it has begun.
type Used = (Vec<Option<ErrorKind>>, Vec<Pin<Box<dyn Future<Output = ()> + Send>>>);

/// The file, the receiver of what was done, and the number of events in which the file is to be used. `None` at the end.
type Use = Option<(File, Sender<Used>, usize)>;

struct IsWriteBack(bool);

impl Visit for IsWriteBack {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}").contains("written back");
    }
}

fn use_file(file: &File) -> Used {
    let kind = |result: Result<()>| result.err().map(|error| error.kind());
    let blocked = vec![
        kind(file.write_at(&[1; 10], 61 * PAGE)),
        kind(file.read_at(&mut [0; 10], 60 * PAGE).map(drop)),
        kind(file.sync()),
        kind(iomill::block_on(async {})),
    ];
    let (read, write) = (file.read_async(59 * PAGE, 10), file.write_at_async(vec![1; 10], 58 * PAGE));
    let end = file.write_at_async(vec![1; 10], 70 * PAGE);
    let begun: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = vec![
        Box::pin(async { drop(read.await) }),
        Box::pin(async { drop(write.await) }),
        Box::pin(async { drop(end.await) }),
    ];
    (blocked, begun)
}

/// Uses the file if it is an event of a failed write-back.
fn use_in(event: &Event<'_>, uses: &Mutex<Use>) {
    let mut is_write_back = IsWriteBack(false);
    event.record(&mut is_write_back);
    let mut used = uses.lock().unwrap();
    let Some((file, tell, left)) = &mut *used else { return };
    if is_write_back.0 && *left > 0 {
        *left -= 1;
        let (file, tell) = (file.clone(), tell.clone());
        drop(used);
        // The test may have ended.
        let _ = tell.send(use_file(&file));
    }
}

/// Runs `fail` on a file while its write-back fails, with a subscriber that uses the file in each event. What would
/// wait for the caller of the subscriber is refused, and what begins there ends.
fn used_while(cache_pages: u64, fail: impl FnOnce(&File) + Send + 'static) {
    let rig = rig(1, false, cache_pages);
    let (file, (tell, told)) = (rig.file("x", 64), channel());
    let uses = Arc::new(Mutex::new(Some((file.clone(), tell, USES))));
    let theirs = Arc::clone(&uses);
    tracing::subscriber::set_global_default(OnEvent(move |event: &Event<'_>| use_in(event, &theirs))).unwrap();
    rig.hooks.fails.store(true, Ordering::SeqCst);
    let failing = file.clone();
    ends("the call with the write-back", move || fail(&failing));
    rig.hooks.fails.store(false, Ordering::SeqCst);
    *uses.lock().unwrap() = None;
    let used: Vec<Used> = told.iter().collect();
    assert!(!used.is_empty(), "no event was told");
    for (kinds, begun) in used {
        assert!(kinds.iter().all(|kind| *kind == Some(ErrorKind::BlockingCall)), "{kinds:?}");
        ends("what an event began", move || begun.into_iter().for_each(block_on));
    }
    ends("closing", move || {
        // The failure is reported once.
        let _late = file.sync();
        file.close().and_then(|()| rig.array.close()).unwrap();
    });
}

/// Seen to wait for itself when the calls were not refused.
#[test]
fn a_subscriber_waits_for_no_sync_that_tells_it() {
    alone!();
    used_while(64, |file| {
        file.write_at(&[1; PAGE as usize], 5 * PAGE).unwrap();
        assert_eq!(file.sync().unwrap_err().errno(), Some(libc::EIO));
    });
}

/// The operation of a future needs frames, and writes their pages back, in a context that the subscriber's futures
/// would use, too.
///
/// Seen to wait for itself when the futures began in that context.
#[test]
fn a_subscriber_waits_for_no_operation_that_tells_it() {
    alone!();
    used_while(12, |file| {
        let writes: Vec<_> = (0..40).map(|page| file.write_at_async(vec![1; PAGE as usize], page * PAGE)).collect();
        writes.into_iter().for_each(|write| drop(block_on(write)));
    });
}
