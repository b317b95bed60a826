//! [`PAUSE`].

use std::time::Duration;

/// The pause between two looks of a thread that waits for another.
pub const PAUSE: Duration = Duration::from_micros(50);
