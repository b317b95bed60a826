//! Futures, callbacks and blocking calls at the same time, on ranges of one file that do not overlap.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use iomill::{Answer, Array, Error, File, Request, Transfer};

use super::harness::{Memory, assert_same, block_on, bytes};
use super::model::{apart, put};

/// As many ranges as [`apart`] gives, or more.
const RANGES_MAX: usize = 16;

/// The result that a callback got.
type Outcome = Arc<Mutex<Option<iomill::Result<Vec<Vec<u8>>>>>>;

enum Pending {
    Read { future: Answer<Vec<u8>>, wanted: Vec<u8> },
    Write { future: Transfer<Vec<u8>>, wanted: Vec<u8> },
    Sync(Answer<()>),
    Batch { outcome: Outcome, wanted: Vec<Vec<u8>> },
}

/// Starts one call for each of some ranges. Asynchronous calls go on while blocking ones run, and some futures are
/// dropped.
pub fn mixed(rng: &mut Rng, array: &Array, file: &File, model: &mut Vec<u8>) {
    mixed_with(rng, array, file, model, |_, _| {});
}

/// The same, with `meanwhile` called now and then. Its flag says whether all awaited calls have ended.
pub fn mixed_with(
    rng: &mut Rng,
    array: &Array,
    file: &File,
    model: &mut Vec<u8>,
    mut meanwhile: impl FnMut(&mut Rng, bool),
) {
    let old_len = model.len();
    let end = if rng.bool() { old_len } else { old_len + 60_000 };
    let mut pending = Vec::new();
    for (at, len) in apart(rng, end) {
        // A range that grows the file is not read meanwhile.
        let write = at + len > old_len || rng.bool();
        match rng.u8(0..6) {
            0 => block(rng, file, model, at, len, write),
            1 => pending.push(batch(rng, file, model, at, len, write)),
            2 => pending.push(Pending::Sync(file.sync_async())),
            3 if write => drop(begin_write(rng, file, model, at, len)),
            3 => drop(file.read_async(at as u64, len)),
            _ if write => pending.push(begin_write(rng, file, model, at, len)),
            _ => {
                let future = file.read_async(at as u64, len);
                pending.push(Pending::Read { future, wanted: model[at..at + len].to_vec() });
            }
        }
        (0..rng.u8(0..4)).for_each(|_| array.step());
        meanwhile(rng, false);
        if rng.bool() && !pending.is_empty() {
            let index = rng.usize(0..pending.len());
            poll_once(&mut pending, index);
        }
    }
    rng.shuffle(&mut pending);
    pending.into_iter().for_each(|pending| finish(array, pending));
    meanwhile(rng, true);
    // A dropped write goes on. It may wait for a thread of a pool, and one step begins it. A change of the length waits
    // for begun calls.
    (0..RANGES_MAX).for_each(|_| array.step());
    file.set_len(model.len() as u64).unwrap();
    assert_eq!(file.len(), model.len() as u64);
}

fn begin_write(rng: &mut Rng, file: &File, model: &mut Vec<u8>, at: usize, len: usize) -> Pending {
    let new = bytes(rng, len);
    put(model, at, &new);
    Pending::Write { future: file.write_at_async(new.clone(), at as u64), wanted: new }
}

fn block(rng: &mut Rng, file: &File, model: &mut Vec<u8>, at: usize, len: usize, write: bool) {
    if write {
        let new = bytes(rng, len);
        file.write_at(Memory::holding(rng, &new).get(), at as u64).unwrap();
        put(model, at, &new);
    } else {
        let mut memory = Memory::new(rng, len);
        assert_eq!(file.read_at(memory.get_mut(), at as u64).unwrap(), len);
        assert_same(memory.get(), &model[at..at + len], || format!("blocking read at {at}"));
    }
}

/// Submits a range as several tasks. The callback must not block, and may submit.
fn batch(rng: &mut Rng, file: &File, model: &mut Vec<u8>, at: usize, len: usize, write: bool) -> Pending {
    let step = rng.usize(1..20_000);
    let (mut tasks, mut wanted) = (Vec::new(), Vec::new());
    for from in (at..at + len).step_by(step) {
        let len = step.min(at + len - from);
        let offset = from as u64;
        if write {
            let new = bytes(rng, len);
            put(model, from, &new);
            tasks.push(Request::Write { offset, bytes: new.clone() });
            wanted.push(new);
        } else {
            tasks.push(Request::Read { offset, len });
            wanted.push(model[from..from + len].to_vec());
        }
    }
    let outcome = Outcome::default();
    let (there, inside) = (Arc::clone(&outcome), file.clone());
    let submitted = file.submit(tasks, move |result| {
        assert!(matches!(inside.read_at(&mut [0], 0), Err(Error::BlockingCall { .. })));
        assert!(matches!(inside.sync(), Err(Error::BlockingCall { .. })));
        let again = inside.submit(Vec::new(), move |nothing| {
            assert!(nothing.unwrap().is_empty());
            *there.lock().unwrap() = Some(result);
        });
        again.unwrap();
    });
    submitted.unwrap();
    Pending::Batch { outcome, wanted }
}

/// Polls one call without waiting. Removes it when it has ended.
fn poll_once(pending: &mut Vec<Pending>, index: usize) {
    let mut context = Context::from_waker(Waker::noop());
    let mut pin = |future: &mut dyn BytesFuture| future.poll(&mut context);
    let ended = match &mut pending[index] {
        Pending::Read { future, wanted } => pin(future).map(|got| check(got, wanted)),
        Pending::Write { future, wanted } => pin(future).map(|got| check(got, wanted)),
        Pending::Sync(future) => std::pin::Pin::new(future).poll(&mut context).map(|synced| synced.unwrap()),
        Pending::Batch { .. } => Poll::Pending,
    };
    if ended.is_ready() {
        pending.swap_remove(index);
    }
}

/// A future of any kind that returns bytes.
trait BytesFuture {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<iomill::Result<Vec<u8>>>;
}

impl<E: Into<Error>, F: Future<Output = Result<Vec<u8>, E>> + Unpin> BytesFuture for F {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<iomill::Result<Vec<u8>>> {
        std::pin::Pin::new(self).poll(context).map(|ended| ended.map_err(Into::into))
    }
}

fn check(got: iomill::Result<Vec<u8>>, wanted: &[u8]) {
    assert_same(&got.unwrap(), wanted, || "a future".to_owned());
}

fn finish(array: &Array, pending: Pending) {
    match pending {
        Pending::Read { future, wanted } => check(block_on(array, future), &wanted),
        Pending::Write { future, wanted } => check(block_on(array, future).map_err(Error::from), &wanted),
        Pending::Sync(future) => block_on(array, future).unwrap(),
        Pending::Batch { outcome, wanted } => {
            let mut steps = 0;
            while outcome.lock().unwrap().is_none() {
                array.step();
                steps += 1;
                assert!(steps < 1_000_000, "a callback was not called");
            }
            let got = outcome.lock().unwrap().take().unwrap().unwrap();
            assert_eq!(got, wanted);
        }
    }
}
