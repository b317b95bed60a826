//! `iomill catalog`: the catalog as text, and a text as the catalog.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::arguments::{Catalog, CatalogWhat};
use crate::console::Answer;
use crate::context::Context;
use crate::destination::Destination;
use crate::failure::{Failure, Result};
use crate::source::Source;
use crate::streams;

pub fn run(context: &Context<'_>, arguments: &Catalog) -> Result<Answer> {
    match &arguments.what {
        CatalogWhat::Export { file } => {
            let text = context.options().export_catalog(context.starts()?)?;
            let Some(file) = file.as_deref().filter(|file| !Destination::is_stdout(Some(file))) else {
                return Ok(Answer::new(text.clone(), json!({ "catalog": text })));
            };
            if file.is_dir() {
                return Err(Failure::local("write", file)(io::ErrorKind::IsADirectory.into()));
            }
            // The old text, which may be the only copy of a catalog, stays until the new one is whole.
            let destination = Destination::open(Some(file), "catalog", true)?;
            destination.write(text.as_bytes())?;
            destination.finish()?;
            Ok(Answer::new("", json!({ "bytes": text.len() })))
        }
        CatalogWhat::Import { file } => {
            let text = match Source::is_stdin(file) {
                true => streams::stdin()
                    .and_then(io::read_to_string)
                    .map_err(Failure::local("read", Path::new("standard input")))?,
                false => fs::read_to_string(file).map_err(Failure::local("read", file))?,
            };
            let files = context.options().import_catalog(context.starts()?, &text)?;
            let said = format!("{files} files; run `iomill check` to compare them with what is on the drives\n");
            Ok(Answer::new(said, json!({ "files": files })))
        }
    }
}
