//! The public interface of the library as a list, in the file [`LISTING`]: a change of the interface is a change of
//! that file, so a review sees it. The list is made from tokens, for no compiler tells it without unstable options.
//!
//! Goals: each name that a user of the crate can write, with its fields, variants, functions and traits. Non-goals:
//! what the feature `internals` adds, and traits that the compiler implements by itself (`api/traits.rs` checks these).

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Spacing, TokenTree};

use super::finding::Finding;
use super::source::{Source, group, ident, inner, paths, punct};

/// The committed list.
pub const LISTING: &str = "crates/iomill/public.txt";

const LIBRARY: &str = "crates/iomill/src/";
const KINDS: [&str; 10] = ["fn", "struct", "enum", "trait", "impl", "type", "const", "static", "use", "mod"];
/// Attributes that matter to a user.
const SHOWN: [&str; 5] = ["derive", "non_exhaustive", "must_use", "default", "deprecated"];

/// An item, a field or a variant.
struct Item {
    /// Attributes, without `#`.
    attributes: Vec<Vec<TokenTree>>,
    is_public: bool,
    /// All after the visibility.
    tokens: Vec<TokenTree>,
}

/// A finding if the committed list is not that of the sources.
pub fn check(sources: &[Source], committed: &str) -> Vec<Finding> {
    let now = listing(sources);
    if now == committed {
        return Vec::new();
    }
    let differs = now.lines().zip(committed.lines()).position(|(now, then)| now != then);
    let line = differs.unwrap_or_else(|| now.lines().count().min(committed.lines().count())) + 1;
    let what = "the public interface is another one; look at the change, then run `cargo xtask public --write`";
    vec![Finding::new(LISTING, line, what)]
}

/// The list of the sources.
pub fn listing(sources: &[Source]) -> String {
    let files = sources.iter().filter_map(|s| Some((s.path.strip_prefix(LIBRARY)?, s))).collect();
    let mut library = Library { files, for_tools: BTreeSet::new() };
    library.for_tools = library.files.keys().copied().filter(|file| library.is_for_tools(file)).collect();
    let mut parts = BTreeMap::new();
    for (name, file) in library.facade("lib.rs") {
        if let Some((place, item)) = library.definition(file, &name) {
            parts.insert(name.clone(), library.describe(&name, place, &item));
        }
    }
    // Lines of traits begin with `impl`. They are no items.
    let items = parts.values().flatten().filter(|line| !line.trim_start().starts_with("impl ")).count();
    let lines: Vec<String> = parts.into_values().flatten().collect();
    format!(
        "# The public interface of `iomill`: {items} items. `cargo xtask public --write` makes this file.\n{}\n",
        lines.join("\n")
    )
}

/// The files of the library, by their path in it.
struct Library<'a> {
    files: BTreeMap<&'a str, &'a Source>,
    /// The files of modules that are there only for tools.
    for_tools: BTreeSet<&'a str>,
}

impl<'a> Library<'a> {
    /// The names that a module exports with `pub use`, each with the file that exports it.
    fn facade(&self, file: &'a str) -> Vec<(String, &'a str)> {
        let Some(source) = self.files.get(file) else { return Vec::new() };
        let mut names = Vec::new();
        for item in
            items(&source.code).iter().filter(|item| item.is_public && item.kind() == "use" && !item.is_hidden())
        {
            let is_glob = item.tokens.iter().any(|token| punct(Some(token), '*'));
            if is_glob {
                let module = ident(item.tokens.get(1)).map(ToString::to_string).unwrap_or_default();
                names.extend(self.module(&[module]).into_iter().flat_map(|module| self.facade(module)));
            } else {
                let found = paths(&item.tokens[1..]).into_iter().filter_map(|path| path.names.last().cloned());
                names.extend(found.map(|name| (name, file)));
            }
        }
        names
    }

