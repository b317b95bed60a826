//! A trace as a stream of requests.
//!
//! Goals: memory that does not grow with the trace. Non-goals: the arrangement of devices in a file, which the user of
//! the requests chooses.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::decompress;
use crate::error::{Result, TraceError};
use crate::format::{Format, Op, Parser, shown};
use crate::lines::{LINE_BYTES_MAX, Lines};

/// The largest number of devices in a trace.
pub(crate) const DEVICES_MAX: usize = 1 << 16;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its operation.
    pub op: Op,
    /// The device, counted from 0 in the order of the devices' first requests: an index into [`Reader::devices`].
    pub device: u32,
    /// Offset on that device in bytes. Offset and length together are at most 2^52.
    pub offset: u64,
    /// Length in bytes, at most 2^30; may be 0.
    pub len: u32,
}

impl Request {
    /// Where it ends on its device, in bytes.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// Reads a trace from its beginning to its end; an iterator of requests.
pub struct Reader {
    /// The trace's name in messages.
    path: String,
    packing: &'static str,
    lines: Lines,
    line: Vec<u8>,
    /// Set while `line` has a line that showed the form and is not yet parsed.
    is_line_pending: bool,
    parser: Parser,
    devices: Vec<String>,
    by_name: HashMap<Vec<u8>, u32>,
    /// The device of the previous request, because it is mostly the same.
    latest: (Vec<u8>, u32),
    is_over: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).field("line", &self.lines.number).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a trace, plain or compressed. Without `format` the first line shows the form.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Reader> {
        let name = path.display().to_string();
        let file = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
            true => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; name a trace in it")),
            false => Ok(file),
        });
        match file {
            Ok(file) => Reader::new(file, name, format),
            Err(source) => Err(TraceError::Read { path: name, packing: "", source }),
        }
    }

    /// Reads a trace from any stream. Messages call it `path`.
    pub fn new(source: impl Read + Send + 'static, path: String, format: Option<Format>) -> Result<Reader> {
        let (plain, packing) = match decompress::plain(source) {
            Ok(opened) => opened,
            Err(source) => return Err(TraceError::Read { path, packing: "", source }),
        };
        let (mut lines, mut line) = (Lines::new(plain), Vec::new());
        match lines.next(&mut line) {
            Ok(true) => {}
            Ok(false) => {
                return Err(TraceError::Whole { path, why: "it is empty, so there is nothing to replay".into() });
            }
            Err(source) => return Err(TraceError::Read { path, packing, source }),
        }
        let Some(format) = format.or_else(|| Format::detect(&line)) else {
            let names = Format::ALL.map(Format::name).join(", ");
            let why = format!(
                "line {} ({}) is of no known form; --format forces one of {names}, and says what is wrong with the line",
                lines.number,
                shown(&line)
            );
            return Err(TraceError::Whole { path, why });
        };
        let parser = Parser::new(format);
        let is_line_pending = !parser.is_heading(&line);
        let (devices, by_name, latest) = (Vec::new(), HashMap::new(), (Vec::new(), u32::MAX));
        Ok(Reader { path, packing, lines, line, is_line_pending, parser, devices, by_name, latest, is_over: false })
    }

    /// The trace's form.
    pub fn format(&self) -> Format {
        self.parser.format
    }

    /// The trace's name in messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Names of the devices that occurred so far.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// The next request; `None` at the end.
    pub fn next_request(&mut self) -> Result<Option<Request>> {
        loop {
            if !std::mem::take(&mut self.is_line_pending) {
                let read = self.lines.next(&mut self.line).map_err(|source| TraceError::Read {
                    path: self.path.clone(),
                    packing: self.packing,
                    source,
                })?;
                if !read {
                    return Ok(None);
                }
            }
            if self.line.len() > LINE_BYTES_MAX {
                return Err(self.bad(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
            }
            let parsed = match self.parser.parse(&self.line) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => continue,
                Err(what) => return Err(self.bad(what)),
            };
            let (op, offset, len) = (parsed.op, parsed.offset, parsed.len);
            if self.latest.1 == u32::MAX || self.latest.0 != parsed.device {
                let name = parsed.device.to_vec();
                let device = self.device(&name)?;
                self.latest = (name, device);
            }
            return Ok(Some(Request { op, device: self.latest.1, offset, len }));
        }
    }

    fn device(&mut self, name: &[u8]) -> Result<u32> {
        if let Some(&device) = self.by_name.get(name) {
            return Ok(device);
        }
        if self.devices.len() == DEVICES_MAX {
            return Err(self.bad(format!("it names more than {DEVICES_MAX} devices")));
        }
        let device = self.devices.len() as u32;
        self.devices.push(String::from_utf8_lossy(name).into_owned());
        self.by_name.insert(name.to_vec(), device);
        Ok(device)
    }

    fn bad(&self, what: String) -> TraceError {
        let (path, line) = (self.path.clone(), self.lines.number);
        TraceError::Line { path, line, what, expected: self.parser.format.expected() }
    }
}

