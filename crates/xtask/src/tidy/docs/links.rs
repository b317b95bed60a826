//! Relative links must lead to a file that exists and, in our own pages, to a heading that exists.

use super::page::Page;
use crate::tidy::finding::Finding;

pub(super) fn check(pages: &[Page], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in pages {
        for (line, target) in &page.links {
            if let Some(what) = objection(page, target, pages, &exists) {
                findings.push(Finding::new(&page.path, *line, format!("link `{target}`: {what}")));
            }
        }
    }
    findings
}

fn objection(page: &Page, target: &str, pages: &[Page], exists: impl Fn(&str) -> bool) -> Option<&'static str> {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphabetic()));
    if has_scheme || target.starts_with("//") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = match file {
        "" => page.path.clone(),
        file => match resolve(&page.path, file) {
            Some(path) if exists(&path) => path,
            Some(_) => return Some("no such file"),
            None => return Some("leads out of the repository"),
        },
    };
    let missing = |anchor: &str| pages.iter().any(|p| p.path == path && !p.anchors.iter().any(|a| a == anchor));
    anchor.filter(|anchor| missing(anchor)).map(|_| "no such heading")
}

/// The path that a link of a page leads to. A link with `/` at its start begins at the root, as on GitHub. `None` above
/// the root.
fn resolve(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = if link.starts_with('/') { Vec::new() } else { page.split('/').collect() };
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()?),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites() {
        let links = ["gone.md", "../../up.md", "b.md#nowhere", "#nowhere", "../gone"];
        let here = Page {
            path: "docs/a.md".into(),
            links: (1..).zip(links.map(String::from)).collect(),
            anchors: vec!["top".into()],
            ..Page::default()
        };
        let there = Page { path: "docs/b.md".into(), ..Page::default() };
        let findings = check(&[here, there], |path| path == "docs/b.md");
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn follows() {
        let links = [
            "b.md",
            "b.md#there",
            "#top",
            "../README.md",
            "/docs/b.md",
            "https://x.y/z",
            "mailto:a@b",
            "../src/x.rs#L3",
        ];
        let here = Page {
            path: "docs/a.md".into(),
            links: (1..).zip(links.map(String::from)).collect(),
            anchors: vec!["top".into()],
            ..Page::default()
        };
        let there = Page { path: "docs/b.md".into(), anchors: vec!["there".into()], ..Page::default() };
        let exists = |path: &str| ["docs/b.md", "README.md", "src/x.rs"].contains(&path);
        assert_eq!(check(&[here, there], exists), []);
    }
}
