//! Caches that may keep any page in any place, to compare the page sets with. They run over the indices of a trace's
//! pages, so their tables are plain arrays.

mod arc;
mod lists;
mod lru;
mod optimum;

pub(crate) use arc::ArcPolicy;
pub(crate) use lru::Lru;
pub(crate) use optimum::Optimum;
