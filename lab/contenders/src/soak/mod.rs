//! The work of a soak, and what it knows of the bytes in its file.

pub mod slots;
pub mod worker;
