//! Names of files in the array, as commands take them.

use std::path::Path;

use iomill::check_name;
use iomill::{Array, Error};

use crate::failure::{Failure, Result, shown};
use crate::source::Source;

/// The name that `put` gives: the one in the arguments, or the source's file name.
pub fn for_source(source: &Path, name: Option<&str>) -> Result<String> {
    let is_stream = Source::is_stdin(source);
    let prefix = match name {
        Some(name) if !name.ends_with('/') => return checked(name.to_owned()),
        other => other.unwrap_or(""),
    };
    if is_stream {
        return Err(Failure::Usage("standard input has no name: give one, as in `iomill put - NAME`".to_owned()));
    }
    let file_name = source.file_name().ok_or_else(|| {
        Failure::Usage(format!("{} has no file name: give a name, as in `iomill put SOURCE NAME`", shown(source)))
    })?;
    let file_name = file_name.to_str().ok_or_else(|| {
        let why = "is not UTF-8, as names in an array are: give a name, as in `iomill put SOURCE NAME`";
        Failure::Usage(format!("the file name of {} {why}", shown(source)))
    })?;
    checked(format!("{prefix}{file_name}"))
}

/// The name that `mv` gives: a target that ends with `/` keeps the last part of the old name.
pub fn for_target(from: &str, to: &str) -> Result<String> {
    checked(if to.ends_with('/') { format!("{to}{}", last_part(from)) } else { to.to_owned() })
}

/// The part after the last slash.
pub fn last_part(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, last)| last)
}

/// A name for the file of a replay, which no other file has.
pub fn for_replay() -> Result<String> {
    Ok(format!("replay-{:016x}", random()?))
}

/// A name beside the destination of `get`, until the file is complete.
pub fn temporary_file() -> Result<String> {
    Ok(format!(".iomill-get-{:016x}", random()?))
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    // The kernel gives up to 256 bytes whole or not at all.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::Tool { what: "random bytes".to_owned(), why: error.to_string() })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Refuses a name that is taken, unless it may be replaced. Returns whether it is taken.
pub fn refuse_taken(array: &Array, name: &str, force: bool) -> Result<bool> {
    match array.stat(name) {
        Ok(_) if force => Ok(true),
        Ok(_) => Err(Failure::Exists { what: format!("a file named {name:?}") }),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A name, if an array can have it.
pub fn checked(name: String) -> Result<String> {
    check_name(&name)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_give_their_names() {
        let name = |source: &str, name| for_source(Path::new(source), name);
        assert_eq!(name("dir/file", None).unwrap(), "file");
        assert_eq!(name("dir/file", Some("a/b")).unwrap(), "a/b");
        assert_eq!(name("dir/file", Some("a/")).unwrap(), "a/file");
        assert_eq!(name("-", Some("a")).unwrap(), "a");
        for (source, given) in
            [("-", None), ("-", Some("a/")), ("..", None), ("/", None), ("f", Some("a\0b")), ("f", Some("../f"))]
        {
            assert_eq!(name(source, given).unwrap_err().exit_code(), 2, "{source} {given:?}");
        }
    }

    #[test]
    fn targets_that_end_with_a_slash_keep_the_last_part() {
        assert_eq!(for_target("a/b/c", "d/").unwrap(), "d/c");
        assert_eq!(for_target("a/b/c", "d").unwrap(), "d");
        assert!(for_target("a", "b//").is_err());
    }
}
