//! Mapped parts and system calls over the same bytes: reads, and files that grow.

pub mod growth;
pub mod reads;
