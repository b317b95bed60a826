//! Plain words: the subject of a sentence is a named thing, and a sentence is short.
//!
//! Comments, messages and pages are checked, with exceptions per file that only shrink. Comments and pages are read as
//! Markdown, and code in them is not checked. Non-goals: grammar and style, which readers judge. A machine finds only
//! the worst.

pub mod text;

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;

use super::finding::{EXCEPTIONS, Finding};
use super::markdown::{self, Block, Inline, inline};
use text::{Kind, stretches};

/// Words that hide the thing that acts.
const PRONOUNS: [&str; 6] = ["who", "whoever", "whose", "somebody", "nobody", "anybody"];
/// The most words in a sentence of a comment or a page. Readers check for 25.
const SENTENCE_MAX: usize = 40;

/// How many findings each file may still have, by path.
#[derive(Debug, Default, Deserialize)]
pub struct Exceptions {
    #[serde(default)]
    pronouns: BTreeMap<String, usize>,
    #[serde(default)]
    sentences: BTreeMap<String, usize>,
}

/// The violations in a file.
pub struct Prose {
    path: String,
    /// Line and word.
    pronouns: Vec<(usize, String)>,
    /// First line and words.
    sentences: Vec<(usize, usize)>,
}

impl Prose {
    /// Reads a page (`.md`) or a Rust file.
    pub fn read(path: &str, text: &str) -> Prose {
        let mut prose = Prose { path: path.into(), pronouns: Vec::new(), sentences: Vec::new() };
        if path.ends_with(".md") {
            prose.markdown(1, text);
            return prose;
        }
        for stretch in stretches(text) {
            match stretch.kind {
                Kind::Comment => prose.markdown(stretch.line, &stretch.text),
                Kind::Message => prose.words(stretch.line, &without_code(&stretch.text)),
            }
        }
        prose
    }

    fn markdown(&mut self, first: usize, text: &str) {
        for block in markdown::blocks(text) {
            let (Block::Heading(prose) | Block::Prose(prose)) = block else { continue };
            let mut sentence = Sentence::default();
            for part in inline(&prose.text) {
                let line = |at: usize| first + prose.line - 1 + newlines(&prose.text[..at]);
                match part {
                    Inline::Words(at, text) => {
                        self.words(line(at), text);
                        for word in text.split_whitespace() {
                            self.word(&mut sentence, line(at), word);
                        }
                    }
                    Inline::Code(at, _) => sentence.add(line(at)),
                    Inline::Link(..) => {}
                }
            }
            self.end(&mut sentence);
        }
    }

    fn word(&mut self, sentence: &mut Sentence, line: usize, word: &str) {
        if word.contains(char::is_alphanumeric) {
            sentence.add(line);
        }
        let closing = |c: char| matches!(c, ')' | ']' | '"' | '\'' | '*' | '_');
        if word.trim_end_matches(closing).ends_with(['.', '!', '?']) {
            self.end(sentence);
        }
    }

    fn end(&mut self, sentence: &mut Sentence) {
        let Sentence { line, words } = std::mem::take(sentence);
        if words > SENTENCE_MAX {
            self.sentences.push((line, words));
        }
    }

    fn words(&mut self, first: usize, text: &str) {
        for (at, line) in text.lines().enumerate() {
            for word in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
                if PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun)) {
                    self.pronouns.push((first + at, word.into()));
                }
            }
        }
    }
}

#[derive(Default)]
struct Sentence {
    line: usize,
    words: usize,
}

impl Sentence {
    fn add(&mut self, line: usize) {
        if self.words == 0 {
            self.line = line;
        }
        self.words += 1;
    }
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// A message without escapes, without `{}` and its name, and without the text between backticks.
fn without_code(message: &str) -> String {
    let mut kept = String::new();
    let mut until = None;
    let mut chars = message.chars();
    while let Some(char) = chars.next() {
        match (until, char) {
            (_, '\n') => kept.push('\n'),
            (None, '\\') => kept.push(chars.next().filter(|escaped| *escaped == '\n').unwrap_or(' ')),
            (None, '{') => until = Some('}'),
            (None, '`') => until = Some('`'),
            (None, char) => kept.push(char),
            (Some(end), char) if char == end => until = None,
            (Some(_), _) => {}
        }
    }
    kept
}

pub fn check(files: &[Prose], exceptions: &Exceptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let pronouns = file.pronouns.iter().map(|(line, word)| (*line, format!("`{word}`: name the thing")));
        findings.extend(ratchet(&file.path, pronouns.collect(), "pronouns", &exceptions.pronouns));
        let long =
            |words: &usize| format!("a sentence of {words} words, {SENTENCE_MAX} are allowed: say one fact in each");
        let sentences = file.sentences.iter().map(|(line, words)| (*line, long(words)));
        findings.extend(ratchet(&file.path, sentences.collect(), "sentences", &exceptions.sentences));
    }
    for (table, allowed) in [("pronouns", &exceptions.pronouns), ("sentences", &exceptions.sentences)] {
        for path in allowed.keys().filter(|path| !files.iter().any(|file| file.path == **path)) {
            findings.push(Finding::new(
                EXCEPTIONS,
                0,
                format!("{path} is gone: remove its exception in [prose.{table}]"),
            ));
        }
    }
    findings
}

