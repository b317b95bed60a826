//! Layouts: pure functions from a block of a virtual file to a drive and a block in its part, and their inverses.
//!
//! A layout has no I/O, no `unsafe`, and no state except tables that are computed once when a file is opened. The place
//! of a block is part of the format on the drives, so the results of these functions must never change
//! (`places_never_change` guards that).
//!
//! | layout | block b is on |
//! |---|---|
//! | striping | drive b mod n |
//! | rotated | as striping, but the first drive moves by one from stripe to stripe |
//! | hash | a keyed permutation of each group of blocks, in proportion to the drives' weights |
//!
//! - The hash layout needs no table that grows with the file. Usual weights give groups of 64 to 256 blocks. A part is
//!   at most one group longer than its blocks.
//! - With one drive the hash layout keeps the order of blocks, as striping does.
//! - Each file has its own order of drives. If no list of drives was given, this order begins with each drive in turn,
//!   for 64 files at a time. So small files and the first blocks of large files are spread over all drives, and files
//!   made at the same time share an fsync.
//! - A file has at most 256 drives. A weight is 1 to 1,000.
//!
//! `CONTRIBUTING.md` says how to add a layout.

mod divisor;
mod hash;
mod placement;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use divisor::Divisor;
use hash::HashLayout;
pub use placement::Placement;

/// The most drives of a file.
pub const DRIVES_MAX: usize = 256;
/// The largest weight of a drive; the least is 1.
pub const WEIGHT_MAX: u32 = 1000;

/// How a file's blocks are spread over its drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// Block b is on drive b mod n. Files begin with all drives in turn, so small files are on all of them.
    #[default]
    Striping,
    /// Striping, but the drive of a stripe's first block moves by one from stripe to stripe.
    Rotated,
    /// A keyed permutation of blocks, in proportion to the drives' weights.
    Hash,
}

impl Layout {
    /// The name in options and records.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Striping => "striping",
            Layout::Rotated => "rotated",
            Layout::Hash => "hash",
        }
    }
}

/// A layout compiled for one file's drives. A clone is cheap and shares the tables.
#[derive(Clone, Debug)]
pub struct Map(CompiledLayout);

#[derive(Clone, Debug)]
enum CompiledLayout {
    /// The number of drives.
    Striping(Divisor),
    /// The number of drives.
    Rotated(Divisor),
    /// For two drives or more. With one drive the layout is striping, which keeps the order of blocks.
    Hash(Arc<HashLayout>),
}

impl Map {
    /// Compiles a layout for as many drives as there are weights. Only `Hash` uses the key and the weights' values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no drives or more than [`DRIVES_MAX`], or if a hash layout has a weight outside
    /// 1..=[`WEIGHT_MAX`].
    pub fn new(kind: Layout, weights: &[u32], key: u64) -> Result<Map> {
        let n = weights.len();
        if !(1..=DRIVES_MAX).contains(&n) {
            return Err(Error::invalid(format!("{n} drives"), format!("a file has 1 to {DRIVES_MAX} drives")));
        }
        let drives = Divisor::new(n as u64);
        Ok(Map(match kind {
            Layout::Striping => CompiledLayout::Striping(drives),
            Layout::Rotated => CompiledLayout::Rotated(drives),
            Layout::Hash => {
                if let Some(drive) = weights.iter().position(|w| !(1..=WEIGHT_MAX).contains(w)) {
                    let what = format!("weight {} of drive {drive}", weights[drive]);
                    return Err(Error::invalid(what, format!("a weight is 1 to {WEIGHT_MAX}")));
                }
                if n == 1 {
                    CompiledLayout::Striping(drives)
                } else {
                    CompiledLayout::Hash(Arc::new(HashLayout::new(weights, key)))
                }
            }
        }))
    }

    /// The number of drives.
    pub fn drives(&self) -> u16 {
        match &self.0 {
            CompiledLayout::Striping(n) | CompiledLayout::Rotated(n) => n.get() as u16,
            CompiledLayout::Hash(hash) => hash.drives(),
        }
    }

    /// The number of blocks in a group. A file of whole groups has no gap in any part.
    pub fn group_blocks(&self) -> u64 {
        match &self.0 {
            CompiledLayout::Striping(n) | CompiledLayout::Rotated(n) => n.get(),
            CompiledLayout::Hash(hash) => hash.group_blocks(),
        }
    }

