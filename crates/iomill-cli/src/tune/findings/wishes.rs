//! [`Wishes`]: the settings that a user asks for besides those that are always good.

/// NVMe interrupt coalescing: an interrupt comes after this number of completions, or this time after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Completions, 1 to 256.
    pub completions: u16,
    /// Time in units of 100 µs, 0 to 255. With 0 no completion waits.
    pub time_100us: u8,
}

/// The settings that a user wants besides those that are always good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Interrupt coalescing for NVMe drives, which trades latency for CPU time.
    pub coalescing: Option<Coalescing>,
}
