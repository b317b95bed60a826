//! `iomill man`: manual pages, made from the definition of the command line.

use std::fs;
use std::io;

use clap_mangen::Man as Page;
use serde_json::json;

use crate::arguments::{self, Man};
use crate::console::Answer;
use crate::failure::{Failure, Result};

pub fn run(arguments: &Man) -> Result<Answer> {
    let command = arguments::definition();
    let Some(directory) = &arguments.out else {
        let text = render(&page(command)).map_err(Failure::stdout)?;
        return Ok(Answer::new(text.clone(), json!({ "page": text })));
    };
    let mut files = Vec::new();
    for page in with_subcommands(command).into_iter().map(page) {
        let path = directory.join(page.get_filename());
        let text = render(&page).map_err(Failure::local("make", &path))?;
        fs::write(&path, text).map_err(Failure::local("write", &path))?;
        files.push(path.display().to_string());
    }
    Ok(Answer::new("", json!({ "files": files })))
}

/// A command and its visible subcommands. `help` is left out: its page would repeat the others.
fn with_subcommands(command: clap::Command) -> Vec<clap::Command> {
    let shown =
        command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help").cloned();
    let below: Vec<clap::Command> = shown.flat_map(with_subcommands).collect();
    [command].into_iter().chain(below).collect()
}

fn page(command: clap::Command) -> Page {
    // `help` has no page, so no page may refer to it.
    let mut command = command;
    command.build();
    if command.find_subcommand("help").is_some() {
        command = command.mut_subcommand("help", |help| help.hide(true));
    }
    Page::new(command).source(concat!("iomill ", env!("CARGO_PKG_VERSION")))
}

fn render(page: &Page) -> io::Result<String> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
