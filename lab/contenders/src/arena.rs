//! The measured array: a file of pattern in it, and the same bytes in the form that rivals use.
//!
//! Goals: nothing is left behind. All files that were made here are removed on drop, also after an error or Ctrl-C.
//! Non-goals: choosing drives.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::layout::Map;
use iomill::{Array, ArrayOptions, CreateOptions, Error, FileOptions, Result};

use crate::flat::FlatFile;
use crate::leftovers::{self, By};
use crate::machine::Machine;
use crate::pattern::{self, PAGE_BYTES};
use crate::target::{Part, Target};

/// The pattern's seed. It is fixed, so that a kept file can be measured again.
pub const SEED: u64 = 0x696f_6d69_6c6c;

/// An array with one file full of pattern.
#[derive(Debug)]
pub struct Arena {
    /// Drives that name the array; not empty.
    drives: Vec<PathBuf>,
    file_name: String,
    /// Directories that were made for the measurement; removed with everything in them.
    remove_dirs: Vec<PathBuf>,
    /// Whether the file was made for the measurement.
    remove_file: bool,
}

/// How the measured file is made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Its layout.
    pub layout: FileOptions,
}

impl Arena {
    /// Makes a new array of `drives` directories in `dir`, which must not exist yet. The array is removed at the end.
    pub fn fresh(dir: &Path, drives: usize) -> Result<Arena> {
        Arena::fresh_at(vec![dir.to_owned()], drives, &ArrayOptions::new(), &CreateOptions::new())
    }

    /// Makes a new array of `drives` directories, which are spread over `dirs` in turn. The array is removed at the
    /// end.
    pub fn fresh_over(dirs: &[PathBuf], drives: usize) -> Result<Arena> {
        let name = leftovers::name(By::Bench);
        Arena::fresh_at(
            dirs.iter().take(drives).map(|dir| dir.join(&name)).collect(),
            drives,
            &ArrayOptions::new(),
            &CreateOptions::new(),
        )
    }

    fn fresh_at(dirs: Vec<PathBuf>, drives: usize, options: &ArrayOptions, new: &CreateOptions) -> Result<Arena> {
        let paths: Vec<PathBuf> =
            dirs.iter().cycle().take(drives).zip(0..).map(|(dir, index)| dir.join(format!("ssd{index}"))).collect();
        let mut arena = Arena {
            drives: paths.iter().take(1).cloned().collect(),
            file_name: String::new(),
            remove_dirs: Vec::new(),
            remove_file: false,
        };
        // After a failure the drop removes all files that were made.
        for dir in dirs {
            dir.parent().into_iter().for_each(leftovers::remove_in);
            fs::create_dir(&dir).map_err(|e| Error::io("create", &dir, e))?;
            arena.remove_dirs.push(dir);
        }
        for path in &paths {
            fs::create_dir(path).map_err(|e| Error::io("create", path, e))?;
        }
        options.clone().create_with(&paths, new)?.close()?;
        Ok(arena)
    }

    /// Makes a new array of `drives` directories in `dir`, which must not exist yet, with these options.
    pub fn fresh_with(dir: &Path, drives: usize, options: &ArrayOptions, new: &CreateOptions) -> Result<Arena> {
        Arena::fresh_at(vec![dir.to_owned()], drives, options, new)
    }

    /// Measures in an existing array. Only the measured file is made and removed.
    pub fn existing(drives: &[PathBuf]) -> Arena {
        Arena { drives: drives.to_owned(), file_name: String::new(), remove_dirs: Vec::new(), remove_file: false }
    }

    /// A measured file that the caller makes and removes.
    pub(crate) fn named(drives: &[PathBuf], file_name: &str) -> Arena {
        Arena {
            drives: drives.to_owned(),
            file_name: file_name.to_owned(),
            remove_dirs: Vec::new(),
            remove_file: false,
        }
    }

    /// Writes the measured file. `progress` gets the bytes written so far and the total.
    pub fn fill(&mut self, shape: &Shape, cancel: &AtomicBool, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let len = shape.len_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if len == 0 {
            return Err(Error::invalid(format!("a file of {} bytes", shape.len_bytes), "give at least one page, 4KiB"));
        }
        // No cache: no page is used twice.
        let array = ArrayOptions::new().cache_bytes(0).open_at(&self.drives)?;
        for name in array.list(By::Bench.prefix()).names()?.into_iter().filter(|name| leftovers::is_abandoned(name)) {
            array.delete(&name)?;
        }
        self.file_name = leftovers::name(By::Bench);
        let file = array.create_file(&self.file_name, &shape.layout.clone())?;
        self.remove_file = self.remove_dirs.is_empty();
        file.preallocate(len)?;
        write_pattern(array, file, len, cancel, progress)
    }

    /// Writes the pattern into the measured file again, after a contender has left other bytes in it.
    pub fn refill(&self, cancel: &AtomicBool, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let array = ArrayOptions::new().cache_bytes(0).open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        let len = file.len();
        write_pattern(array, file, len, cancel, progress)
    }

    /// Drives that name the array.
    pub fn drives(&self) -> &[PathBuf] {
        &self.drives
    }

    /// The measured file's name.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The path for a plain file for the measurement, on the array's first drive.
    fn flat_path(&self) -> Result<PathBuf> {
        let lacks = || Error::invalid("an array without drives", "name one of them");
        let drive = self.drives.first().ok_or_else(lacks)?;
        leftovers::remove_in(drive);
        Ok(drive.join(format!("{}.flat", leftovers::name(By::Bench))))
    }

