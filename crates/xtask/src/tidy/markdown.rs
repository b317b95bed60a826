//! Markdown as our pages and comments use it: headings, paragraphs, lists, tables, fenced and indented code, code
//! spans, links.
//!
//! Goals: where prose is, where code is, and where links lead, each with its line. Non-goals: the rest of the language,
//! such as HTML and nested quotes, which our pages do not use.

/// A part of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    /// A heading.
    Heading(Prose),
    /// A paragraph, an item of a list, or a cell of a table.
    Prose(Prose),
    /// Code between fences, or indented; then the language is empty.
    Code {
        /// The line of its first line of code, from 1.
        line: usize,
        language: String,
        text: String,
    },
}

/// Text that belongs together.
#[derive(Debug, PartialEq, Eq)]
pub struct Prose {
    /// The line of its first character, from 1.
    pub line: usize,
    /// Its lines as in the file, without the marks of headings, lists and tables.
    pub text: String,
}

/// A part of a text that belongs together. Each has its offset in bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Inline<'a> {
    /// Words.
    Words(usize, &'a str),
    /// Code between backticks.
    Code(usize, &'a str),
    /// The target of a link or an image.
    Link(usize, &'a str),
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut reader = Reader::default();
    for (at, line) in page.lines().enumerate() {
        reader.line(at + 1, line);
    }
    reader.end();
    reader.found
}

/// The inline parts of a text.
pub fn inline(text: &str) -> Vec<Inline<'_>> {
    let mut found = Vec::new();
    let (mut at, mut from) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        let (part, length) = if rest.starts_with('`') {
            let ticks = rest.len() - rest.trim_start_matches('`').len();
            let Some(inner) = closing(&rest[ticks..], ticks) else {
                at += ticks;
                continue;
            };
            (Inline::Code(at, &rest[ticks..ticks + inner]), inner + 2 * ticks)
        } else if let Some((skip, target)) = link(rest) {
            (Inline::Link(at, target), skip)
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        found.extend((from < at).then(|| Inline::Words(from, &text[from..at])));
        found.push(part);
        at += length;
        from = at;
    }
    found.extend((from < text.len()).then(|| Inline::Words(from, &text[from..])));
    found
}

/// The position of a run of exactly this number of backticks.
fn closing(text: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = text[at..].find('`').map(|next| at + next) {
        let run = text[next..].len() - text[next..].trim_start_matches('`').len();
        if run == ticks {
            return Some(next);
        }
        at = next + run;
    }
    None
}

/// The length and the target of `](target)`, or of the rest of a definition `[name]: target`.
fn link(rest: &str) -> Option<(usize, &str)> {
    if let Some(inside) = rest.strip_prefix("](") {
        let end = inside.find(')')?;
        let target = inside[..end].split_whitespace().next().unwrap_or_default();
        return Some((end + 3, target));
    }
    let inside = rest.strip_prefix("]: ")?;
    let target = inside.split_whitespace().next()?;
    Some((3 + inside.find(target)? + target.len(), target))
}

#[derive(Default)]
struct Reader {
    found: Vec<Block>,
    /// The paragraph or item that the next line may continue.
    open: Option<Prose>,
    /// The fence that ends the code, and where the code is in `found`.
    fence: Option<&'static str>,
    in_list: bool,
    after_blank: bool,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) {
        let text = line.trim_start();
        if let Some(fence) = self.fence {
            match (text.trim_end() == fence, self.found.last_mut()) {
                (true, _) => self.fence = None,
                (false, Some(Block::Code { text, .. })) => text.extend([line, "\n"]),
                (false, _) => {}
            }
            return;
        }
        let indent = line.len() - text.len();
        if text.is_empty() {
            self.end();
            self.after_blank = true;
            return;
        }
        let after_blank = std::mem::take(&mut self.after_blank) || self.found.is_empty();
        self.in_list &= indent > 0 || !after_blank;
        if let Some(fence) = ["```", "~~~"].into_iter().find(|fence| text.starts_with(fence)) {
            self.end();
            let language = text[fence.len()..].trim().to_owned();
            self.found.push(Block::Code { line: number + 1, language, text: String::new() });
            self.fence = Some(fence);
        } else if indent >= 4 && after_blank && !self.in_list && self.open.is_none() {
            self.found.push(Block::Code { line: number, language: String::new(), text: format!("{text}\n") });
            self.after_blank = true;
        } else if text.starts_with('#') {
            self.end();
            let text = text.trim_start_matches('#').trim().to_owned();
            self.found.push(Block::Heading(Prose { line: number, text }));
        } else if text.starts_with('|') {
            self.end();
            let cells = cells(text).into_iter().map(|text| Block::Prose(Prose { line: number, text }));
            self.found.extend(cells);
        } else if let Some(item) = item(text) {
            self.end();
            self.in_list = true;
            self.open = Some(Prose { line: number, text: item.to_owned() });
        } else if let Some(open) = &mut self.open {
            open.text.extend(["\n", text]);
        } else {
            self.open = Some(Prose { line: number, text: text.to_owned() });
        }
    }

    fn end(&mut self) {
        self.found.extend(self.open.take().map(Block::Prose));
    }
}

