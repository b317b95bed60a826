//! Many commodity SSDs as one very fast file.

pub mod catalog;
pub mod engine;
pub mod error;
pub mod layout;
pub mod sys;

pub use error::{Error, Result};
