//! Which files of the array a command takes: by name, by wildcards, or all below a prefix.
//!
//! Rules:
//! 1. A name that a file has is that file, also if it looks like a pattern.
//! 2. With `-r` a name stands for the file and all files below it, and `.` for all files. An empty name stands for
//!    nothing: `rm -r "$DIR/"` in a script without that variable must not delete all files.
//! 3. A pattern stands for all files that match it. With `-r` it stands for all files below what matches, too.

use iomill::{Error, Listed, ListedFile, Listing};

use crate::failure::{Failure, Result};
use crate::glob::Pattern;
use crate::naming;

/// A file that a command takes.
#[derive(Debug)]
pub struct Selected {
    /// Its metadata.
    pub file: ListedFile,
    /// Its path below a destination, in parts between slashes.
    pub relative: String,
}

/// The files of one argument.
#[derive(Debug)]
pub struct Selection {
    /// The files, in the order of their names. There is at least one.
    pub files: Vec<Selected>,
    /// Whether the argument named one file.
    pub is_one: bool,
    /// Whether all relative paths begin with the last part of the argument.
    pub has_root: bool,
}

/// The files that an argument stands for. `entries` lists the files of the array by prefix.
pub fn select(entries: &dyn Fn(&str) -> Listing, argument: &str, recursive: bool) -> Result<Selection> {
    let name = argument.trim_end_matches('/');
    if matches!(name, "" | "/.") {
        return Err(Failure::Usage(format!("{argument:?} is no name; name a file, or `.` with `-r` for all files")));
    }
    let own = file_of(entries, name)?;
    if let Some(file) = own.as_ref().filter(|_| !recursive && name == argument) {
        let relative = naming::last_part(name).to_owned();
        return Ok(Selection { files: vec![Selected { file: file.clone(), relative }], is_one: true, has_root: false });
    }
    let has_root = !is_inside(name);
    let pattern = if own.is_some() { None } else { Pattern::new(name) };
    let (files, has_root) = match pattern {
        Some(pattern) => (matching(entries, &pattern, recursive)?, false),
        None if recursive => (below(entries, name)?, has_root),
        None => (Vec::new(), false),
    };
    if !files.is_empty() {
        return Ok(Selection { files, is_one: false, has_root });
    }
    let failure = Failure::from(Error::not_found(argument.to_owned()));
    let has_below = !recursive && first(entries, &format!("{name}/"))?.is_some();
    Err(if has_below { failure.and("there are files below it, which `-r` takes") } else { failure })
}

fn first(entries: &dyn Fn(&str) -> Listing, prefix: &str) -> Result<Option<ListedFile>> {
    files_of(entries, prefix).next().transpose()
}

/// The file of a name. It comes first of all names that begin so.
fn file_of(entries: &dyn Fn(&str) -> Listing, name: &str) -> Result<Option<ListedFile>> {
    Ok(first(entries, name)?.filter(|file| file.name == name))
}

fn files_of(entries: &dyn Fn(&str) -> Listing, prefix: &str) -> impl Iterator<Item = Result<ListedFile>> + use<> {
    entries(prefix).filter_map(|entry| match entry {
        Ok(Listed::File(file)) => Some(Ok(file)),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

/// Whether a name stands for the content of a directory, as `dir/.` does with `cp`.
fn is_inside(name: &str) -> bool {
    name == "." || name.ends_with("/.")
}

/// All files below a name, and the file of the name. Below a destination they keep the last part of the name, as with
/// `cp -r`.
fn below(entries: &dyn Fn(&str) -> Listing, name: &str) -> Result<Vec<Selected>> {
    let all = name == ".";
    let (inside, kept) = match name.strip_suffix("/.").or(all.then_some("")) {
        Some("") => (String::new(), 0),
        Some(inside) => (format!("{inside}/"), inside.len() + 1),
        None => (format!("{name}/"), name.len() - naming::last_part(name).len()),
    };
    let mut files = Vec::new();
    if let Some(file) = if all { None } else { file_of(entries, name)? } {
        files.push(Selected { relative: naming::last_part(name).to_owned(), file });
    }
    for file in files_of(entries, &inside) {
        let file = file?;
        files.push(Selected { relative: file.name[kept..].to_owned(), file });
    }
    Ok(files)
}

/// All files that match. Below a destination they keep what follows the last slash before the first wildcard.
fn matching(entries: &dyn Fn(&str) -> Listing, pattern: &Pattern, recursive: bool) -> Result<Vec<Selected>> {
    let kept = pattern.prefix().rfind('/').map_or(0, |slash| slash + 1);
    let mut files = Vec::new();
    for file in files_of(entries, pattern.prefix()) {
        let file = file?;
        let mut parents = file.name.match_indices('/').map(|(slash, _)| &file.name[..slash]);
        if pattern.matches(&file.name) || (recursive && parents.any(|parent| pattern.matches(parent))) {
            files.push(Selected { relative: file.name[kept..].to_owned(), file });
        }
    }
    Ok(files)
}