    /// The file of a module.
    fn module(&self, names: &[String]) -> Option<&'a str> {
        let path = names.join("/");
        let candidates = [format!("{path}.rs"), format!("{path}/mod.rs")];
        candidates.iter().find_map(|path| self.files.get_key_value(path.as_str())).map(|(path, _)| *path)
    }

    /// Where a name that a file uses is defined, and as what.
    fn definition(&self, file: &'a str, name: &str) -> Option<(&'a str, Item)> {
        let mut file = file;
        // A circle of imports does not compile. The bound only keeps a mistake here from running for ever.
        for _ in 0..8 {
            let source = self.files.get(file)?;
            if let Some(item) = items(&source.code).into_iter().find(|item| item.defines(name)) {
                return Some((file, item));
            }
            file = paths(&source.code).iter().find_map(|path| self.target(file, &path.names, name))?;
        }
        None
    }

    /// The file that a path leads to, if its last name is `name`.
    fn target(&self, file: &str, names: &[String], name: &str) -> Option<&'a str> {
        let (last, names) = names.split_last()?;
        // `use` and `pub` are names of the path, too, as tokens.
        let names: Vec<String> =
            names.iter().filter(|name| !matches!(name.as_str(), "use" | "self")).cloned().collect();
        if last != name {
            return None;
        }
        let mut at: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(at.last().map(String::as_str), Some("mod" | "lib")) {
            at.pop();
        }
        match names.first()?.as_str() {
            "crate" => at = names[1..].to_vec(),
            "super" => {
                let up = names.iter().take_while(|name| *name == "super").count();
                at.truncate(at.len().saturating_sub(up));
                at.extend_from_slice(&names[up..]);
            }
            _ => at.extend(names),
        }
        self.module(&at).or_else(|| at.is_empty().then_some("lib.rs"))
    }

    /// Whether a file is a module that is there only for tools. A module that is private without `internals` has two
    /// lines, and one of them is not hidden.
    fn is_for_tools(&self, file: &str) -> bool {
        let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
        let (place, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above: Vec<String> = place.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let parent = if above.is_empty() { Some("lib.rs") } else { self.module(&above) };
        let Some(source) = parent.and_then(|parent| self.files.get(parent)) else { return false };
        let named = |item: &Item| item.tokens.iter().any(|token| ident(Some(token)).is_some_and(|word| word == name));
        let declared: Vec<Item> =
            items(&source.code).into_iter().filter(|item| item.kind() == "mod" && named(item)).collect();
        !declared.is_empty() && declared.iter().all(Item::is_hidden)
    }

    /// The lines of one name.
    fn describe(&self, name: &str, place: &'a str, item: &Item) -> Vec<String> {
        let mut lines = vec![item.head()];
        lines.extend(item.members().iter().map(|member| format!("    {member}")));
        let (mut functions, mut traits) = (Vec::new(), Vec::new());
        for (file, source) in self.files.iter().filter(|(file, _)| !self.for_tools.contains(*file)) {
            for found in items(&source.code).iter().filter(|item| item.kind() == "impl" && !item.is_hidden()) {
                let of = found.implemented().is_some_and(|of| of == name);
                if !of || self.definition(file, name).is_none_or(|(defined, _)| defined != place) {
                    continue;
                }
                let Some(body) = found.tokens.last().and_then(|last| group(Some(last), Delimiter::Brace)) else {
                    continue;
                };
                if found.tokens.iter().any(|token| ident(Some(token)).is_some_and(|word| word == "for")) {
                    traits.push(format!("    {}", found.head().trim_start_matches("pub ")));
                } else {
                    let inside = items(&inner(body));
                    let public = inside.iter().filter(|item| item.is_public && !item.is_hidden());
                    functions.extend(public.map(|item| format!("    {}", item.head())));
                }
            }
        }
        functions.sort();
        traits.sort();
        lines.extend(functions);
        lines.extend(traits);
        lines
    }
}

impl Item {
    fn kind(&self) -> String {
        let words: Vec<String> =
            self.tokens.iter().map_while(|token| ident(Some(token)).map(ToString::to_string)).collect();
        let is_fn = words.iter().any(|word| word == "fn");
        let kind = words.into_iter().find(|word| KINDS.contains(&word.as_str()) && !(is_fn && word == "const"));
        kind.unwrap_or_default()
    }

    fn defines(&self, name: &str) -> bool {
        let kind = self.kind();
        let is_type = matches!(kind.as_str(), "struct" | "enum" | "trait" | "type" | "const" | "static" | "fn");
        is_type && self.is_public && {
            let at = self.tokens.iter().position(|token| ident(Some(token)).is_some_and(|word| *word == kind));
            at.and_then(|at| ident(self.tokens.get(at + 1))).is_some_and(|word| word == name)
        }
    }

    /// Whether it is there only for tools.
    fn is_hidden(&self) -> bool {
        let hides = ["cfg(feature = \"internals\")", "doc(hidden)"];
        self.attributes.iter().any(|attribute| hides.contains(&render(attribute).as_str()))
    }

