//! Caches that may keep any page anywhere. The page sets are compared with them. They run over the indices of a trace's
//! pages, so their tables are plain arrays.

mod arc;
mod lists;
mod lru;
mod optimum;

pub(crate) use arc::ArcPolicy;
pub(crate) use lru::Lru;
pub(crate) use optimum::Optimum;
