//! [`Entries`]: the objects of a source one after the other, in the order of the bytes of their names. Non-goals: how a
//! version of `object_store` shows them.

use std::collections::VecDeque;

use futures_util::stream::{self, BoxStream, StreamExt};
use iomill::{Listed, Listing};

use crate::common::{Fault, Result};
use crate::known::{Entry, Meta};
use crate::tree::Walk;

/// The number of entries that a listing reads at a time, on a thread that may wait.
const BATCH: usize = 256;

/// See the module.
#[derive(Debug)]
pub enum Entries {
    Array(Box<Listing>),
    Plain(Box<Walk>),
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        let listing = match self {
            Entries::Array(listing) => listing,
            Entries::Plain(walk) => return walk.next(),
        };
        Some(match listing.next()? {
            Ok(Listed::File(file)) => {
                let meta = Meta::of_array(file.version, file.len_bytes, file.modified);
                Ok(Entry::Object(file.name, meta))
            }
            Ok(Listed::Prefix(prefix)) => Ok(Entry::Prefix(prefix)),
            Ok(other) => Err(Fault::other(format!("a listing has an entry of a new kind: {other:?}"))),
            Err(error) => Err(error.into()),
        })
    }
}

impl Entries {
    /// The entries as a stream. A poll waits for no directory and sorts no names: another thread brings the entries, a
    /// batch at a time.
    pub fn into_stream(self) -> BoxStream<'static, Result<Entry>> {
        let state = (Some(self), VecDeque::new());
        let batches = stream::unfold(state, |(entries, mut batch)| async move {
            let mut entries = entries;
            if batch.is_empty() {
                let mut source = entries.take()?;
                (batch, entries) = blocking::unblock(move || {
                    let batch: VecDeque<_> = source.by_ref().take(BATCH).collect();
                    let is_end = batch.len() < BATCH;
                    (batch, (!is_end).then_some(source))
                })
                .await;
            }
            batch.pop_front().map(|entry| (entry, (entries, batch)))
        });
        batches.boxed()
    }
}
