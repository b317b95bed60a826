//! A call in flight: a future, or a batch with a callback.

use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use iomill::Error;

use super::model::Began;

/// The result of a call: the bytes of its reads, in order.
pub type Brought = Result<Vec<Vec<u8>>, Error>;

/// The source of a call's result.
pub enum Pending {
    Future(Pin<Box<dyn Future<Output = Brought>>>),
    Callback(Arc<Mutex<Option<Brought>>>),
    /// It was dropped, and goes on.
    Abandoned,
}

/// One request of a call.
pub enum Part {
    Read(Range<usize>),
    Write(Began),
}

impl Part {
    pub fn range(&self) -> Range<usize> {
        match self {
            Part::Read(range) => range.clone(),
            Part::Write(began) => began.range(),
        }
    }
}

/// A call in flight.
pub struct Call {
    pub id: u32,
    pub parts: Vec<Part>,
    pub pending: Pending,
}
