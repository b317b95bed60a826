//! The text that readers see of a Rust file: its comments, and its string literals of more than one word.
//!
//! Comments are not tokens, so this scans characters. It only knows where comments and literals begin and end.

/// Text that readers see.
#[derive(Debug, PartialEq, Eq)]
pub struct Stretch {
    pub kind: Kind,
    /// The line of its first character, from 1.
    pub line: usize,
    /// The lines as in the file, without the marks of a comment.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Consecutive lines of comment, or one comment beside code.
    Comment,
    /// The inside of a string literal.
    Message,
}

/// Every stretch of a Rust file, in order.
pub fn stretches(text: &str) -> Vec<Stretch> {
    let bytes = text.as_bytes();
    let mut scan = Scan::default();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                let end = find(text, at, "\n");
                scan.comment(text, at, &text[at..end]);
                end
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = block_end(text, at);
                let inner = &text[at + 2..end];
                scan.push(Kind::Comment, inner.strip_suffix("*/").unwrap_or(inner));
                end
            }
            b'"' => {
                let end = string_end(text, at + 1);
                scan.message(&text[at + 1..end]);
                end + 1
            }
            b'r' => raw_string(text, at).map_or(at + 1, |(start, inner, end)| {
                scan.message(&text[start..inner]);
                end
            }),
            b'\'' => char_end(text, at),
            _ => at + 1,
        }
        .min(bytes.len());
        scan.line += bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
        at = end;
    }
    scan.found
}

struct Scan {
    found: Vec<Stretch>,
    line: usize,
    /// The last line of comment, if no code is before it, and its mark.
    open: Option<(usize, &'static str)>,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan { found: Vec::new(), line: 1, open: None }
    }
}

impl Scan {
    fn push(&mut self, kind: Kind, text: &str) {
        self.found.push(Stretch { kind, line: self.line, text: text.into() });
    }

    fn message(&mut self, text: &str) {
        if text.contains(char::is_whitespace) {
            self.push(Kind::Message, text);
        }
    }

    /// Takes a line of comment that starts at `at`.
    fn comment(&mut self, file: &str, at: usize, comment: &str) {
        let marker = ["///", "//!", "//"].into_iter().find(|marker| comment.starts_with(marker)).unwrap_or_default();
        let body = &comment[marker.len()..];
        let body = body.strip_prefix(' ').unwrap_or(body);
        let alone = file[..at].rsplit('\n').next().is_none_or(|before| before.trim().is_empty());
        let continues = alone && self.open == Some((self.line - 1, marker));
        match self.found.last_mut().filter(|_| continues) {
            Some(last) => {
                last.text.push('\n');
                last.text.push_str(body);
            }
            None => self.push(Kind::Comment, body),
        }
        self.open = alone.then_some((self.line, marker));
    }
}

/// The next position of `what`, or the end.
fn find(text: &str, at: usize, what: &str) -> usize {
    text[at..].find(what).map_or(text.len(), |length| at + length)
}

/// The end of the block comment at `at`. Block comments nest.
fn block_end(text: &str, mut at: usize) -> usize {
    let mut depth = 0;
    loop {
        let (opens, closes) = (find(text, at, "/*"), find(text, at, "*/"));
        if closes == text.len() {
            return closes;
        }
        if opens < closes {
            depth += 1;
            at = opens + 2;
        } else {
            depth -= 1;
            at = closes + 2;
        }
        if depth == 0 {
            return at;
        }
    }
}

/// The closing quote of the string that starts at `at`.
fn string_end(text: &str, mut at: usize) -> usize {
    loop {
        let (quote, escape) = (find(text, at, "\""), find(text, at, "\\"));
        if quote <= escape {
            return quote;
        }
        at = (escape + 2).min(text.len());
        if !text.is_char_boundary(at) {
            at = find(text, escape + 1, "\"");
        }
    }
}

/// Start and end of the content of the raw string at `at`, and the end of the literal.
fn raw_string(text: &str, at: usize) -> Option<(usize, usize, usize)> {
    let hashes = text[at + 1..].bytes().take_while(|byte| *byte == b'#').count();
    let start = at + 1 + hashes;
    let quoted = text[start..].starts_with('"');
    let close = format!("\"{}", "#".repeat(hashes));
    quoted.then(|| {
        let inner = find(text, start + 1, &close);
        (start + 1, inner, inner + close.len())
    })
}

/// The end of the character at `at`, or of the quote of a lifetime.
fn char_end(text: &str, at: usize) -> usize {
    let mut rest = text[at + 1..].chars();
    match (rest.next(), rest.next()) {
        (Some('\\'), Some(escaped)) => find(text, at + 2 + escaped.len_utf8(), "'") + 1,
        (Some(one), Some('\'')) => at + 2 + one.len_utf8(),
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(Kind, usize, String)> {
        stretches(text).into_iter().map(|s| (s.kind, s.line, s.text)).collect()
    }

    #[test]
    fn joins_lines_of_comment() {
        let text = "//! a\n//!\n//! b\n/// c\nfn f() {\n    // d\n    // e\n    g(); // h\n    // i\n}\n";
        let comments =
            [(1, "a\n\nb"), (4, "c"), (6, "d\ne"), (8, "h"), (9, "i")].map(|(l, t)| (Kind::Comment, l, t.into()));
        assert_eq!(found(text), comments);
        assert_eq!(
            found("/* a /* b */\n c */ d // e"),
            [(Kind::Comment, 1, " a /* b */\n c ".into()), (Kind::Comment, 2, "e".into())]
        );
    }

    #[test]
    fn tells_literals_from_comments() {
        let text = "f(\"a // b \\\" c\", \"one\", '\"', '\\'', 'é');\ng::<'a>(r#\"d \" e\"#, b\"h i\n j\"); // k \"l";
        let strings = [(1, "a // b \\\" c"), (2, "d \" e"), (2, "h i\n j")];
        let mut all: Vec<_> = strings.map(|(l, t)| (Kind::Message, l, t.to_string())).into();
        all.push((Kind::Comment, 3, "k \"l".into()));
        assert_eq!(found(text), all);
    }

    #[test]
    fn stands_what_does_not_end() {
        for text in ["\"a b", "r#\"a b", "/* a b", "'", "'\\", "\"\\", "\"\\é", "//", "r"] {
            stretches(text);
        }
    }
}
