//! [`Placement`]: the place of a block. Non-goals: the layouts, which compute it.

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The index of the drive in the file's own list of drives.
    pub drive: u16,
    /// The number of the block in that drive's part.
    pub block: u64,
}
