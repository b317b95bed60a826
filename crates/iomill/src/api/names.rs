//! Calls of an [`Array`] that change names and attributes, each as a blocking call and as a future. Non-goals: contents
//! (`draft`).

use std::sync::Arc;

use super::answer::Answer;
use super::array::{Array, ArrayInner};
use super::change::{Change, begin, make};
use super::file::File;
use super::file_options::FileOptions;
use super::setup;
use crate::catalog::{Queued, When};
use crate::error::{Error, Result};
use crate::exec::users_code::check_may_block;

/// Futures of these calls that wait at the same time share fsyncs. See [`Answer`].
impl Array {
    /// Creates a file of length 0 and opens it. The creation is durable at the return, unless
    /// [`ArrayOptions::sync_changes`](super::ArrayOptions::sync_changes) is off. [`Error::Exists`] if a file has the
    /// name. [`Error::NotFound`] if another thread has deleted the new file meanwhile.
    pub fn create_file(&self, name: &str, options: &FileOptions) -> Result<File> {
        check_may_block("create_file")?;
        make(Creation { name, options: options.clone() }, self)
    }

    /// [`Array::create_file`] as a future.
    pub fn create_file_async(&self, name: &str, options: &FileOptions) -> Answer<File> {
        begin(Creation { name: name.to_owned(), options: options.clone() }, self, false)
    }

    /// Opens a file, or creates it if no file has this name. An existing file ignores `options`.
    pub fn open_or_create_file(&self, name: &str, options: &FileOptions) -> Result<File> {
        check_may_block("open_or_create_file")?;
        // Other threads may create and delete it meanwhile.
        loop {
            match self.open_file(name) {
                Err(Error::NotFound { .. }) => {}
                opened => return opened,
            }
            match self.create_file(name, options) {
                Err(Error::Exists { .. } | Error::NotFound { .. }) => {}
                created => return created,
            }
        }
    }

    /// [`Array::open_or_create_file`] as a future.
    pub fn open_or_create_file_async(&self, name: &str, options: &FileOptions) -> Answer<File> {
        let (name, options) = (name.to_owned(), options.clone());
        self.answer_later(move |array| array.open_or_create_file(&name, &options))
    }

    /// Deletes a file. The deletion is durable when this returns. Open handles keep the file's content, as on POSIX.
    /// Its space is free when the last of them is closed.
    pub fn delete(&self, name: &str) -> Result<()> {
        check_may_block("delete")?;
        make(Deletion { name }, self)
    }

    /// [`Array::delete`] as a future.
    pub fn delete_async(&self, name: &str) -> Answer<()> {
        begin(Deletion { name: name.to_owned() }, self, false)
    }

    /// Renames a file, and replaces the file named `to` if there is one, durably. Handles keep their file: those of the
    /// replaced file keep its content until they are closed.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_may_block("rename")?;
        make(Renaming { from, to, when: When::Always }, self)
    }

    /// [`Array::rename`] as a future.
    pub fn rename_async(&self, from: &str, to: &str) -> Answer<()> {
        self.rename_when_async(from, to, When::Always)
    }

    /// [`Array::rename`] on a condition for the file named `to`. [`Error::Exists`] and [`Error::Conflict`] if the
    /// condition does not hold.
    pub fn rename_when(&self, from: &str, to: &str, when: When) -> Result<()> {
        check_may_block("rename_when")?;
        make(Renaming { from, to, when }, self)
    }

    /// [`Array::rename_when`] as a future.
    pub fn rename_when_async(&self, from: &str, to: &str, when: When) -> Answer<()> {
        begin(Renaming { from: from.to_owned(), to: to.to_owned(), when }, self, false)
    }

    /// Sets an attribute of a file, durably. `None` removes it.
    pub fn set_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        check_may_block("set_attribute")?;
        make(NewAttribute { name, key, value }, self)
    }

    /// [`Array::set_attribute`] as a future.
    pub fn set_attribute_async(&self, name: &str, key: &str, value: Option<&str>) -> Answer<()> {
        let change = NewAttribute { name: name.to_owned(), key: key.to_owned(), value: value.map(str::to_owned) };
        begin(change, self, false)
    }

    /// Makes all changes of names and attributes durable.
    /// [`ArrayOptions::sync_changes`](super::ArrayOptions::sync_changes) says which changes are durable without this
    /// call. [`File::sync`] makes the bytes of a file durable. On an array that is open for reading this does nothing.
    pub fn sync(&self) -> Result<()> {
        check_may_block("sync")?;
        let array = self.open_inner()?;
        if array.catalog.is_writer() { array.catalog.sync_changes() } else { Ok(()) }
    }

    /// [`Array::sync`] as a future.
    pub fn sync_async(&self) -> Answer<()> {
        self.answer_later(Array::sync)
    }
}

struct Creation<N> {
    name: N,
    options: FileOptions,
}

impl<N: AsRef<str>> Change for Creation<N> {
    type Content = ();
    type Found = u64;
    type Output = File;

    fn write(&mut self, _: &Array) -> Result<()> {
        Ok(())
    }

    fn queue(&self, array: &ArrayInner, (): &()) -> Result<Queued<u64>> {
        let spec = setup::file_spec(&array.options, &array.catalog, &self.options)?;
        array.catalog.queue_create(self.name.as_ref(), &spec)
    }

    fn end(&self, array: &Arc<ArrayInner>, (): &(), number: u64) -> Result<File> {
        // Another thread may have deleted the file.
        array.try_number(number)?.ok_or_else(|| Error::NotFound { name: self.name.as_ref().to_owned() })
    }
}

struct Deletion<N> {
    name: N,
}

impl<N: AsRef<str>> Change for Deletion<N> {
    type Content = ();
    type Found = u64;
    type Output = ();

    fn write(&mut self, _: &Array) -> Result<()> {
        Ok(())
    }

    fn queue(&self, array: &ArrayInner, (): &()) -> Result<Queued<u64>> {
        array.catalog.queue_delete(self.name.as_ref())
    }

    fn end(&self, array: &Arc<ArrayInner>, (): &(), number: u64) -> Result<()> {
        array.files.remove(&array.catalog, number);
        Ok(())
    }
}

struct Renaming<N> {
    from: N,
    to: N,
    when: When,
}

impl<N: AsRef<str>> Change for Renaming<N> {
    type Content = ();
    /// The file that was replaced.
    type Found = Option<u64>;
    type Output = ();

    fn write(&mut self, _: &Array) -> Result<()> {
        Ok(())
    }

    fn queue(&self, array: &ArrayInner, (): &()) -> Result<Queued<Option<u64>>> {
        array.catalog.queue_rename(self.from.as_ref(), self.to.as_ref(), self.when)
    }

    fn end(&self, array: &Arc<ArrayInner>, (): &(), victim: Option<u64>) -> Result<()> {
        victim.into_iter().for_each(|victim| array.files.remove(&array.catalog, victim));
        Ok(())
    }
}

struct NewAttribute<N> {
    name: N,
    key: N,
    value: Option<N>,
}

impl<N: AsRef<str>> Change for NewAttribute<N> {
    type Content = ();
    type Found = ();
    type Output = ();

    fn write(&mut self, _: &Array) -> Result<()> {
        Ok(())
    }

    fn queue(&self, array: &ArrayInner, (): &()) -> Result<Queued<()>> {
        let value = self.value.as_ref().map(AsRef::as_ref);
        array.catalog.queue_attribute(self.name.as_ref(), self.key.as_ref(), value)
    }

    fn end(&self, _: &Arc<ArrayInner>, (): &(), (): ()) -> Result<()> {
        Ok(())
    }
}
