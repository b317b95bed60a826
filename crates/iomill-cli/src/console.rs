//! The output of a command: its answer on the standard output, everything else on the standard error.
//!
//! Goals: with `--json` exactly one document per stream and failure. If the reader of the output goes away, the command
//! ends without a message.

use std::ffi::OsString;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::arguments::Global;
use crate::failure::{Failure, Result};
use crate::human;
use crate::streams;

/// The result of a command.
#[derive(Debug, Default)]
pub struct Answer {
    /// For people: whole lines, or nothing.
    pub text: String,
    /// For programs: the keys of one object.
    pub json: Map<String, Value>,
    /// For programs: several objects, each on a line of its own, instead of `json`.
    pub lines: Option<Vec<Value>>,
    /// Failures after which the command went on.
    pub failures: Vec<Failure>,
    /// Whether nothing more is printed, because the command used the standard output itself.
    pub is_silent: bool,
}

impl Answer {
    /// An answer without failures. `json` must be an object.
    pub fn new(text: impl Into<String>, json: Value) -> Answer {
        let json = match json {
            Value::Object(map) => map,
            other => Map::from_iter([("result".to_owned(), other)]),
        };
        Answer { text: text.into(), json, ..Answer::default() }
    }

    /// An answer of several objects. Each of `lines` must be an object.
    pub fn lines(text: impl Into<String>, lines: Vec<Value>) -> Answer {
        Answer { text: text.into(), lines: Some(lines), ..Answer::default() }
    }
}

/// Prints answers, notices and failures.
#[derive(Debug)]
pub struct Console {
    program: &'static str,
    command: &'static str,
    json: bool,
    quiet: bool,
}

impl Console {
    /// The console of one command of a program. Messages begin with both names.
    pub fn of(program: &'static str, command: &'static str, global: &Global) -> Console {
        Console { program, command, json: global.wants_document(), quiet: global.quiet }
    }

    /// Prints how a command ended, and returns the exit code.
    pub fn finish(&self, result: Result<Answer>, notices: &[String]) -> u8 {
        if !self.json && !self.quiet {
            for notice in notices {
                to_stderr(&format!("note: {}\n", human::printable(notice)));
            }
        }
        let failures = match result {
            Ok(mut answer) => {
                let mut failures = std::mem::take(&mut answer.failures);
                if let Err(failure) = self.print(answer, notices) {
                    failures.push(failure);
                }
                failures
            }
            Err(failure) => vec![failure],
        };
        for failure in &failures {
            self.complain(failure, notices);
        }
        failures.iter().map(Failure::exit_code).max().unwrap_or(0)
    }

    fn print(&self, mut answer: Answer, notices: &[String]) -> Result<()> {
        if answer.is_silent {
            return Ok(());
        }
        if self.json {
            let documents = answer.lines.unwrap_or_else(|| vec![Value::Object(answer.json)]);
            let lines = documents.into_iter().map(|mut document| {
                document["notices"] = json!(notices);
                format!("{document}\n")
            });
            answer.text = lines.collect();
        }
        to_stdout(&answer.text)
    }

    fn complain(&self, failure: &Failure, notices: &[String]) {
        if matches!(failure, Failure::BrokenPipe) {
            return;
        }
        if self.json {
            to_stderr(&format!("{}\n", error_document(&failure.to_string(), failure.kind(), notices)));
        } else {
            let message = human::printable_lines(&failure.to_string());
            to_stderr(&format!("{}: {}: {message}\n", self.program, self.command));
        }
    }
}

fn error_document(message: &str, kind: &str, notices: &[String]) -> Value {
    json!({ "error": { "message": message, "kind": kind }, "notices": notices })
}

/// Whether a command line asks for a JSON document. It is asked before the line is parsed, so that errors of the line
/// are one too.
pub fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Prints why a command line could not be parsed, or the help that it asks for. Returns the exit code.
pub fn usage(error: &clap::Error, json: bool) -> u8 {
    if !error.use_stderr() {
        return match to_stdout(&error.render().to_string()) {
            Ok(()) => 0,
            Err(failure) => {
                if !matches!(failure, Failure::BrokenPipe) {
                    to_stderr(&format!("iomill: {failure}\n"));
                }
                failure.exit_code()
            }
        };
    }
    if json {
        let message = error.render().to_string();
        let message = message.trim_start_matches("error: ").trim_end();
        to_stderr(&format!("{}\n", error_document(message, "usage", &[])));
    } else {
        to_stderr(&error.render().to_string());
    }
    2
}

/// Prints on the standard output. An empty text needs none.
pub fn to_stdout(text: &str) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    streams::stdout().and_then(|mut out| out.write_all(text.as_bytes())).map_err(Failure::stdout)
}

/// Ignores errors: if the standard error cannot be written to, there is no other place for a message.
fn to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_always_an_object() {
        assert_eq!(Answer::new("", json!({"a": 1})).json["a"], 1);
        assert_eq!(Answer::new("", json!(3)).json["result"], 3);
    }
}
