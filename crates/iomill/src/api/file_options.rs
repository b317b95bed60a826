//! [`FileOptions`]: how a file is made. [`PutOptions`]: how a whole content becomes one. Non-goals: checks of options (`setup`).

use crate::catalog::When;
use crate::layout::Layout;

/// Block size by default, in bytes: 16 pages.
pub const DEFAULT_BLOCK_BYTES: u32 = 64 << 10;

/// How a new file is made. None of it changes later.
///
/// ```no_run
/// use iomill::{FileOptions, Layout};
///
/// # fn main() -> iomill::Result<()> {
/// # let array = iomill::Array::open("/mnt/ssd0")?;
/// array.create_file("small", &FileOptions::new())?;
/// array.create_file("large", &FileOptions::new().layout(Layout::Hash).block_bytes(1 << 20))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until a file is made with them"]
pub struct FileOptions {
    pub(super) layout: Layout,
    pub(super) block_bytes: u32,
    pub(super) drives: Option<Vec<u16>>,
    pub(super) checksums: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions::new()
    }
}

impl FileOptions {
    /// The defaults: [`Layout::Striping`] with blocks of 64 KiB over all drives, without checksums.
    pub fn new() -> FileOptions {
        FileOptions { layout: Layout::default(), block_bytes: DEFAULT_BLOCK_BYTES, drives: None, checksums: false }
    }

    /// How blocks are spread over the drives.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Block size in bytes: a multiple of 4,096, at most 64 MiB. [`DEFAULT_BLOCK_BYTES`] by default.
    pub fn block_bytes(mut self, block_bytes: u32) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// Only these drives of the array, by index and in this order.
    pub fn drives(mut self, drives: impl Into<Vec<u16>>) -> Self {
        self.drives = Some(drives.into());
        self
    }

    /// Whether each page of the file has a checksum, which also says which page of which file it is. Off by default.
    /// A page is compared with its sum when it comes from its drive, before a byte of it is given out. A page that is
    /// not what was written is [`Error::CorruptPage`](crate::Error::CorruptPage). A page of zeros has no sum.
    ///
    /// The sums take a thousandth of the file on its drives. While the file is open, they take four bytes of memory
    /// for each page near one that was touched. After a crash the stretches of 64 MiB that were written to get new
    /// sums, made from the bytes that are there.
    pub fn checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }
}

#[cfg(feature = "internals")]
impl FileOptions {
    /// The layout that these options give.
    pub fn chosen_layout(&self) -> Layout {
        self.layout
    }
}

/// How [`Array::put`](super::Array::put) makes a file: its options, the condition for its name, and its attributes.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a file is made with them"]
pub struct PutOptions {
    pub(super) file: FileOptions,
    pub(super) when: When,
    pub(super) attributes: Vec<(String, String)>,
}

impl PutOptions {
    /// The defaults of [`FileOptions`], on no condition, without attributes.
    pub fn new() -> PutOptions {
        PutOptions::default()
    }

    /// How the file is made.
    pub fn file(mut self, file: FileOptions) -> Self {
        self.file = file;
        self
    }

    /// On which condition the file gets its name.
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// An attribute that the file gets with its name.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((key.into(), value.into()));
        self
    }
}