/// All of a file's findings of one kind, if it has more than its exception allows; one finding if it has fewer.
fn ratchet(path: &str, found: Vec<(usize, String)>, table: &str, exceptions: &BTreeMap<String, usize>) -> Vec<Finding> {
    let now = found.len();
    let allowed = exceptions.get(path).copied();
    if now > allowed.unwrap_or(0) {
        return found.into_iter().map(|(line, what)| Finding::new(path, line, what)).collect();
    }
    let what = match allowed {
        Some(_) if now == 0 => format!("{path} is plain: remove its exception in [prose.{table}]"),
        Some(allowed) if now < allowed => format!("{path} has improved: write '{path}' = {now} in [prose.{table}]"),
        _ => return Vec::new(),
    };
    vec![Finding::new(EXCEPTIONS, 0, what)]
}

/// The tables of exceptions that the files need now, as TOML.
pub fn exceptions(files: &[Prose]) -> String {
    let mut toml = String::new();
    table(&mut toml, "pronouns", files, |file| file.pronouns.len());
    table(&mut toml, "sentences", files, |file| file.sentences.len());
    toml
}

fn table(toml: &mut String, name: &str, files: &[Prose], count: impl Fn(&Prose) -> usize) {
    let _ = writeln!(toml, "\n[prose.{name}]");
    for file in files.iter().filter(|file| count(file) > 0) {
        let _ = writeln!(toml, "'{}' = {}", file.path, count(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str, exceptions: &str) -> Vec<String> {
        let exceptions = toml::from_str(exceptions).unwrap();
        check(&[Prose::read(path, text)], &exceptions).into_iter().map(|f| f.to_string()).collect()
    }

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[Prose::read(path, text)], &Exceptions::default()).into_iter().map(|f| f.line).collect()
    }

    /// A sentence with this number of words.
    fn long(words: usize) -> String {
        format!("{}end.", "word ".repeat(words - 1))
    }

    #[test]
    fn bites_at_pronouns() {
        for word in PRONOUNS {
            let text =
                format!("//! {word}\nfn f() {{\n    // a\n    // {word}'s b\n    g(\"c {word} d\"); // e {word}.\n}}");
            assert_eq!(lines("a.rs", &text), [1, 4, 5, 5], "{word}");
            let page = format!("# A\n\n- b\n  {} c\n\n| {word} |\n|---|\n| d |\n", word.to_uppercase());
            assert_eq!(lines("a.md", &page), [4, 6], "{word}");
        }
        let text = format!("// a {}", PRONOUNS[0]);
        assert_eq!(findings("a.rs", &text, ""), ["a.rs:1: `who`: name the thing"]);
    }

    #[test]
    fn bites_at_long_sentences() {
        assert_eq!(lines("a.md", &long(40)), [0; 0]);
        let of_41 = "a.md:1: a sentence of 41 words, 40 are allowed: say one fact in each";
        assert_eq!(findings("a.md", &long(41), ""), [of_41]);
        let wrapped = format!("/// Short. {}\n/// {}", "word ".repeat(30), long(20));
        assert_eq!(lines("a.rs", &wrapped), [1]);
        assert_eq!(lines("a.rs", &format!("// 1. {}\n// 2. b", long(41))), [1]);
        assert_eq!(lines("a.md", &format!("{} `c.d` *e*\n{}", "word ".repeat(20), long(20))), [1]);
    }

    #[test]
    fn spares_the_innocent() {
        let pronoun = PRONOUNS[0];
        let code =
            format!("let {pronoun} = f(\"{pronoun}\", \"a {{{pronoun}}} `{pronoun}` \\n{pronoun}le\"); // `{pronoun}`");
        assert_eq!(lines("a.rs", &code), [0; 0]);
        assert_eq!(lines("a.rs", &format!("/// ```\n/// {pronoun} {}\n/// ```\nmod whole;", long(50))), [0; 0]);
        let breaks = [". ", "\n//\n// ", "\n// - ", "?\n// "];
        for separator in breaks {
            let text = format!("// {}{separator}{}", long(30).trim_end_matches('.'), long(30));
            assert_eq!(lines("a.rs", &text), [0; 0], "{separator:?}");
        }
        assert_eq!(lines("a.rs", &format!("f(); // {}\n// {}", long(40).trim_end_matches('.'), long(40))), [0; 0]);
        assert_eq!(lines("a.rs", &format!("f(\"{}\");", long(50))), [0; 0], "messages have no limit");
    }

    #[test]
    fn ratchets() {
        let text = format!("// {0} {0}\n// {1}", PRONOUNS[3], long(41));
        let exceptions = |pronouns: usize, sentences: usize| {
            format!("pronouns = {{ 'a.rs' = {pronouns} }}\nsentences = {{ 'a.rs' = {sentences} }}")
        };
        assert_eq!(findings("a.rs", &text, &exceptions(2, 1)), [""; 0]);
        assert_eq!(
            findings("a.rs", &text, &exceptions(1, 1)).len(),
            2,
            "all of a file's, since any may be the new one"
        );
        let improved = format!("{EXCEPTIONS}: a.rs has improved: write 'a.rs' = 2 in [prose.pronouns]");
        assert_eq!(findings("a.rs", &text, &exceptions(3, 1)), [improved]);
        let plain = ["pronouns", "sentences"]
            .map(|table| format!("{EXCEPTIONS}: a.rs is plain: remove its exception in [prose.{table}]"));
        assert_eq!(findings("a.rs", "// a", &exceptions(1, 1)), plain);
        assert_eq!(findings("b.rs", "// a", &exceptions(1, 1)).len(), 2, "gone");
    }

    #[test]
    fn prints_exceptions_that_fit() {
        #[derive(Deserialize)]
        struct File {
            prose: Exceptions,
        }
        let files = [Prose::read("a.rs", &format!("// {0} {0}", PRONOUNS[5])), Prose::read("b.md", &long(60))];
        let file: File = toml::from_str(&exceptions(&files)).unwrap();
        assert_eq!(check(&files, &file.prose), []);
    }
}
