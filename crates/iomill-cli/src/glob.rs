//! [`Pattern`]: names with wildcards, as shells have them.
//!
//! `*` stands for any characters but `/`, `**` for any characters, `?` for one character but `/`, and `[a-z]` or
//! `[!a-z]` for one character of a set. Non-goals: braces, escapes. A character in brackets stands for itself.

/// A pattern.
#[derive(Debug)]
pub struct Pattern {
    tokens: Vec<Token>,
    /// The common beginning of all names that match.
    prefix: String,
}

#[derive(Debug)]
enum Token {
    One(char),
    /// One character of these ranges, or none of them.
    Set(Vec<(char, char)>, bool),
    /// One character but `/`.
    Any,
    /// Any number of characters but `/`.
    Part,
    /// Any number of characters.
    All,
}

impl Pattern {
    /// The pattern that a text is. `None` if it has no wildcards.
    pub fn new(text: &str) -> Option<Pattern> {
        let characters: Vec<char> = text.chars().collect();
        let (mut tokens, mut at) = (Vec::new(), 0);
        while at < characters.len() {
            let rest = &characters[at..];
            let (token, len) = match (rest, set(rest)) {
                (['*', '*', ..], _) => (Token::All, 2),
                (['*', ..], _) => (Token::Part, 1),
                (['?', ..], _) => (Token::Any, 1),
                (_, Some((token, len))) => (token, len),
                (_, None) => (Token::One(rest[0]), 1),
            };
            tokens.push(token);
            at += len;
        }
        let fixed = tokens.iter().map_while(|token| if let Token::One(one) = token { Some(*one) } else { None });
        let prefix: String = fixed.collect();
        let has_wildcards = tokens.iter().any(|token| !matches!(token, Token::One(_)));
        has_wildcards.then_some(Pattern { tokens, prefix })
    }

    /// The common beginning of all names that match.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        // All places in the pattern at which the characters so far may have ended.
        let mut places = vec![false; self.tokens.len() + 1];
        places[0] = true;
        self.skip(&mut places);
        for character in name.chars() {
            let mut next = vec![false; places.len()];
            for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| places[*at]) {
                match token {
                    Token::All => next[at] = true,
                    Token::Part => next[at] |= character != '/',
                    token => next[at + 1] |= token.takes(character),
                }
            }
            self.skip(&mut next);
            places = next;
        }
        places[self.tokens.len()]
    }

    /// A star may stand for nothing.
    fn skip(&self, places: &mut [bool]) {
        for (at, token) in self.tokens.iter().enumerate() {
            places[at + 1] |= places[at] && matches!(token, Token::All | Token::Part);
        }
    }
}

impl Token {
    fn takes(&self, character: char) -> bool {
        match self {
            Token::One(one) => *one == character,
            Token::Any => character != '/',
            Token::Set(ranges, is_one_of) => {
                character != '/' && ranges.iter().any(|(from, to)| (*from..=*to).contains(&character)) == *is_one_of
            }
            Token::Part | Token::All => false,
        }
    }
}

/// The set at the start of a text, and its length. A bracket that does not end stands for itself.
fn set(text: &[char]) -> Option<(Token, usize)> {
    let ['[', inner @ ..] = text else { return None };
    let is_one_of = inner.first() != Some(&'!');
    let start = if is_one_of { 1 } else { 2 };
    // A bracket that comes first is one of the set.
    let end = start + 1 + text.get(start + 1..)?.iter().position(|character| *character == ']')?;
    let (mut ranges, mut at) = (Vec::new(), start);
    while at < end {
        match &text[at..end] {
            [from, '-', to, ..] => {
                ranges.push((*from, *to));
                at += 3;
            }
            _ => {
                ranges.push((text[at], text[at]));
                at += 1;
            }
        }
    }
    Some((Token::Set(ranges, is_one_of), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_shells() {
        let matches = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().matches(name);
        for (pattern, good, bad) in [
            ("*", &["a", "größe"][..], &["a/b"][..]),
            ("a*", &["a", "ab"], &["ba", "a/b"]),
            ("**", &["a", "a/b/c"], &[]),
            ("a/**", &["a/b", "a/b/c"], &["a", "b/a/c"]),
            ("a/*/c", &["a/b/c"], &["a/c", "a/b/b/c"]),
            ("*.bin", &["x.bin", ".bin"], &["x.bin2", "d/x.bin"]),
            ("**.bin", &["d/x.bin"], &["x.bin/y"]),
            ("?", &["x", "ß"], &["", "xy", "/"]),
            ("[a-c]1", &["a1", "c1"], &["d1", "1"]),
            ("[!a-c]1", &["d1"], &["a1", "/1"]),
            ("[]x]", &["]", "x"], &["["]),
            ("[*]*", &["*", "*a"], &["a"]),
            ("*[", &["a["], &["a"]),
        ] {
            good.iter().for_each(|name| assert!(matches(pattern, name), "{pattern} {name}"));
            bad.iter().for_each(|name| assert!(!matches(pattern, name), "{pattern} {name}"));
        }
        assert!(["", "a/b", "[", "[]", "a]"].iter().all(|text| Pattern::new(text).is_none()));
        assert_eq!(Pattern::new("a/b*c").unwrap().prefix(), "a/b");
    }

    /// The time is bounded by the product of the lengths.
    #[test]
    fn stars_take_no_time() {
        let pattern = Pattern::new(&"*a**".repeat(50)).unwrap();
        assert!(!pattern.matches(&"b".repeat(1000)));
    }
}