impl Iterator for Reader {
    type Item = Result<Request>;

    /// After an error the iterator ends.
    fn next(&mut self) -> Option<Result<Request>> {
        if self.is_over {
            return None;
        }
        let next = self.next_request().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompress::tests::{gzip, xz, zstd};

    fn read(bytes: &[u8], format: Option<Format>) -> Result<(Vec<Request>, Vec<String>)> {
        let mut reader = Reader::new(io::Cursor::new(bytes.to_vec()), "t".to_owned(), format)?;
        let requests = reader.by_ref().collect::<Result<Vec<_>>>()?;
        Ok((requests, reader.devices().to_vec()))
    }

    const TRACES: [&str; 4] = [
        "op,offset,length\nr,0,4096\n\nw,4096,512\n",
        "1,0,4096,r,0.0\n0,8,512,w,0.5\n",
        "1,a,0,Read,0,4096,1\r\n2,b,0,Write,4096,512,1\r\n",
        "8,0 0 1 0.0 1 Q R 0 + 8 [x]\n8,0 0 2 0.0 1 C R 0 + 8 [x]\n8,16 0 3 0.1 1 Q WS 8 + 1 [x]\nCPU0 (8,0):\n Reads: 1\n",
    ];

    #[test]
    fn every_form_in_every_packing() {
        for (format, trace) in Format::ALL.into_iter().zip(TRACES) {
            let devices: &[&str] = match format {
                Format::Csv => &[""],
                Format::Spc => &["1", "0"],
                Format::Msr => &["a,0", "b,0"],
                Format::Blkparse => &["8,0", "8,16"],
            };
            let second = devices.len() as u32 - 1;
            let expected = [
                Request { op: Op::Read, device: 0, offset: 0, len: 4096 },
                Request { op: Op::Write, device: second, offset: 4096, len: 512 },
            ];
            for pack in [<[u8]>::to_vec, gzip, xz, zstd] {
                for forced in [None, Some(format)] {
                    let (requests, found) = read(&pack(trace.as_bytes()), forced).unwrap();
                    assert_eq!(requests, expected, "{format}");
                    assert_eq!(found, devices, "{format}");
                }
            }
        }
    }

    #[test]
    fn a_bad_line_is_named_and_ends_the_trace() {
        let mut text = "w,0,1\n\nr,5,x\nr,0,1\n".to_owned();
        let error = read(text.as_bytes(), None).unwrap_err().to_string();
        assert_eq!(
            error,
            "t, line 3: length \"x\" is not a whole number; expected `op,offset,length`, such as `r,4096,512` (op r or w, \
             the others in bytes)"
        );
        let mut reader = Reader::new(io::Cursor::new(text.clone()), "t".into(), None).unwrap();
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 1);
        assert!(reader.next().is_none());
        text.insert_str(0, &"x".repeat(5000));
        assert!(read(text.as_bytes(), Some(Format::Csv)).unwrap_err().to_string().contains("longer than 4096"));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(read(b"", None).unwrap_err().to_string().contains("empty"));
        assert!(read(b"\n \n", None).unwrap_err().to_string().contains("empty"));
        let error = read(b"\nhello\n", None).unwrap_err().to_string();
        assert!(error.contains("line 2 (\"hello\")") && error.contains("--format"), "{error}");
        let error = read(b"hello\n", Some(Format::Csv)).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("1 fields and not 3"), "{error}");
        let cut = &gzip(TRACES[0].as_bytes());
        let error = read(&cut[..cut.len() - 4], None).unwrap_err().to_string();
        assert!(error.contains("t (gzip)"), "{error}");
        let error = Reader::open(Path::new("/"), None).unwrap_err().to_string();
        assert!(error.contains("directory"), "{error}");
        assert!(Reader::open(Path::new("/nonexistent"), None).unwrap_err().to_string().contains("/nonexistent"));
    }
}
