//! A page as the checks of documentation see it: its links, its headings, its commands. Non-goals: judging them.

use crate::tidy::markdown::{self, Block, Inline, Prose, inline};

/// The parts of a Markdown file that the checks use.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) path: String,
    /// Line and target of links and images.
    pub(super) links: Vec<(usize, String)>,
    /// The fragments of its headings.
    pub(super) anchors: Vec<String>,
    /// Line and text of the lines in fenced blocks of language `sh`, with continued lines joined.
    pub(super) shell: Vec<(usize, String)>,
}

pub(super) fn parse(path: &str, text: &str) -> Page {
    let mut page = Page { path: path.into(), ..Page::default() };
    for block in markdown::blocks(text) {
        match block {
            Block::Heading(prose) => {
                let words = inline(&prose.text).into_iter().map(|part| match part {
                    Inline::Words(_, text) | Inline::Code(_, text) => text,
                    Inline::Link(..) => "",
                });
                let anchor = slug(&words.collect::<String>(), &page.anchors);
                page.anchors.push(anchor);
                page.links.extend(links_of(&prose));
            }
            Block::Prose(prose) => page.links.extend(links_of(&prose)),
            Block::Code { line, language, text } if language == "sh" => page.shell.extend(joined(&text, line)),
            Block::Code { .. } => {}
        }
    }
    page
}

/// Line and target of the links in a text.
fn links_of(prose: &Prose) -> Vec<(usize, String)> {
    let links = inline(&prose.text).into_iter().filter_map(|part| match part {
        Inline::Link(at, target) => Some((prose.line + prose.text[..at].matches('\n').count(), target.to_owned())),
        Inline::Words(..) | Inline::Code(..) => None,
    });
    links.collect()
}

/// The fragment that GitHub gives a heading: letters, digits, `-` and `_` in lower case, spaces as `-`. A repeated
/// heading gets a number.
fn slug(heading: &str, taken: &[String]) -> String {
    let keep = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let base = heading.trim().to_lowercase().chars().filter(keep).collect::<String>().replace(' ', "-");
    let numbered = (1..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone()).chain(numbered).find(|slug| !taken.contains(slug)).unwrap_or(base)
}

/// The lines of a block, numbered from `start`. A line that ends in a backslash is joined to the next.
fn joined(block: &str, start: usize) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (at, line) in block.lines().enumerate() {
        let (text, goes_on) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
        match lines.last_mut().filter(|_| continues) {
            Some((_, last)) => last.push_str(text),
            None => lines.push((start + at, text.to_string())),
        }
        continues = goes_on;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_page() {
        let text = "# A `b`: C\n\n[x](y.md) ![i](p.svg)\n[r]\n\n## A b C\n```sh\na \\\n  b\nc\n```\n```rust\nd\n```\n\n[r]: z#q\n";
        let page = parse("p.md", text);
        assert_eq!(page.links, [(3, "y.md".into()), (3, "p.svg".into()), (16, "z#q".into())]);
        assert_eq!(page.anchors, ["a-b-c", "a-b-c-1"]);
        assert_eq!(page.shell, [(8, "a   b".into()), (10, "c".into())]);
    }
}
