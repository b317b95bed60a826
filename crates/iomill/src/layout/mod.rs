//! Layouts: pure functions from a block of a virtual file to a drive and a block in its part, and back.
//!
//! No I/O, no `unsafe`, no state but what is computed once when a file is opened.

use serde::{Deserialize, Serialize};

/// How a file's blocks are spread over its drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutKind {
    /// Block b on drive b mod n.
    Striping,
    /// Striping whose first drive moves by one from stripe to stripe.
    Rotated,
    /// A keyed permutation in proportion to the drives' weights.
    Hash,
}
