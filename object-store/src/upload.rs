//! [`Upload`]: an object that comes in parts. It is a draft of the array, which gets its name when all parts are there.
//! The parts have the order of their calls ([`Upload::complete_all`]), or that of a list at the end
//! ([`Upload::complete_parts`]). Non-goals: the traits.
//!
//! Rules:
//! 1. A part has its place before its write begins, and no other part gets that place. So parts are written at the same
//!    time.
//! 2. A part begins only while the upload is open. No part begins while the upload is completed, and none after a
//!    completion with an unknown outcome, so none writes into the published object.
//! 3. An upload is published only if no part is being written. The future of a part may be dropped before its write has
//!    ended or begun, and then the part does not count.
//! 4. A thread that may wait completes the upload. So the completion goes on if its future is dropped, and a second
//!    call gets its result.
//! 5. The last holder of a draft drops it on a thread that may wait, because the drop removes its parts.

use std::collections::HashMap;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use blocking::Task;
use bytes::Bytes;
use iomill::{Draft, Error, FileOptions};

use crate::common::{Fault, Result};
use crate::objects::{Objects, meta_of};

/// The bytes that a copy of parts moves at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// A draft that is dropped on a thread that may wait (rule 5).
#[derive(Debug)]
struct Place(Option<Draft>);

impl Deref for Place {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        self.0.as_ref().expect("only the drop takes the draft")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(draft) = self.0.take() {
            blocking::unblock(move || drop(draft)).detach();
        }
    }
}

/// How the object is made.
#[derive(Clone, Debug)]
struct Spec {
    objects: Arc<Objects>,
    /// The name of the future object.
    name: String,
    options: FileOptions,
    attributes: Vec<(String, String)>,
}

