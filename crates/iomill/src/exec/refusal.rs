//! The error of a thread for which the system has made no engine.

use crate::error::Error;

#[cold]
pub fn engine_failed(source: std::io::Error) -> Error {
    let thread = format!("thread {:?}", std::thread::current().name().unwrap_or("unnamed"));
    Error::Engine { thread, drive: None, source }
}
