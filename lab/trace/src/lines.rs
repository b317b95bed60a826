//! Lines of bounded length, with their numbers.

use std::io::{self, BufRead, Read};

use crate::decompress::Plain;

/// The longest line, in bytes. A file with longer lines is not a trace.
pub(crate) const LINE_BYTES_MAX: usize = 4096;

/// The lines of a text.
pub(crate) struct Lines {
    source: Plain,
    /// Number of the last line that was read, from 1.
    pub(crate) number: u64,
}

impl Lines {
    pub(crate) fn new(source: Plain) -> Lines {
        Lines { source, number: 0 }
    }

    /// Reads the next line that is not blank into `line`, without white space at its ends. Returns `false` at the end.
    /// A line that is too long is cut, but stays longer than `LINE_BYTES_MAX`.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            line.clear();
            self.source.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', line)?;
            if line.is_empty() {
                return Ok(false);
            }
            self.number += 1;
            if line.len() > LINE_BYTES_MAX {
                return Ok(true);
            }
            let trimmed = line.trim_ascii();
            let (start, len) = (line.len() - line.trim_ascii_start().len(), trimmed.len());
            if len > 0 {
                line.truncate(start + len);
                line.drain(..start);
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Lines::new(Box::new(io::Cursor::new(text.to_vec())));
        let (mut found, mut line) = (Vec::new(), Vec::new());
        while lines.next(&mut line).unwrap() {
            found.push((lines.number, line.clone()));
        }
        found
    }

    #[test]
    fn blank_lines_count_and_are_not_shown() {
        let expected = vec![(2, b"a b".to_vec()), (4, b"c".to_vec())];
        assert_eq!(lines(b"\n a b \r\n\t\nc"), expected);
        assert!(lines(b" \n\n").is_empty() && lines(b"").is_empty());
    }

    #[test]
    fn a_line_takes_bounded_memory() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        assert_eq!(lines(&long)[0].1.len(), LINE_BYTES_MAX + 1);
        assert_eq!(lines(&long[..LINE_BYTES_MAX]).len(), 1);
    }
}
