//! [`Draft`]: a file that gets its name when its content is complete. [`Array::put`] and [`Array::copy`] are built on
//! it. Non-goals: drafts in the catalog (`catalog::draft`).

use std::ops::Deref;
use std::sync::Arc;

use super::answer::Answer;
use super::array::{Array, ArrayInner};
use super::change::{Change, begin, make};
use super::file::File;
use super::file_options::{FileOptions, PutOptions};
use super::info::FileStat;
use super::setup;
use crate::catalog::{self, Queued, Record, When};
use crate::error::{Error, Result};
use crate::exec::PageWrite;
use crate::exec::users_code::check_may_block;
use crate::file::backing::FirstPlace;
use crate::pager::OpenRef;
use crate::sys::events::{self, Span};
use crate::sys::memory::PageBuf;

/// Bytes that a copy moves at a time.
const PIECE_BYTES: u64 = 8 << 20;
/// The longest content that is written and synced together with others, in bytes.
const SMALL_MAX_BYTES: u64 = 64 << 10;

/// A file without a name, from [`Array::draft`]. It is written like any file, also by several threads.
/// [`Draft::publish`] gives it a name. So its content appears as a whole or not at all.
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// use iomill::{FileOptions, When};
///
/// # let array = iomill::Array::open("/mnt/ssd0")?;
/// let draft = array.draft(&FileOptions::new())?;
/// draft.file().write_at(b"part two", 8)?;
/// draft.file().write_at(b"part one", 0)?;
/// let stat = draft.publish("object", When::Absent)?;
/// println!("version {}", stat.version);
/// # Ok(()) }
/// ```
///
/// If a draft is dropped without a name, its space is free once the last handle of its file is dropped. After a crash,
/// the next opening of the array for writing frees the space of drafts.
pub struct Draft {
    /// Dropped before the array.
    file: File,
    draft: Arc<catalog::Draft>,
    array: Array,
}

impl Draft {
    /// The file. Its handles may outlive the draft. Until the draft is published, [`File::name`] is a placeholder for
    /// drafts.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The version that the name will have.
    pub fn version(&self) -> u64 {
        self.draft.number()
    }

    /// Sets an attribute; the file has it from its publication on. `None` removes it. This costs no I/O. An error if
    /// the draft is published, or if the attributes take more than 64 KiB.
    pub fn set_attribute(&self, key: &str, value: Option<&str>) -> Result<()> {
        self.draft.set_attribute(key, value)
    }

    /// Makes all writes durable that ended before this call, and then gives the file its name, durably. An older file
    /// of that name loses it at the same moment, and handles of the older file keep its content. After a crash the name
    /// has the whole old content or the whole new one.
    ///
    /// A small file costs two fsyncs: that of its pages, and that of the log.
    ///
    /// [`Error::Exists`] and [`Error::Conflict`] if the condition does not hold. Then the draft may be published under
    /// another name, or on another condition. A draft is published once. After [`Error::OutcomeUnknown`] the name may
    /// have it, so that further writes would change the named file.
    pub fn publish(&self, name: &str, when: When) -> Result<FileStat> {
        check_may_block("publish")?;
        make(Publication { draft: self.again(), name, when }, &self.array)
    }

    /// [`Draft::publish`] as a future. Futures that wait at the same time share fsyncs.
    pub fn publish_async(&self, name: &str, when: When) -> Answer<FileStat> {
        let is_long = self.file.len() > SMALL_MAX_BYTES;
        begin(Publication { draft: self.again(), name: name.to_owned(), when }, &self.array, is_long)
    }

    fn again(&self) -> Draft {
        // Shares the count of errors: an error that a publication reports is not reported again.
        let mut file = self.file.clone();
        file.reported = self.file.reported.share();
        Draft { file, draft: Arc::clone(&self.draft), array: self.array.clone() }
    }

    /// Writes the content to the drives. A small content is synced later, together with others.
    fn prepare(&self) -> Result<()> {
        if self.file.len() > SMALL_MAX_BYTES {
            self.file.sync()
        } else {
            self.file.state.write_back(&self.file.reported)
        }
    }

    /// Makes the content durable, and gives the draft its name in memory.
    fn queue(&self, array: &ArrayInner, name: &str, when: When) -> Result<Queued<Option<u64>>> {
        // From now on writes are marked, as in a file with a name.
        self.file.state.file.end_draft()?;
        self.file.sync()?;
        array.catalog.queue_publication(&self.draft, name, when)
    }

