//! Many commodity SSDs as one very fast file.

pub mod api;
pub mod catalog;
pub mod drive;
pub mod engine;
pub mod error;
pub mod layout;
pub mod sys;

pub use api::*;
pub use error::{Error, Result};