impl Spec {
    /// Makes a draft. The first one of a process waits for an fsync.
    fn place(&self) -> Result<Place> {
        let place = Place(Some(self.objects.array().draft(&self.options)?));
        for (key, value) in &self.attributes {
            place.set_attribute(key, Some(value))?;
        }
        Ok(place)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Upload {
    spec: Spec,
    id: String,
    state: Mutex<State>,
    /// Held while the upload is completed.
    ending: Arc<async_lock::Mutex<()>>,
}

#[derive(Debug)]
enum State {
    Open(Open),
    /// It was published with this etag.
    Ended(String),
    /// It may have been published: the array does not know.
    Uncertain,
    Aborted,
}

#[derive(Debug)]
struct Open {
    place: Arc<Place>,
    is_completing: bool,
    /// The offset of the next part.
    end: u64,
    begun: usize,
    in_flight: usize,
    /// The places of the written parts, by their ids: start and length.
    written: HashMap<String, Piece>,
}

/// Start and length.
type Piece = (u64, u64);

impl Upload {
    pub async fn new(
        objects: &Arc<Objects>,
        name: String,
        options: &FileOptions,
        attributes: Vec<(String, String)>,
    ) -> Result<Upload> {
        let spec = Spec { objects: Arc::clone(objects), name, options: options.clone(), attributes };
        blocking::unblock(move || {
            let place = Arc::new(spec.place()?);
            let id = place.version().to_string();
            let (end, begun, in_flight, written) = (0, 0, 0, HashMap::new());
            let state = State::Open(Open { place, is_completing: false, end, begun, in_flight, written });
            Ok(Upload { spec, id, state: Mutex::new(state), ending: Arc::default() })
        })
        .await
    }

    /// No other upload of the array has the same.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs with the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the next part its place. Its bytes are written by [`Part::write`].
    pub fn begin(self: &Arc<Self>, bytes: Bytes) -> Result<Part> {
        let mut state = self.state();
        let open = state.open(self.name())?;
        if open.is_completing {
            return Err(is_completing(self.name()));
        }
        let at = open.end;
        open.end = after(at, &bytes)?;
        open.begun += 1;
        open.in_flight += 1;
        // With the upload's id in it, the id of a part is valid in this upload alone.
        let id = format!("{}-{}", self.id, open.begun);
        Ok(Part { upload: Arc::clone(self), place: Arc::clone(&open.place), id, at, bytes })
    }

    /// Publishes the parts in the order in which they began, and returns the etag. After an error it may be called
    /// again.
    pub async fn complete_all(self: &Arc<Self>) -> Result<String> {
        let all = |open: &Open, name: &str| match open.begun - open.written.len() {
            0 => Ok(None),
            missing => Err(Fault::other(format!(
                "{missing} of the {} parts of {name:?} were not written: wait for the future of each `put_part`, and \
                 abort the upload if one of them fails",
                open.begun
            ))),
        };
        self.complete(all, |_| ()).await
    }

    /// Publishes these parts, in this order, and returns the etag. `ended` is called after that, also if the future is
    /// dropped. After an error it may be called again.
    pub async fn complete_parts(
        self: &Arc<Self>,
        ids: &[&str],
        ended: impl FnOnce(&str) + Send + 'static,
    ) -> Result<String> {
        self.complete(|open, name| open.pieces(ids, name), ended).await
    }

    /// `choose` returns the pieces of an open upload to copy, or `None` if the draft as it is becomes the object.
    async fn complete(
        self: &Arc<Self>,
        choose: impl FnOnce(&Open, &str) -> Result<Option<Vec<Piece>>>,
        ended: impl FnOnce(&str) + Send + 'static,
    ) -> Result<String> {
        // A call that finds another one under way waits for its result.
        let ending = self.ending.lock_arc().await;
        let (completing, place, pieces) = {
            let mut state = self.state();
            if let State::Ended(e_tag) = &*state {
                return Ok(e_tag.clone());
            }
            let open = state.open(self.name())?;
            let pieces = choose(open, self.name())?;
            open.is_completing = true;
            (Completing { upload: Arc::clone(self), _ending: ending }, Arc::clone(&open.place), pieces)
        };
        let job = move || {
            let e_tag = completing.publish(place, pieces)?;
            ended(&e_tag);
            Ok(e_tag)
        };
        Job(Some(blocking::unblock(job))).await
    }

    /// Frees the space when the last write in flight has ended.
    pub fn abort(&self) -> Result<()> {
        let mut state = self.state();
        if state.open(self.name())?.is_completing {
            return Err(is_completing(self.name()));
        }
        *state = State::Aborted;
        Ok(())
    }
}

impl State {
    fn open(&mut self, name: &str) -> Result<&mut Open> {
        let how = match self {
            State::Open(open) => return Ok(open),
            State::Ended(_) => "completed",
            State::Uncertain => {
                let why = "may have been completed: an error hides the outcome; look for the object";
                return Err(Fault::other(format!(
                    "the upload of {name:?} {why}, and begin another one if it is missing"
                )));
            }
            State::Aborted => "aborted",
        };
        Err(Fault::other(format!("the upload of {name:?} has been {how}; begin another one")))
    }
}

impl Open {
    /// The pieces with these ids. `None` if they are the draft as it is.
    fn pieces(&self, ids: &[&str], name: &str) -> Result<Option<Vec<Piece>>> {
        if self.in_flight > 0 {
            let why = format!(
                "{} parts of {name:?} are being written: wait for the future of each `put_part`, or drop it",
                self.in_flight
            );
            return Err(Fault::other(why));
        }
        let piece = |id: &&str| {
            let unknown = || {
                Fault::other(format!(
                    "part {id:?} of {name:?} was not written in this upload; give the ids that `put_part` returned"
                ))
            };
            self.written.get(*id).copied().ok_or_else(unknown)
        };
        let pieces = ids.iter().map(piece).collect::<Result<Vec<_>>>()?;
        let mut at = 0;
        let is_in_order = pieces.iter().all(|(start, len)| *start == std::mem::replace(&mut at, start + len));
        Ok((!is_in_order || at != self.end).then_some(pieces))
    }
}

/// An upload that is being completed. It is open again when this is dropped, unless it was published.
struct Completing {
    upload: Arc<Upload>,
    /// Dropped after the upload is open again.
    _ending: async_lock::MutexGuardArc<()>,
}

impl Completing {
    /// Waits for drives.
    fn publish(&self, mut place: Arc<Place>, pieces: Option<Vec<Piece>>) -> Result<String> {
        let spec = &self.upload.spec;
        if let Some(pieces) = pieces {
            let copy = spec.place()?;
            copy_pieces(&place, &copy, &pieces)?;
            place = Arc::new(copy);
        }
        let published = spec.objects.publish(&place, &spec.name).inspect_err(|error| {
            // The object may be there, and then no part may change it.
            if matches!(error, Error::OutcomeUnknown { .. }) {
                *self.upload.state() = State::Uncertain;
            }
        });
        let e_tag = meta_of(&published?).e_tag;
        *self.upload.state() = State::Ended(e_tag.clone());
        Ok(e_tag)
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        if let State::Open(open) = &mut *self.upload.state() {
            open.is_completing = false;
        }
    }
}

/// A job for a thread that may wait. It goes on if this future is dropped, also if it has not begun.
struct Job<T>(Option<Task<T>>);

impl<T> Future for Job<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let task = self.0.as_mut().expect("only the drop takes the task");
        Pin::new(task).poll(context)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// A part with a place. It is in flight until it is dropped.
#[derive(Debug)]
pub struct Part {
    upload: Arc<Upload>,
    place: Arc<Place>,
    id: String,
    at: u64,
    bytes: Bytes,
}

impl Part {
    /// Writes the part, and returns its id. The id names this content, so a part that is put again has another id.
    pub async fn write(self) -> Result<String> {
        let (place, bytes, at) = (Arc::clone(&self.place), self.bytes.clone(), self.at);
        if !bytes.is_empty() {
            let permit = self.upload.spec.objects.write_permit().await;
            // A thread that may wait copies the bytes: a part is long, and the first one makes the files on the drives.
            let write = move || {
                let written = place.file().write_at(&bytes, at);
                drop(permit);
                written
            };
            blocking::unblock(write).await?;
        }
        if let State::Open(open) = &mut *self.upload.state() {
            open.written.insert(self.id.clone(), (at, self.bytes.len() as u64));
        }
        Ok(self.id.clone())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let State::Open(open) = &mut *self.upload.state() {
            open.in_flight -= 1;
        }
    }
}

fn is_completing(name: &str) -> Fault {
    Fault::other(format!(
        "the upload of {name:?} is being completed; call `complete` again, which waits for its end, or begin another \
         upload"
    ))
}

fn after(at: u64, bytes: &Bytes) -> Result<u64> {
    let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= iomill::MAX_FILE_BYTES);
    end.ok_or_else(|| {
        let most = iomill::MAX_FILE_BYTES;
        Fault::other(format!("a part of {} bytes at {at}: an object has at most {most} bytes", bytes.len()))
    })
}

/// Writes pieces of one draft one after the other into another.
fn copy_pieces(source: &Draft, copy: &Draft, pieces: &[Piece]) -> iomill::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES as usize];
    let mut to = 0;
    for (start, len) in pieces {
        let (mut from, end) = (*start, start + len);
        while from < end {
            let bytes = &mut buffer[..(end - from).min(PIECE_BYTES) as usize];
            // No byte of a part that was written is past the end of the draft.
            source.file().read_exact_at(bytes, from).map_err(|e| iomill::Error::io("read", source.file().name(), e))?;
            copy.file().write_at(bytes, to)?;
            (from, to) = (from + bytes.len() as u64, to + bytes.len() as u64);
        }
    }
    Ok(())
}
