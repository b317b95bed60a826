//! Uploads in parts: [`Ordered`] for parts in the order in which they are given, [`Numbered`] for parts that are named by numbers and come in any
//! order. Each is a draft of the array, which gets its name when all parts are there. Non-goals: the traits.
//!
//! Rules:
//! 1. A part has its place before its write begins, and no other part gets that place. So parts are written at the same time.
//! 2. An upload is published only if each of its parts was written. The future of a part may be dropped before its write has ended or begun,
//!    and then the part does not count.
//! 3. What holds a draft last drops it on a thread that may wait, because that removes its parts.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use iomill::{Array, Draft, FileStat, Layout};

use crate::fault::{Fault, Result};
use crate::objects::Objects;

/// A copy of parts moves so many bytes at a time.
const PIECE_BYTES: u64 = 4 << 20;

/// A draft that is dropped where that may wait (rule 3).
#[derive(Debug)]
struct Place(Option<Draft>);

impl Place {
    /// Makes a draft. The first one of a process waits for a flush.
    async fn new(array: &Array, layout: &Layout, attributes: &[(String, String)]) -> Result<Arc<Place>> {
        let (array, layout) = (array.clone(), layout.clone());
        let place = blocking::unblock(move || array.draft(layout).map(|draft| Place(Some(draft)))).await?;
        for (key, value) in attributes {
            place.set_attribute(key, Some(value))?;
        }
        Ok(Arc::new(place))
    }

    /// Writes a part. A thread that may wait copies it: a part is long, and the first one makes the files on the drives.
    async fn write(self: Arc<Self>, bytes: Bytes, at: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        Ok(blocking::unblock(move || self.file().write_at(&bytes, at)).await?)
    }
}

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

/// See the module.
#[derive(Debug)]
pub struct Ordered {
    /// `None` after the end.
    place: Option<Arc<Place>>,
    /// Where the next part goes.
    end: u64,
    begun: usize,
    written: Arc<AtomicUsize>,
}

impl Ordered {
    pub async fn new(objects: &Objects, layout: &Layout, attributes: &[(String, String)]) -> Result<Ordered> {
        let place = Some(Place::new(objects.array(), layout, attributes).await?);
        Ok(Ordered { place, end: 0, begun: 0, written: Arc::default() })
    }

    /// The write of the next part.
    pub fn put_part(&mut self, bytes: Bytes) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        let begun = self.place.clone().ok_or_else(ended).and_then(|place| {
            let at = self.end;
            self.end = after(at, &bytes)?;
            self.begun += 1;
            Ok((place, at, Arc::clone(&self.written)))
        });
        async move {
            let (place, at, written) = begun?;
            place.write(bytes, at).await?;
            // Release: pairs with the Acquire in `complete`.
            written.fetch_add(1, Ordering::Release);
            Ok(())
        }
    }

    /// Publishes the parts as an object. After an error it may be called again.
    pub async fn complete(&mut self, objects: &Objects, name: &str) -> Result<FileStat> {
        let place = self.place.as_ref().ok_or_else(ended)?;
        // Acquire: pairs with the Release in `put_part`.
        let (begun, written) = (self.begun, self.written.load(Ordering::Acquire));
        if written < begun {
            let why = format!(
                "{} of the {begun} parts of {name:?} were not written: wait for the future of each `put_part`, \
                 and abort the upload if one of them fails",
                begun - written
            );
            return Err(Fault::other(why));
        }
        let stat = objects.publish(place, name).await?;
        self.place = None;
        Ok(stat)
    }

    /// Gives the space back when the last write in flight has ended.
    pub fn abort(&mut self) -> Result<()> {
        self.place.take().map(drop).ok_or_else(ended)
    }
}

fn ended() -> Fault {
    Fault::other("the upload has been completed or aborted; begin another one")
}

fn after(at: u64, bytes: &Bytes) -> Result<u64> {
    let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= iomill::MAX_FILE_BYTES);
    end.ok_or_else(|| {
        let most = iomill::MAX_FILE_BYTES;
        Fault::other(format!("a part of {} bytes at {at}: an object has at most {most} bytes", bytes.len()))
    })
}

/// See the module. Parts are written one after the other in the order in which they come. If that is not the order of their numbers, the end of
/// the upload copies them: only then are their places known.
#[derive(Debug)]
pub struct Numbered {
    /// The object that it will be.
    name: String,
    layout: Layout,
    attributes: Vec<(String, String)>,
    place: Arc<Place>,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// Where the next part goes.
    end: u64,
    begun: u64,
    /// The places of those that were written, by their ids: start and length.
    written: HashMap<String, (u64, u64)>,
}

impl Numbered {
    pub async fn new(
        objects: &Objects,
        name: String,
        layout: &Layout,
        attributes: Vec<(String, String)>,
    ) -> Result<Numbered> {
        let place = Place::new(objects.array(), layout, &attributes).await?;
        Ok(Numbered { name, layout: layout.clone(), attributes, place, parts: Mutex::default() })
    }

    /// No other upload of the array has the same.
    pub fn id(&self) -> String {
        self.place.version().to_string()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // No code that can panic runs with the parts in two states.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a part. Its id names this content, so a part that is put again has another id.
    pub async fn put_part(&self, bytes: Bytes) -> Result<String> {
        let len = bytes.len() as u64;
        let (at, id) = {
            let mut parts = self.parts();
            let at = parts.end;
            parts.end = after(at, &bytes)?;
            parts.begun += 1;
            (at, parts.begun.to_string())
        };
        Arc::clone(&self.place).write(bytes, at).await?;
        self.parts().written.insert(id.clone(), (at, len));
        Ok(id)
    }

    /// Publishes these parts, in this order. After an error it may be called again.
    pub async fn complete(&self, objects: &Objects, ids: &[&str]) -> Result<FileStat> {
        let (pieces, end) = {
            let parts = self.parts();
            let piece = |id: &&str| {
                let unknown = || Fault::other(format!("part {id:?} of {:?} was not written in this upload", self.name));
                parts.written.get(*id).copied().ok_or_else(unknown)
            };
            (ids.iter().map(piece).collect::<Result<Vec<_>>>()?, parts.end)
        };
        let mut at = 0;
        let is_in_order = pieces.iter().all(|(start, len)| *start == std::mem::replace(&mut at, start + len));
        if is_in_order && at == end {
            return objects.publish(&self.place, &self.name).await;
        }
        let ordered = Place::new(objects.array(), &self.layout, &self.attributes).await?;
        let (source, copy) = (Arc::clone(&self.place), Arc::clone(&ordered));
        blocking::unblock(move || copy_pieces(&source, &copy, &pieces)).await?;
        objects.publish(&ordered, &self.name).await
    }
}

/// Writes pieces of one draft, each a start and a length, one after the other into another.
fn copy_pieces(source: &Draft, copy: &Draft, pieces: &[(u64, u64)]) -> iomill::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES as usize];
    let mut to = 0;
    for (start, len) in pieces {
        let (mut from, end) = (*start, start + len);
        while from < end {
            let bytes = &mut buffer[..(end - from).min(PIECE_BYTES) as usize];
            // No byte of a part that was written is behind the end of the draft.
            source.file().read_exact_at(bytes, from).map_err(|e| iomill::Error::io("read", source.file().name(), e))?;
            copy.file().write_at(bytes, to)?;
            (from, to) = (from + bytes.len() as u64, to + bytes.len() as u64);
        }
    }
    Ok(())
}
