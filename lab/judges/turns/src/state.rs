//! The states of slices, and the check of a slice's state.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// The source of the bytes of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// Drives.
    Cold,
    /// Memory.
    Warm,
    /// Memory, as far as the bytes are there: at least this share of [`crate::Work::bytes`] is read from drives.
    Held(f64),
    /// None: the slice writes.
    Writing,
}

/// Cold: minimum share of the bytes that is read from drives. The rest may be hits of the contender's own cache.
const COLD_SHARE_MIN: f64 = 0.9;

/// Warm: bytes that a slice may fetch besides: pages of its own executable.
const FETCHED_BESIDES_BYTES: u64 = 256 << 10;

impl State {
    /// A word for the table.
    pub fn name(self) -> &'static str {
        match self {
            State::Cold => "cold",
            State::Warm => "warm",
            State::Held(_) => "held",
            State::Writing => "writing",
        }
    }

    /// Refuses a slice in another state. `bytes` are the bytes that it has requested.
    pub fn check(self, seen: &Seen, bytes: u64) -> Result<()> {
        let (fetched, name) = (seen.fetched_bytes, self.name());
        let share = fetched as f64 / bytes.max(1) as f64;
        let advice = "run again when no other program uses the machine's memory";
        match self {
            State::Cold => ensure!(
                share >= COLD_SHARE_MIN,
                "the slice was not {name}: {fetched} of {bytes} bytes came from drives; {advice}"
            ),
            State::Warm => ensure!(
                fetched <= FETCHED_BESIDES_BYTES,
                "the slice was not {name}: {fetched} bytes came from drives; {advice}"
            ),
            State::Held(least) => ensure!(
                share >= least,
                "the slice had more memory than it may: only {fetched} of {bytes} bytes came from drives; {advice}"
            ),
            State::Writing => ensure!(
                seen.written_bytes >= bytes,
                "the slice wrote only {} of {bytes} bytes to drives; its store does not make them durable",
                seen.written_bytes
            ),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_in_another_state_is_refused() {
        let seen = |fetched_bytes, written_bytes| Seen { fetched_bytes, written_bytes, ..Seen::default() };
        let mib = 1 << 20;
        for (state, right, wrong) in [
            (State::Cold, seen(mib, 0), seen(mib / 2, 0)),
            (State::Warm, seen(4096, 0), seen(mib, 0)),
            (State::Held(0.5), seen(mib * 3 / 4, 0), seen(mib / 4, 0)),
            (State::Writing, seen(0, mib), seen(0, mib / 2)),
        ] {
            state.check(&right, mib).unwrap();
            let error = state.check(&wrong, mib).unwrap_err().to_string();
            assert!(error.starts_with("the slice "), "{error}");
        }
    }
}