    /// The place of a block. Defined for every `u64`.
    #[inline]
    pub fn place(&self, block: u64) -> Placement {
        match &self.0 {
            CompiledLayout::Striping(n) => {
                let (stripe, drive) = n.div_rem(block);
                Placement { drive: drive as u16, block: stripe }
            }
            CompiledLayout::Rotated(n) => {
                let (stripe, position) = n.div_rem(block);
                let drive = position + n.div_rem(stripe).1;
                let drive = if drive < n.get() { drive } else { drive - n.get() };
                Placement { drive: drive as u16, block: stripe }
            }
            CompiledLayout::Hash(hash) => hash.place(block),
        }
    }

    /// The inverse of [`Map::place`]. `u64::MAX` for a drive that the file does not have, and for a block of a part if
    /// the number of the file's block does not fit in a `u64`.
    #[inline]
    pub fn block(&self, drive: u16, block_in_part: u64) -> u64 {
        let block = match &self.0 {
            CompiledLayout::Striping(n) if u64::from(drive) < n.get() => in_stripe(*n, block_in_part, drive.into()),
            CompiledLayout::Rotated(n) if u64::from(drive) < n.get() => {
                in_stripe(*n, block_in_part, unrotated(*n, block_in_part, drive))
            }
            CompiledLayout::Striping(_) | CompiledLayout::Rotated(_) => None,
            CompiledLayout::Hash(hash) => hash.block(drive, block_in_part),
        };
        block.unwrap_or(u64::MAX)
    }

    /// The shortest length, in blocks, of the part on `drive` that holds this drive's share of the file's first
    /// `blocks` blocks. 0 for a drive that the file does not have.
    ///
    /// Exact for every layout. Striping and rotated compute it. Hash looks at some blocks of the last group, which
    /// takes well under a microsecond for groups of usual weights, and a few microseconds for the largest.
    pub fn part_blocks(&self, drive: u16, blocks: u64) -> u64 {
        match &self.0 {
            CompiledLayout::Striping(n) if u64::from(drive) < n.get() => {
                let (stripes, rest) = n.div_rem(blocks);
                stripes + u64::from(u64::from(drive) < rest)
            }
            CompiledLayout::Rotated(n) if u64::from(drive) < n.get() => {
                let (stripes, rest) = n.div_rem(blocks);
                stripes + u64::from(unrotated(*n, stripes, drive) < rest)
            }
            CompiledLayout::Striping(_) | CompiledLayout::Rotated(_) => 0,
            CompiledLayout::Hash(hash) => hash.part_blocks(drive, blocks),
        }
    }

    /// [`Map::part_blocks`] in bytes: the shortest length of the part on `drive` for a file of `len_bytes` bytes. The
    /// file's last block may be partial. `block_bytes` is not zero (a zero counts as one).
    pub fn part_bytes(&self, drive: u16, len_bytes: u64, block_bytes: u32) -> u64 {
        let block_bytes = u64::from(block_bytes).max(1);
        let part_blocks = self.part_blocks(drive, len_bytes.div_ceil(block_bytes));
        let tail_bytes = len_bytes % block_bytes;
        if part_blocks > 0 && tail_bytes > 0 {
            let partial = self.place(len_bytes / block_bytes);
            if partial == (Placement { drive, block: part_blocks - 1 }) {
                return (part_blocks - 1).saturating_mul(block_bytes).saturating_add(tail_bytes);
            }
        }
        part_blocks.saturating_mul(block_bytes)
    }
}

/// The number of the block at a position of a stripe.
fn in_stripe(n: Divisor, stripe: u64, position: u64) -> Option<u64> {
    stripe.checked_mul(n.get())?.checked_add(position)
}

/// The position, in a stripe of the rotated layout, of the block on `drive`, which is below `n`.
fn unrotated(n: Divisor, stripe: u64, drive: u16) -> u64 {
    let moved = n.div_rem(stripe).1;
    let drive = u64::from(drive);
    if drive >= moved { drive - moved } else { drive + n.get() - moved }
}

#[cfg(test)]
mod tests;
