//! Texts of the library in the words of Python's users: [`words`]. An array of the library is a set of drives here,
//! because an array of Python is an ndarray. Advice names the calls of the package. Non-goals: the texts of this crate.

/// Texts with another advice in Python, before any word is replaced.
const ADVICE: [(&str, &str); 18] = [
    ("no array has a drive here", "it is no drive of a set"),
    ("or make an array", "or make a set of drives by `iomill.Drives.create`"),
    ("interrupted); make one", "interrupted); make a set of drives by `iomill.Drives.create`"),
    ("make it with `RuntimeOptions::cache_bytes`", "make it with `cache_bytes`"),
    ("make it again with the same drives", "make it again by `iomill.Drives.create` with the same drives"),
    ("open that array.", "open that set by `iomill.Drives`."),
    (
        "call `Array::close`, or drop the array, its files and its futures",
        "call `close` of the set of drives and of its files",
    ),
    ("for reading; open it for writing", "for reading; open it with mode=\"r+\""),
    ("open the array, and the file in it by its name", "open it by `iomill.open(drive, name)`"),
    ("list the files to see their names", "list the files to see their names (`iomill.Drives.list`)"),
    ("mount it, or open the array by the present directories of all its drives", "mount it there"),
    ("check and repair the array", "run the command `iomill check --repair`"),
    ("check the array", "run the command `iomill check`"),
    ("repair the array", "run the command `iomill check --repair`"),
    (
        "export the catalog and make a new array",
        "export the catalog and make a new set of drives, by the command `iomill`",
    ),
    // Of caches.
    ("`Options::on_root(true)` (as `iomill-cache init` and `on_root=True` do)", "`on_root=True`"),
    (" (or by `Options::anew(true)`)", ""),
    ("`Options::index_dir`", "`index_dir`"),
];

/// A text of the library for Python. Quoted names stay as they are.
pub fn words(text: &str) -> String {
    let parts = text.split('"').enumerate();
    let said: Vec<String> = parts.map(|(n, part)| if n % 2 == 0 { unquoted(part) } else { part.to_owned() }).collect();
    said.join("\"")
}

fn unquoted(text: &str) -> String {
    let advised = ADVICE.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let mut said = String::with_capacity(advised.len());
    let mut rest = &*advised;
    while let Some(at) = rest.find("array") {
        let (before, found) = rest.split_at(at);
        let (word, after) = found.split_at(if found.starts_with("arrays") { 6 } else { 5 });
        match before.strip_suffix("an ") {
            _ if !is_apart(before.chars().next_back(), after) => said.extend([before, word]),
            Some(before) if is_apart(before.chars().next_back(), " ") => said.extend([before, "a set of drives"]),
            // Its id, or what it has, follows.
            _ if after.strip_prefix(' ').is_some_and(begins_with_id) || after.starts_with("'s ") => {
                said.extend([before, "set"]);
            }
            _ => said.extend([before, if word == "arrays" { "sets of drives" } else { "set of drives" }]),
        }
        rest = after;
    }
    said + rest
}

fn begins_with_id(text: &str) -> bool {
    text.get(..32).is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a word between these is one of the library's text, and no part of a path or of a quoted name.
fn is_apart(before: Option<char>, after: &str) -> bool {
    let mut after = after.chars();
    let ends = match after.next() {
        Some('.') => after.next().is_none_or(char::is_whitespace),
        Some(next) => " ;:,)'".contains(next),
        None => true,
    };
    ends && before.is_none_or(|before| " (".contains(before))
}