    /// Runs when the name is durable. `victim` is the file that had the name.
    fn end(&self, array: &ArrayInner, name: &str, victim: Option<u64>) -> Result<FileStat> {
        victim.into_iter().for_each(|victim| array.files.remove(&array.catalog, victim));
        let missing = || Error::NotFound { name: name.to_owned() };
        let record = array.catalog.numbered(self.draft.number()).ok_or_else(missing)?;
        // Another thread may have renamed the file since.
        let record = Record { name: name.to_owned(), ..Record::clone(&record) };
        FileStat::new(&array.catalog, &record, self.file.len())
    }
}

struct Publication<N> {
    draft: Draft,
    name: N,
    when: When,
}

impl<N: AsRef<str>> Change for Publication<N> {
    type Content = ();
    type Found = Option<u64>;
    type Output = FileStat;

    fn span(&self) -> Span {
        events::publish(self.name.as_ref())
    }

    fn write(&mut self, array: &Array) -> Result<()> {
        // An early check, before the content is synced. The check that decides is made when the name is given.
        array.open_inner()?.catalog.check_condition(self.name.as_ref(), self.when)?;
        self.draft.prepare()
    }

    fn queue(&self, array: &ArrayInner, (): &()) -> Result<Queued<Option<u64>>> {
        self.draft.queue(array, self.name.as_ref(), self.when)
    }

    fn end(&self, array: &Arc<ArrayInner>, (): &(), victim: Option<u64>) -> Result<FileStat> {
        self.draft.end(array, self.name.as_ref(), victim)
    }

    fn release(self, _: Option<()>) -> Option<OpenRef> {
        Some(self.draft.file.state)
    }
}

/// A file with a new content.
struct Put<N, C> {
    name: N,
    content: C,
    options: PutOptions,
    /// Whether a small content is written together with others.
    shares_writes: bool,
}

/// The draft of a put, and its pages if the content is still to be written.
struct Written {
    pages: Option<FirstPlace>,
    draft: Draft,
}

impl<N: AsRef<str>, C: Deref<Target = [u8]>> Put<N, C> {
    fn write_alone(&self, draft: &Draft) -> Result<()> {
        draft.file().write_at(&self.content, 0)?;
        draft.prepare()
    }
}

impl<N: AsRef<str>, C: Deref<Target = [u8]>> Change for Put<N, C> {
    type Content = Written;
    type Found = Option<u64>;
    type Output = FileStat;

    fn span(&self) -> Span {
        events::put(self.name.as_ref())
    }

    fn write(&mut self, array: &Array) -> Result<Written> {
        array.open_inner()?.catalog.check_condition(self.name.as_ref(), self.options.when)?;
        let draft = array.draft(&self.options.file)?;
        for (key, value) in &self.options.attributes {
            draft.set_attribute(key, Some(value))?;
        }
        let file = &draft.file().state.file;
        let pages = if self.shares_writes { file.give_first(self.content.len())? } else { None };
        if pages.is_none() {
            self.write_alone(&draft)?;
        }
        Ok(Written { pages, draft })
    }

    fn pages<'a>(&'a self, written: &'a Written) -> Option<PageWrite<'a>> {
        Some(PageWrite::first(written.pages.as_ref()?, &self.content))
    }

    fn end_pages(&self, written: &mut Written, are_written: bool) -> Result<()> {
        let Some(pages) = written.pages.take() else { return Ok(()) };
        let file = &written.draft.file().state.file;
        if are_written && file.take_first(pages, &self.content) {
            return Ok(());
        }
        self.write_alone(&written.draft)
    }

    fn queue(&self, array: &ArrayInner, written: &Written) -> Result<Queued<Option<u64>>> {
        written.draft.queue(array, self.name.as_ref(), self.options.when)
    }

    fn end(&self, array: &Arc<ArrayInner>, written: &Written, victim: Option<u64>) -> Result<FileStat> {
        written.draft.end(array, self.name.as_ref(), victim)
    }

    fn release(self, written: Option<Written>) -> Option<OpenRef> {
        Some(written?.draft.file.state)
    }
}

/// A file with the content of another one.
struct Copying<N> {
    from: N,
    to: N,
    when: When,
}

impl<N: AsRef<str>> Change for Copying<N> {
    type Content = Draft;
    type Found = Option<u64>;
    type Output = FileStat;

    fn span(&self) -> Span {
        events::copy(self.to.as_ref())
    }

