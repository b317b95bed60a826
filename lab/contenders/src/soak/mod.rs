//! The work of a soak, and the versions of the bytes in its file.

pub mod slots;
pub mod worker;
