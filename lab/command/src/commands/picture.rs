//! `iomill-lab picture`.

use std::env;

use iomill_bench::picture::{self, Settings};

use super::common::{defaults_only, named_or_fresh, on, reported};
use crate::arguments::BenchPicture;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::destination::check_report;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;

pub fn run(context: &Context<'_>, arguments: &BenchPicture) -> Result<Answer> {
    defaults_only(context, "picture compares with")?;
    check_report("--svg", &arguments.svg)?;
    let settings = Settings {
        size_bytes: arguments.size,
        options: context.options(),
        rounds: arguments.times.rounds.into(),
        slice: arguments.times.slice(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.times.place.dir())?;
    let report = on(context, &interrupt, arena, |arena, cancel, stage| picture::run(arena, &settings, cancel, stage))?;
    // The document is written first: then a picture that cannot be written loses no results.
    let answer = reported(context, &report)?;
    if report.cancelled {
        context.note(["the measurement was cancelled, so there is no picture".to_owned()]);
        return Ok(answer);
    }
    let drawn = picture::svg(&report, &command_line())?;
    std::fs::write(&arguments.svg, drawn).map_err(Failure::local("write", &arguments.svg))?;
    context.note([format!("the picture is in {}", arguments.svg.display())]);
    Ok(answer)
}

/// The command line of this process, quoted for a shell.
fn command_line() -> String {
    let words = env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    [vec!["iomill".to_owned()], words.collect()].concat().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(
            ["--svg", "a/b.svg", "a b", "", "it's"].map(quoted),
            ["--svg", "a/b.svg", "'a b'", "''", "'it'\\''s'"]
        );
    }
}