    /// Its attributes and its signature.
    fn head(&self) -> String {
        let shown = |attribute: &&Vec<TokenTree>| {
            ident(attribute.first()).is_some_and(|name| SHOWN.contains(&name.to_string().as_str()))
        };
        // The text of `must_use` is no part of the interface.
        let short = |attribute: &Vec<TokenTree>| match ident(attribute.first()) {
            Some(name) if name == "must_use" => "#[must_use] ".to_owned(),
            _ => format!("#[{}] ", render(attribute)),
        };
        let attributes: String = self.attributes.iter().filter(shown).map(short).collect();
        let kind = self.kind();
        let mut tokens = &self.tokens[..];
        if let Some((last, rest)) = tokens.split_last()
            && (punct(Some(last), ';') || kind != "const" && group(Some(last), Delimiter::Brace).is_some())
        {
            tokens = rest;
        }
        if kind == "const" {
            // Its value may change.
            let end = tokens.iter().position(|token| punct(Some(token), '='));
            tokens = &tokens[..end.unwrap_or(tokens.len())];
        }
        if kind == "struct" && group(tokens.last(), Delimiter::Parenthesis).is_some() {
            // Unnamed fields are private everywhere in this library.
            tokens = &tokens[..tokens.len() - 1];
        }
        let visible = if self.is_public { "pub " } else { "" };
        format!("{attributes}{visible}{}", render(tokens))
    }

    /// Public fields, variants, and functions of a trait.
    fn members(&self) -> Vec<String> {
        let kind = self.kind();
        let Some(body) = self.tokens.last().and_then(|last| group(Some(last), Delimiter::Brace)) else {
            return Vec::new();
        };
        let body = inner(body);
        match kind.as_str() {
            "struct" => {
                fields(&body).iter().filter(|field| field.is_public && !field.is_hidden()).map(Item::head).collect()
            }
            "enum" => {
                let mut lines = Vec::new();
                for variant in fields(&body).iter().filter(|variant| !variant.is_hidden()) {
                    let name = ident(variant.tokens.first()).map(ToString::to_string).unwrap_or_default();
                    match variant.tokens.last().and_then(|last| group(Some(last), Delimiter::Brace)) {
                        Some(inside) => {
                            lines.push(name.clone());
                            lines.extend(
                                fields(&inner(inside)).iter().map(|field| format!("{name}.{}", render(&field.tokens))),
                            );
                        }
                        None => lines.push(variant.head()),
                    }
                }
                lines
            }
            "trait" => items(&body).iter().map(Item::head).collect(),
            _ => Vec::new(),
        }
    }

    /// The name of the type that an `impl` is for.
    fn implemented(&self) -> Option<String> {
        let mut tokens = &self.tokens[1..];
        if punct(tokens.first(), '<') {
            tokens = &tokens[after_angles(tokens)..];
        }
        if let Some(at) = tokens.iter().position(|token| ident(Some(token)).is_some_and(|word| word == "for")) {
            tokens = &tokens[at + 1..];
        }
        ident(tokens.first()).map(ToString::to_string)
    }
}

/// The end of the generic parameters at the start of `tokens`.
fn after_angles(tokens: &[TokenTree]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        let is_arrow = at > 0 && punct(tokens.get(at - 1), '-');
        if punct(Some(token), '<') {
            depth += 1;
        } else if punct(Some(token), '>') && !is_arrow {
            depth -= 1;
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Attributes and visibility at the start of `tokens`, and how many tokens they take.
fn front(tokens: &[TokenTree]) -> (Vec<Vec<TokenTree>>, bool, usize) {
    let (mut attributes, mut at) = (Vec::new(), 0);
    while punct(tokens.get(at), '#') {
        let bang = usize::from(punct(tokens.get(at + 1), '!'));
        let Some(attribute) = group(tokens.get(at + 1 + bang), Delimiter::Bracket) else { break };
        if bang == 0 {
            attributes.push(inner(attribute));
        }
        at += 2 + bang;
    }
    let mut is_public = ident(tokens.get(at)).is_some_and(|word| word == "pub");
    if is_public {
        at += 1;
        if group(tokens.get(at), Delimiter::Parenthesis).is_some() {
            is_public = false;
            at += 1;
        }
    }
    (attributes, is_public, at)
}

/// The items of a file, of an `impl` or of a trait.
fn items(tokens: &[TokenTree]) -> Vec<Item> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let (attributes, is_public, taken) = front(&tokens[at..]);
        at += taken;
        let mut item = Item { attributes, is_public, tokens: tokens[at..].iter().take(3).cloned().collect() };
        // Constants, types and imports may have braces before their end.
        let to_semicolon = matches!(item.kind().as_str(), "const" | "static" | "type" | "use");
        let ends = |token: &TokenTree| {
            punct(Some(token), ';') || !to_semicolon && group(Some(token), Delimiter::Brace).is_some()
        };
        let len = tokens[at..].iter().position(ends).map_or(tokens.len() - at, |end| end + 1);
        item.tokens = tokens[at..at + len].to_vec();
        at += len.max(1);
        found.push(item);
    }
    found
}

