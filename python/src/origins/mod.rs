//! Objects of remote stores through a cache on local drives: the classes [`NativeCache`], [`NativeStore`],
//! [`NativeContent`] and [`ContentRows`]. Goals: as for plain files, the interpreter is free while a call waits, Ctrl-C
//! ends it, and a forked child opens everything for itself. Non-goals: the forms of protocols, which the Python half
//! has.
//!
//! Rules:
//! 1. Each process has its own store of an origin: a client of HTTP has threads and connections that a child must not
//!    use.
//! 2. Locks here are held by threads with the interpreter, and for moments. So no thread holds one at a fork.

mod cache;
mod content;
mod native;
mod results;
mod rows;
mod store;
mod threads;
mod upload;

pub use cache::{NativeCache, open_cache};
pub use content::NativeContent;
pub use native::NativeStore;
pub use rows::ContentRows;
pub use threads::stop_origins;