    /// The measured file as plain files, one per drive.
    pub fn target(&self) -> Result<Target> {
        let peek = ArrayOptions::new().peek(&self.drives)?;
        let stat = peek.stat(&self.file_name)?;
        let map = Map::new(stat.layout, &stat.weights, stat.key)?;
        let block_pages = u64::from(stat.block_bytes) / PAGE_BYTES as u64;
        // With the hash layout the last group of a part has holes. Rivals read only the bytes before that group.
        let group = map.group_blocks();
        let full = stat.len_bytes / u64::from(stat.block_bytes) / group * group;
        let mut parts = Vec::new();
        for (position, (path, len_bytes)) in stat.parts.into_iter().enumerate() {
            let dense = map.part_blocks(position as u16, full) * u64::from(stat.block_bytes);
            let len_bytes = if dense > 0 { dense } else { len_bytes };
            parts.push(Part { path, len_bytes });
        }
        let page_map =
            move |part: usize, page: u64| map.block(part as u16, page / block_pages) * block_pages + page % block_pages;
        Target::new(parts, SEED, std::sync::Arc::new(page_map))
    }

    fn remove(&self) -> Result<()> {
        let failed = |dir: &PathBuf| fs::remove_dir_all(dir).err().map(|e| Error::io("remove", dir, e));
        // A failure for one directory does not stop the removal of the others.
        let failures: Vec<Error> = self.remove_dirs.iter().filter_map(failed).collect();
        if let Some(first) = failures.into_iter().next() {
            return Err(first);
        }
        if self.remove_file {
            let array = ArrayOptions::new().open_at(&self.drives)?;
            array.delete(&self.file_name)?;
            array.close()?;
        }
        Ok(())
    }

    /// Measures, and leaves nothing behind. An error of the measurement takes precedence over an error of the removal.
    pub fn measured<R>(mut self, measure: impl FnOnce(&mut Arena) -> Result<R>) -> Result<R> {
        let result = measure(&mut self);
        let cleaned = self.clean_up();
        result.and_then(|result| cleaned.map(|()| result))
    }

    /// Writes the measured file, and a plain file of the same length beside it. Dropping the plain file removes it.
    /// Also returns the machine under that file.
    pub fn fill_with_flat(
        &mut self,
        len_bytes: u64,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(FlatFile, Machine)> {
        let flat = FlatFile::write(self.flat_path()?, len_bytes, SEED, cancel, progress)?;
        self.fill(&Shape { len_bytes, layout: FileOptions::new() }, cancel, progress)?;
        let part = Part { path: flat.path().to_owned(), len_bytes: flat.len_bytes() };
        let machine = Machine::look(&[part]);
        Ok((flat, machine))
    }

    /// Removes the files of the measurement, and returns an error if that fails.
    pub fn clean_up(mut self) -> Result<()> {
        let result = self.remove();
        (self.remove_dirs, self.remove_file) = (Vec::new(), false);
        result
    }
}

impl Drop for Arena {
    /// Removes after an error. The user sees that first error; `clean_up` reports errors of its own.
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Fills a file with pattern. `len` must be a whole number of pages. Then closes the file and the array.
fn write_pattern(
    array: Array,
    file: iomill::File,
    len: u64,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let mut chunk = array.buffer(4 << 20)?;
    let mut done = 0;
    while done < len && !cancel.load(Ordering::Relaxed) {
        let n = (len - done).min(chunk.len() as u64) as usize;
        for (index, page) in chunk[..n].chunks_exact_mut(PAGE_BYTES).enumerate() {
            pattern::fill_page(SEED, done / PAGE_BYTES as u64 + index as u64, page);
        }
        file.write_at(&chunk[..n], done)?;
        done += n as u64;
        progress(done, len);
    }
    file.close()?;
    drop(chunk);
    array.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use iomill::Layout;

    /// With every layout the rivals find the pattern in the parts, page by page.
    #[test]
    fn parts_hold_what_the_page_map_says() {
        let base = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for layout in [Layout::Striping, Layout::Rotated, Layout::Hash].map(|layout| FileOptions::new().layout(layout))
        {
            let dir = base.path().join("array");
            let mut arena = Arena::fresh(&dir, 3).unwrap();
            let shape = Shape { len_bytes: 40 << 20, layout };
            arena.fill(&shape, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
            let target = arena.target().unwrap();
            assert!(target.total_bytes() > 20 << 20);
            for (index, part) in target.parts().iter().enumerate() {
                let bytes = fs::read(&part.path).unwrap();
                target.verify(index, 0, &bytes[..part.len_bytes as usize]).unwrap();
            }
            arena.clean_up().unwrap();
            assert!(!dir.exists());
        }
    }

    #[test]
    fn only_the_measured_file_goes_from_an_array_that_was_there() {
        let base = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let array = Array::create([base.path()]).unwrap();
        array.create_file("theirs", &FileOptions::new()).unwrap().close().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let abandoned = leftovers::name_of(By::Bench, ended.id());
        array.create_file(&abandoned, &FileOptions::new()).unwrap().close().unwrap();
        array.close().unwrap();
        let mut arena = Arena::existing(&[base.path().to_owned()]);
        let shape = Shape { len_bytes: 1 << 20, layout: FileOptions::new() };
        arena.fill(&shape, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
        drop(arena);
        let peek = ArrayOptions::new().peek([base.path()]).unwrap();
        assert_eq!(peek.list("").names().unwrap(), ["theirs"]);
    }
}
