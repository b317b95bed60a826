//! `iomill man`: made from the definition of the command line.

use std::fs;
use std::io;

use clap::CommandFactory;
use clap_mangen::Man as Page;
use serde_json::json;

use crate::arguments::{Cli, Man};
use crate::console::Answer;
use crate::failure::{Failure, Result};

pub fn run(arguments: &Man) -> Result<Answer> {
    let mut command = Cli::command();
    command.build();
    let Some(directory) = &arguments.out else {
        let text = render(&page(command)).map_err(Failure::stdout)?;
        return Ok(Answer::new(text.clone(), json!({ "page": text })));
    };
    let mut files = Vec::new();
    let subcommands: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    for page in [command].into_iter().chain(subcommands).map(page) {
        let path = directory.join(page.get_filename());
        let text = render(&page).map_err(Failure::local("make", &path))?;
        fs::write(&path, text).map_err(Failure::local("write", &path))?;
        files.push(path.display().to_string());
    }
    Ok(Answer::new("", json!({ "files": files })))
}

fn page(command: clap::Command) -> Page {
    Page::new(command).source(concat!("iomill ", env!("CARGO_PKG_VERSION")))
}

fn render(page: &Page) -> io::Result<String> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
