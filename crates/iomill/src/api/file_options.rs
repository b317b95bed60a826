//! [`FileOptions`]: options of a new file. [`PutOptions`]: options of a put. Non-goals: checks of options (`setup`).

use crate::catalog::When;
use crate::layout::Layout;

/// Block size by default, in bytes: 16 pages.
pub const DEFAULT_BLOCK_BYTES: u32 = 64 << 10;

/// Options of a new file. They are fixed for the life of the file.
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

    /// The layout of the blocks on the drives. On one drive all layouts place the blocks in the same order. None is
    /// refused there: options of files serve arrays with any number of drives.
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

    /// Whether each page of the file has a checksum, which also covers the identity of the file and the number of the
    /// page. Off by default. A page that is read from its drive is verified before the call returns a byte of it. A
    /// page that differs from its checksum is [`Error::CorruptPage`](crate::Error::CorruptPage). A page of zeros has no
    /// checksum.
    ///
    /// Checksums take a thousandth of the file's space on its drives. While files are open, they take memory beside the
    /// cache: four bytes for each page near a used page. That is at most 16 MiB for all files of the array, or a
    /// sixteenth of the cache if that is more. After a crash, each stretch of 64 MiB that was being written gets new
    /// checksums, computed from the bytes on its drive.
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

/// Options of [`Array::put`](super::Array::put): those of the file, the condition for its name, and its attributes.
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a file is made with them"]
pub struct PutOptions {
    pub(super) file: FileOptions,
    pub(super) when: When,
    pub(super) attributes: Vec<(String, String)>,
}

impl PutOptions {
    /// The defaults of [`FileOptions`], without a condition and without attributes.
    pub fn new() -> PutOptions {
        PutOptions::default()
    }

    /// The options of the file.
    pub fn file(mut self, file: FileOptions) -> Self {
        self.file = file;
        self
    }

    /// The condition on which the file gets its name.
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
