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
        let (all, mut removed) = (names.len() as u64, Vec::new());
        for name in names {
            let deleted = array.delete(&name).map_err(Failure::from);
            if deleted.is_ok() {
                removed.push(name);
            }
            several(deleted, &mut failures)?;
            progress.set(removed.len() as u64, all);
        }
        array.sync()?;
        Ok(Answer { failures, ..Answer::new("", json!({ "removed": removed })) })
    })
}