    fn write(&mut self, array: &Array) -> Result<Draft> {
        let inner = array.open_inner()?;
        let (record, source) = loop {
            let record = inner.catalog.record(self.from.as_ref())?;
            // If the file has lost its name since, another file may have the name.
            if let Some(source) = inner.try_number(record.number)? {
                break (record, source);
            }
        };
        // After the lookup of the source: if the source is missing, the condition does not matter.
        inner.catalog.check_condition(self.to.as_ref(), self.when)?;
        let options = FileOptions::new().layout(record.layout).block_bytes(record.block_bytes);
        let draft = array.draft(&options.drives(record.drives.clone()).checksums(record.sums.is_some()))?;
        for (key, value) in &record.attributes {
            draft.set_attribute(key, Some(value))?;
        }
        copy_content(&source, draft.file())?;
        draft.prepare()?;
        Ok(draft)
    }

    fn queue(&self, array: &ArrayInner, draft: &Draft) -> Result<Queued<Option<u64>>> {
        draft.queue(array, self.to.as_ref(), self.when)
    }

    fn end(&self, array: &Arc<ArrayInner>, draft: &Draft, victim: Option<u64>) -> Result<FileStat> {
        draft.end(array, self.to.as_ref(), victim)
    }

    fn release(self, draft: Option<Draft>) -> Option<OpenRef> {
        Some(draft?.file.state)
    }
}

impl Array {
    /// Makes a file without a name, of length 0. It costs no I/O before its first write. See [`Draft`].
    pub fn draft(&self, options: &FileOptions) -> Result<Draft> {
        check_may_block("draft")?;
        let array = self.open_inner()?;
        let spec = setup::file_spec(&array.options, &array.catalog, options)?;
        let (draft, record) = array.catalog.new_draft(&spec)?;
        Ok(Draft { file: array.open_draft(&draft, &record)?, draft, array: self.clone() })
    }

    /// Makes a file of this content, durably and as a whole, like [`Draft::publish`]. Returns the metadata of the file,
    /// with its version.
    ///
    /// A small file costs two fsyncs. [`Error::Exists`] and [`Error::Conflict`] if the condition of the options does
    /// not hold.
    pub fn put(&self, name: &str, content: &[u8], options: &PutOptions) -> Result<FileStat> {
        check_may_block("put")?;
        make(Put { name, content, options: options.clone(), shares_writes: false }, self)
    }

    /// [`Array::put`] as a future. Futures that wait at the same time share fsyncs.
    pub fn put_async(&self, name: &str, content: impl Into<Vec<u8>>, options: &PutOptions) -> Answer<FileStat> {
        let content: Vec<u8> = content.into();
        let is_small = content.len() as u64 <= SMALL_MAX_BYTES;
        // With a cache the content is written through it, so that later reads hit.
        let shares_writes = is_small && self.inner.pager.is_none();
        let put = Put { name: name.to_owned(), content, options: options.clone(), shares_writes };
        begin(put, self, !shares_writes)
    }

    /// Copies a file with its layout and its attributes, durably and as a whole. The bytes are copied 8 MiB at a time,
    /// through the cache if there is one. Holes stay holes, as [`File::next_data`] finds them. The length of the copy
    /// is that of the source when the call begins. The copy may have or lack writes to the source during the call.
    ///
    /// [`Error::NotFound`] if there is no file `from`, whatever the condition. [`Error::Exists`] and
    /// [`Error::Conflict`] if the condition for `to` does not hold.
    pub fn copy(&self, from: &str, to: &str, when: When) -> Result<FileStat> {
        check_may_block("copy")?;
        make(Copying { from, to, when }, self)
    }

    /// [`Array::copy`] as a future.
    pub fn copy_async(&self, from: &str, to: &str, when: When) -> Answer<FileStat> {
        begin(Copying { from: from.to_owned(), to: to.to_owned(), when }, self, true)
    }
}

fn copy_content(source: &File, copy: &File) -> Result<()> {
    let len = source.len();
    if len == 0 {
        return Ok(());
    }
    let is_sparse = source.next_data(0, len)? != Some(0..len);
    if is_sparse {
        // Holes stay holes within the length. Writes past the end would allocate the bytes that they skip.
        copy.set_len(len)?;
    } else {
        copy.preallocate(len)?;
    }
    let most = len.min(PIECE_BYTES);
    let mut buffer = PageBuf::new(most as usize).map_err(Error::memory("copying a file", most))?;
    let mut at = 0;
    while let Some(data) = if is_sparse { source.next_data(at, most)? } else { Some(at..at + most) } {
        let end = data.end.min(len);
        if data.start >= end {
            break;
        }
        let piece = &mut buffer.as_mut_slice()[..(end - data.start) as usize];
        let read = source.read_at(piece, data.start)?;
        if read == 0 {
            break;
        }
        copy.write_at(&piece[..read], data.start)?;
        at = data.start + read as u64;
    }
    match source.len() {
        // The source was made shorter meanwhile.
        left if is_sparse && left < len => copy.set_len(left),
        _ => Ok(()),
    }
}
