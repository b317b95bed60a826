//! The licences of the workspace's dependencies. `fuzz/` is a separate workspace that is never released, so it is not
//! checked.

use std::iter::Peekable;
use std::str::SplitWhitespace;

use super::finding::Finding;
use crate::workspace::Package;

/// Licences that a binary under MIT or Apache-2.0 may contain.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Licence exceptions that only give more rights.
const ALLOWED_EXCEPTIONS: [&str; 1] = ["LLVM-exception"];

pub fn check<'a>(packages: impl Iterator<Item = &'a Package>) -> Vec<Finding> {
    let found = packages.filter_map(|package| {
        let what = objection(package.license.as_deref())?;
        Some(Finding::new("Cargo.toml", 0, format!("{} {}: {what}", package.name, package.version)))
    });
    found.collect()
}

fn objection(licence: Option<&str>) -> Option<String> {
    let Some(licence) = licence else { return Some("names no licence".into()) };
    // The old `MIT/Apache-2.0` is an OR.
    let spaced = licence.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    match any(&mut words) {
        Some(true) if words.next().is_none() => None,
        Some(false) if words.next().is_none() => {
            Some(format!("licence `{licence}` is not allowed; use another package"))
        }
        _ => Some(format!("licence `{licence}` cannot be read")),
    }
}

type Words<'a> = Peekable<SplitWhitespace<'a>>;

/// Whether one of the terms between `OR` is allowed. `None` if the expression cannot be read.
fn any(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

/// Whether all of the terms between `AND` are allowed.
fn all(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

/// Whether a licence, or an expression in parentheses, is allowed.
fn one(words: &mut Words<'_>) -> Option<bool> {
    match words.next()? {
        "(" => {
            let allowed = any(words)?;
            words.next_if_eq(&")").map(|_| allowed)
        }
        "OR" | "AND" | "WITH" | ")" => None,
        licence => {
            let exception = if words.next_if_eq(&"WITH").is_some() { Some(words.next()?) } else { None };
            let fits = exception.is_none_or(|name| ALLOWED_EXCEPTIONS.contains(&name));
            Some(ALLOWED.contains(&licence) && fits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites() {
        for bad in
            ["GPL-3.0-only", "MIT AND GPL-2.0", "Proprietary", "Apache-2.0 WITH Classpath-exception-2.0", "MIT OR"]
        {
            assert!(objection(Some(bad)).is_some(), "{bad}");
        }
        assert!(objection(None).is_some());
    }

    #[test]
    fn allows() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "Unlicense/MIT",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "BSD-2-Clause AND BSD-3-Clause AND ISC AND Zlib AND BSL-1.0 AND CC0-1.0 AND MPL-2.0",
        ] {
            assert_eq!(objection(Some(good)), None, "{good}");
        }
    }
}