/// The fields of a struct or of a variant, or the variants of an enum: what stands between commas.
fn fields(tokens: &[TokenTree]) -> Vec<Item> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let (attributes, is_public, taken) = front(&tokens[at..]);
        at += taken;
        let (mut end, mut depth) = (at, 0);
        while end < tokens.len() && !(depth == 0 && punct(tokens.get(end), ',')) {
            depth += i32::from(punct(tokens.get(end), '<')) - i32::from(punct(tokens.get(end), '>'));
            end += 1;
        }
        if end > at {
            found.push(Item { attributes, is_public, tokens: tokens[at..end].to_vec() });
        }
        at = end + 1;
    }
    found
}

/// Tokens as text, near to what rustfmt makes of them.
fn render(tokens: &[TokenTree]) -> String {
    let mut text = String::new();
    let mut joined = true;
    for (at, token) in tokens.iter().enumerate() {
        let part = match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::None => ("", ""),
                };
                let inside = render(&inner(group));
                format!("{open}{}{close}", inside.trim_end_matches(", ").trim_end_matches(','))
            }
            token => token.to_string(),
        };
        let is_call = group(Some(token), Delimiter::Parenthesis).is_some()
            && (ident(tokens.get(at.wrapping_sub(1))).is_some() || text.ends_with('>') && !text.ends_with("->"));
        let hugs = matches!(part.as_str(), "," | ":" | ";" | "?" | "<" | ">" | ".") || is_call;
        let is_operator = part == "=" || part == "+" || part == "-";
        if !joined && (!hugs || is_operator) && !text.ends_with(' ') {
            text.push(' ');
        }
        text.push_str(&part);
        joined = match token {
            TokenTree::Punct(punct) => {
                let is_path = punct.as_char() == ':' && text.ends_with("::");
                punct.spacing() == Spacing::Joint || is_path || matches!(punct.as_char(), '<' | '&' | '\'' | '?')
            }
            _ => false,
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source::parse(&format!("{LIBRARY}{path}"), text).unwrap()).collect()
    }

    const FILES: [(&str, &str); 5] = [
        ("lib.rs", "#[cfg(feature = \"internals\")] pub mod cache; #[cfg(not(feature = \"internals\"))] mod cache; mod api; pub use api::*; pub use error::Error;"),
        ("error.rs", "#[derive(Debug)] #[non_exhaustive] pub enum Error { A, B { at: u64 }, #[cfg(feature = \"internals\")] Tool }"),
        ("api/mod.rs", "mod file; #[cfg(feature = \"internals\")] mod tools; pub use file::{File, Mode}; pub use crate::cache::Policy; use file::Secret;"),
        (
            "api/file.rs",
            "pub use crate::cache::Mode; pub struct File { pub len: u64, name: String } struct Secret;
             impl File { pub fn read<'a, T: Fn(u64) -> u64>(&'a mut self, buf: &mut [u8]) -> Result<Option<u8>> { 1 } fn no() {}
             pub(crate) fn no_more() {} #[cfg(feature = \"internals\")] pub fn step() {} }
             impl std::ops::Deref for File { fn deref() {} } impl<'a> From<&'a File> for Secret {}",
        ),
        ("api/tools.rs", "use super::file::File; impl File { pub fn only_for_tools() {} }"),
    ];
    const CACHE: (&str, &str) =
        ("cache.rs", "pub struct Policy(u8); pub enum Mode { One } pub struct Unseen; impl Mode { pub fn name() {} }");

    fn all() -> Vec<Source> {
        sources(&[&FILES[..], &[CACHE]].concat())
    }

    #[test]
    fn lists_what_users_can_name() {
        let wanted = "\
            # The public interface of `iomill`: 11 items. `cargo xtask public --write` makes this file.\n\
            #[derive(Debug)] #[non_exhaustive] pub enum Error\n    A\n    B\n    B.at: u64\n\
            pub struct File\n    pub len: u64\n    \
            pub fn read<'a, T: Fn(u64) -> u64>(&'a mut self, buf: &mut [u8]) -> Result<Option<u8>>\n    \
            impl std::ops::Deref for File\n\
            pub enum Mode\n    One\n    pub fn name()\n\
            pub struct Policy\n";
        assert_eq!(listing(&all()), wanted);
    }

    #[test]
    fn a_change_is_a_finding() {
        let listed = listing(&all());
        assert!(check(&all(), &listed).is_empty());
        let mut files = FILES;
        files[3].1 = "pub use crate::cache::Mode; pub struct File;";
        let changed = sources(&[&files[..], &[CACHE]].concat());
        assert_eq!(check(&changed, &listed).len(), 1);
    }
}
