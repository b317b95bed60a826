//! Compile-time checks that the public types are `Send`, `Sync` and `Unpin`. If a type loses one of these traits, the
//! crate does not compile. It has no types of its own.

use super::*;
use crate::{Counters, DriveCounters, EngineKind, Error, Latency};

// Rust 1.88 does not count the uses below.
#[allow(dead_code)]
const fn is_shared<T: Send + Sync + Unpin + 'static>() {}

/// For types that borrow: they cannot be `'static`.
#[allow(dead_code)]
const fn may_cross<T: Send + Sync + Unpin>() {}

const _: () = {
    is_shared::<Array>();
    is_shared::<ArrayOptions>();
    is_shared::<CacheOptions>();
    is_shared::<CreateOptions>();
    is_shared::<Tuning>();
    is_shared::<File>();
    is_shared::<FileCursor>();
    is_shared::<Buffer>();
    is_shared::<Peek>();
    is_shared::<PlainOptions>();
    is_shared::<Runtime>();
    is_shared::<RuntimeOptions>();
    is_shared::<Profile>();
    is_shared::<Error>();
    is_shared::<Counters>();
    is_shared::<DriveCounters>();
    is_shared::<Latency>();
};

const _: () = {
    is_shared::<ArrayInfo>();
    is_shared::<DriveInfo>();
    is_shared::<Ground>();
    is_shared::<NodeInfo>();
    is_shared::<FileStat>();
    is_shared::<Report>();
    is_shared::<Problem>();
    is_shared::<Severity>();
    is_shared::<FileOptions>();
    is_shared::<Layout>();
    is_shared::<EngineKind>();
    is_shared::<PolicyKind>();
    is_shared::<Advice>();
};

const _: () = {
    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    is_shared::<AsyncCursor>();
    is_shared::<Transfer<Vec<u8>>>();
    is_shared::<Transfer<Vec<u8>, (Vec<u8>, usize)>>();
    is_shared::<Failed<Vec<u8>>>();
    is_shared::<Answer<File>>();
    is_shared::<Draft>();
    is_shared::<PutOptions>();
    is_shared::<Request>();
    may_cross::<PinnedPage<'_>>();
    may_cross::<PinnedRange<'_>>();
};