/// What follows the mark of an item of a list.
fn item(text: &str) -> Option<&str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = match digits {
        0 => text.strip_prefix(['-', '*', '+'])?,
        _ => text[digits..].strip_prefix(['.', ')'])?,
    };
    rest.strip_prefix(' ')
}

/// The cells of a row of a table. A row of lines has none.
fn cells(row: &str) -> Vec<String> {
    if row.chars().all(|c| matches!(c, '|' | '-' | ':' | ' ')) {
        return Vec::new();
    }
    let (mut cells, mut in_code, mut escaped) = (vec![String::new()], false, false);
    for char in row.trim().trim_matches('|').chars() {
        in_code ^= char == '`';
        match cells.last_mut() {
            Some(cell) if char != '|' || in_code || escaped => cell.push(char),
            _ => cells.push(String::new()),
        }
        escaped = char == '\\';
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prose(line: usize, text: &str) -> Block {
        Block::Prose(Prose { line, text: text.to_owned() })
    }

    fn code(line: usize, language: &str, text: &str) -> Block {
        Block::Code { line, language: language.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn blocks_are_told_apart() {
        let page =
            "# A\na\nb\n\n- c\n  d\n- e\n\n```sh\nf\n\ng\n```\n| h | `i|j` |\n|---|:-:|\nk\n\n    l\n    m\n\n1. n\n";
        let heading = Block::Heading(Prose { line: 1, text: "A".to_owned() });
        let expected = [
            heading,
            prose(2, "a\nb"),
            prose(5, "c\nd"),
            prose(7, "e"),
            code(10, "sh", "f\n\ng\n"),
            prose(14, "h"),
            prose(14, "`i|j`"),
            prose(16, "k"),
            code(18, "", "l\n"),
            code(19, "", "m\n"),
            prose(21, "n"),
        ];
        assert_eq!(blocks(page), expected);
        assert_eq!(blocks("- a\n\n      b\n"), [prose(1, "a"), prose(3, "b")], "an item goes on");
        assert_eq!(blocks("```\nnever closed"), [code(2, "", "never closed\n")]);
    }

    #[test]
    fn inline_parts_are_told_apart() {
        use Inline::{Code, Link, Words};
        assert_eq!(
            inline("a `b` [c](d.md) e"),
            [Words(0, "a "), Code(2, "b"), Words(5, " [c"), Link(8, "d.md"), Words(15, " e")]
        );
        assert_eq!(inline("``a`b`` c"), [Code(0, "a`b"), Words(7, " c")]);
        assert_eq!(inline("[r]: z#q"), [Words(0, "[r"), Link(2, "z#q")]);
        assert_eq!(inline("it's ` open é"), [Words(0, "it's ` open é")]);
    }
}
