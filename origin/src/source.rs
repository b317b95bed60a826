//! [`Source`]: one content of one object, and its origin. Also the checks of an origin's answers: rules C1 and F5 of
//! `docs/origin.md`. Non-goals: the choice of the content (`store`).

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::cache::Inner;
use crate::common::{Fault, Result};
use crate::counters::add;
use crate::known::Object;
use crate::origin::{Answer, Meta};

/// One content of one object, and its origin.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub cache: &'a Inner,
    pub object: &'a Object,
    pub gets: &'a dyn Gets,
    /// The call is a prefetch or a pin.
    pub is_ahead: bool,
}

/// GETs of one content.
#[async_trait]
pub trait Gets: Debug + Send + Sync {
    /// One GET of a range, of this content only. Returns all of its bytes.
    async fn get(&self, object: &Object, range: Range<u64>) -> Result<Bytes>;
}

/// Rule F5: reads the body of a GET, and refuses a body that is not exactly the requested range.
pub async fn checked_body(cache: &Inner, path: &str, asked: &Range<u64>, mut answer: Answer) -> Result<Bytes> {
    let expected = asked.start..asked.end.min(answer.meta.size);
    if answer.range != expected || expected.start > expected.end {
        let found = answer.range;
        return Err(Fault::other(format!(
            "the origin sends bytes {found:?} of {path:?}, and {expected:?} were asked for"
        )));
    }
    let len = (expected.end - expected.start) as usize;
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut have = 0;
    while let Some(chunk) = answer.body.next().await {
        let chunk = chunk?;
        have += chunk.len();
        if have > len {
            return Err(Fault::other(format!("the origin sends more than bytes {expected:?} of {path:?}")));
        }
        match &first {
            None if chunk.is_empty() => {}
            // If one chunk is all of the body, it is not copied.
            None => first = Some(chunk),
            Some(one) => {
                if rest.is_empty() {
                    rest.reserve(len);
                    rest.extend_from_slice(one);
                }
                rest.extend_from_slice(&chunk);
            }
        }
    }
    add(&cache.tally.bytes_fetched, have as u64);
    if have < len {
        return Err(Fault::other(format!(
            "the origin ended {} bytes before the end of bytes {expected:?} of {path:?}; read it again",
            len - have
        )));
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
}

/// Refuses an answer about another content than the expected one. Rule C1.
pub fn checked_meta(path: &str, expected: &Meta, answer: &Meta) -> Result<()> {
    if answer.is_same(expected) { Ok(()) } else { Err(Fault::changed(path)) }
}
