//! `iomill rm`: deletes files. If one cannot be deleted, the others are deleted all the same.

use std::collections::BTreeSet;

use serde_json::json;

use super::files::several;
use crate::arguments::Names;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::selection;

pub fn run(context: &Context<'_>, arguments: &Names) -> Result<Answer> {
    // One fsync of the log makes all deletions durable.
    let array = context.options().sync_changes(false).open_at(context.starts()?)?;
    context.with(array, |array| {
        let (mut names, mut failures) = (Vec::new(), Vec::new());
        for name in &arguments.names {
            match selection::select(&|prefix| array.list(prefix), name, arguments.recursive) {
                Ok(selection) => names.extend(selection.files.into_iter().map(|selected| selected.file.name)),
                Err(failure) => failures.push(failure),
            }
        }
        // Several arguments may stand for one file.
        let mut seen = BTreeSet::new();
        names.retain(|name: &String| seen.insert(name.clone()));
        let mut progress = Progress::of_files(context.global);
        let all = names.len();
        let removed = delete(names, &mut failures, |name, done| {
            array.delete(name)?;
            progress.set(done as u64, all as u64);
            Ok(())
        });
        array.sync()?;
        Ok(Answer { failures, ..Answer::new("", json!({ "removed": removed })) })
    })
}

/// Deletes files, and returns the names of those that are deleted. A failure that the next one would meet, too, ends
/// it. `delete_one` gets the number of files with this one.
fn delete(
    names: Vec<String>,
    failures: &mut Vec<Failure>,
    mut delete_one: impl FnMut(&str, usize) -> Result<()>,
) -> Vec<String> {
    let (all, mut removed) = (names.len(), Vec::new());
    for name in names {
        let deleted = delete_one(&name, removed.len() + 1);
        if deleted.is_ok() {
            removed.push(name);
        }
        if let Err(failure) = several(deleted, failures) {
            failures.push(failure.and(format!("{} of {all} files are deleted", removed.len())));
            break;
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when such a failure was all that the command said.
    #[test]
    fn what_is_deleted_is_told_also_after_a_failure_that_ends_it() {
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let mut failures = Vec::new();
        let removed = delete(names, &mut failures, |name, _| match name {
            "b" => Err(Failure::Exists { what: "b".to_owned() }),
            "d" => Err(Failure::Interrupted { signal: libc::SIGTERM }),
            _ => Ok(()),
        });
        assert_eq!(removed, ["a", "c"]);
        assert_eq!(failures.len(), 2);
        assert!(failures[1].to_string().ends_with("2 of 4 files are deleted"), "{}", failures[1]);
    }
}
