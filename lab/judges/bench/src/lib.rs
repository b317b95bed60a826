//! Stores on one drive that take turns: iomill's, and the local file system of object_store.

pub mod stores;
