//! The forms of traces: from a line to a request.
//!
//! Goals: a line is read exactly as it is, or refused with a reason; nothing is guessed. Non-goals: times, because
//! requests are repeated as fast as possible.

use std::fmt;
use std::str::FromStr;

/// Sectors in SPC and blkparse traces, in bytes. The device's own sector size does not matter.
const SECTOR_BYTES: u64 = 512;

/// Requests end at most at this offset, in bytes (4 PiB). Names of pages in the cache have no room for more.
pub(crate) const END_BYTES_MAX: u64 = 1 << 52;

/// The longest request in bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `op,offset,length`
    Csv,
    /// The Storage Performance Council's: `ASU,LBA,size,opcode,timestamp`.
    Spc,
    /// Microsoft Research's: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
    Msr,
    /// The default output of the program blkparse.
    Blkparse,
}

impl Format {
    /// All forms.
    pub const ALL: [Format; 4] = [Format::Csv, Format::Spc, Format::Msr, Format::Blkparse];

    /// The form's name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Spc => "spc",
            Format::Msr => "msr",
            Format::Blkparse => "blkparse",
        }
    }

    /// The form of a correct line, with an example.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Format::Csv => "`op,offset,length`, such as `r,4096,512` (op r or w, the others in bytes)",
            Format::Spc => {
                "`ASU,LBA,size,opcode,timestamp`, such as `0,303567,3584,w,0.0` (LBA in 512-byte sectors, size in bytes)"
            }
            Format::Msr => {
                "`Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, such as \
                 `128166372003061629,hm,1,Read,383496192,32768,413` (offset and size in bytes)"
            }
            Format::Blkparse => {
                "blkparse's default output, such as `8,0 3 1 0.000000000 697 Q R 223490 + 8 [name]` (in 512-byte sectors)"
            }
        }
    }

    /// The form that a trace's first line has.
    pub(crate) fn detect(line: &[u8]) -> Option<Format> {
        Format::ALL.into_iter().find(|format| {
            let mut parser = Parser::new(*format);
            parser.is_heading(line) || parser.parse(line).is_ok()
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        Format::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names = Format::ALL.map(Format::name).join(", ");
            format!("there is no format {text:?}; give one of {names}")
        })
    }
}

/// A request in the units of its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed<'a> {
    pub(crate) op: Op,
    /// The device's name in the trace. Empty if there is only one device.
    pub(crate) device: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// The fault of a line.
pub(crate) type LineFault = String;

/// A parser of lines. Earlier lines can change the meaning of later ones.
#[derive(Debug)]
pub(crate) struct Parser {
    pub(crate) format: Format,
    /// Set within the totals that blkparse prints at its end.
    in_totals: bool,
}

impl Parser {
    pub(crate) fn new(format: Format) -> Parser {
        Parser { format, in_totals: false }
    }

    /// Whether a first line names the columns.
    pub(crate) fn is_heading(&self, line: &[u8]) -> bool {
        let names: &[&str] = match self.format {
            Format::Csv => &["op", "offset", "length"],
            Format::Spc => &["asu", "lba", "size", "opcode", "timestamp"],
            Format::Msr => &["timestamp", "hostname", "disknumber", "type", "offset", "size", "responsetime"],
            Format::Blkparse => return false,
        };
        let fields = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        fields.map(<[u8]>::to_ascii_lowercase).eq(names.iter().map(|name| name.as_bytes()))
    }

    /// The request of a line; `None` if a correct line holds none.
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Option<Parsed<'a>>, LineFault> {
        match self.format {
            Format::Csv => csv(line).map(Some),
            Format::Spc => spc(line).map(Some),
            Format::Msr => msr(line).map(Some),
            Format::Blkparse => self.blkparse(line),
        }
    }

    /// Skips events other than Q (queued: requests of programs, before merging). Also skips requests that transfer
    /// nothing (discards, flushes) and the totals at the end.
    fn blkparse<'a>(&mut self, line: &'a [u8]) -> Result<Option<Parsed<'a>>, LineFault> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let device = words.next().unwrap_or_default();
        if !is_device(device) {
            self.in_totals |= device.starts_with(b"CPU") || device == b"Total";
            if self.in_totals || line.starts_with(b"Input file ") {
                return Ok(None);
            }
            return Err(format!("{} is not a device such as 8,0", shown(device)));
        }
        self.in_totals = false;
        // CPU, sequence number, time, process.
        let action = words.nth(4).ok_or("the line has fewer than 6 words")?;
        if action != b"Q" {
            return Ok(None);
        }
        let kind = words.next().ok_or("the line does not say whether it reads or writes")?;
        let op = match () {
            () if kind.contains(&b'D') => return Ok(None),
            () if kind.contains(&b'R') => Op::Read,
            () if kind.contains(&b'W') => Op::Write,
            () => return Ok(None),
        };
        let place = words.next().ok_or("the sector is missing")?;
        if place.starts_with(b"[") && kind.contains(&b'F') {
            return Ok(None);
        }
        let sector = number(place, "sector")?;
        if words.next() != Some(b"+") {
            return Err("there is no `+` between the sector and the count".to_owned());
        }
        let count = number(words.next().ok_or("the count of sectors is missing")?, "count of sectors")?;
        let request = request(op, device, sectors(sector)?, sectors(count)?)?;
        Ok((request.len > 0).then_some(request))
    }
}

fn csv(line: &[u8]) -> Result<Parsed<'_>, LineFault> {
    let [op, offset, len] = fields(line)?;
    request(letter(op)?, b"", number(offset, "offset")?, number(len, "length")?)
}

fn spc(line: &[u8]) -> Result<Parsed<'_>, LineFault> {
    // Fields after the timestamp belong to the publisher.
    let mut all = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut next = || all.next().ok_or_else(|| "the line has fewer than 5 fields".to_owned());
    let (unit, block, len, op, time) = (next()?, next()?, next()?, next()?, next()?);
    number(unit, "ASU")?;
    seconds(time)?;
    request(letter(op)?, unit, sectors(number(block, "LBA")?)?, number(len, "size")?)
}

fn msr(line: &[u8]) -> Result<Parsed<'_>, LineFault> {
    let [time, host, disk, kind, offset, len, _] = fields(line)?;
    number(time, "timestamp")?;
    number(disk, "disk number")?;
    let op = match kind {
        kind if kind.eq_ignore_ascii_case(b"read") => Op::Read,
        kind if kind.eq_ignore_ascii_case(b"write") => Op::Write,
        kind => return Err(format!("type {} is neither Read nor Write", shown(kind))),
    };
    if host.is_empty() {
        return Err("the host has no name".to_owned());
    }
    // Host and disk together name the device. They are adjacent.
    let start = line.iter().position(|byte| *byte == b',').map_or(0, |comma| comma + 1);
    let commas = line.iter().enumerate().filter(|(_, byte)| **byte == b',');
    let end = commas.map(|(at, _)| at).nth(2).unwrap_or(line.len());
    request(op, line[start..end].trim_ascii(), number(offset, "offset")?, number(len, "size")?)
}

/// Exactly `N` fields between commas, each without white space around it.
fn fields<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], LineFault> {
    let mut fields = [&line[..0]; N];
    let mut count = 0;
    for field in line.split(|byte| *byte == b',') {
        if let Some(place) = fields.get_mut(count) {
            *place = field.trim_ascii();
        }
        count += 1;
    }
    if count == N { Ok(fields) } else { Err(format!("the line has {count} fields and not {N}")) }
}

fn request(op: Op, device: &[u8], offset: u64, len: u64) -> Result<Parsed<'_>, LineFault> {
    if len > REQUEST_BYTES_MAX {
        return Err(format!("a request of {len} bytes is longer than {REQUEST_BYTES_MAX} (1 GiB)"));
    }
    if offset > END_BYTES_MAX - len {
        return Err(format!("a request of {len} bytes at offset {offset} ends beyond 4 PiB"));
    }
    Ok(Parsed { op, device, offset, len: len as u32 })
}

fn letter(op: &[u8]) -> Result<Op, LineFault> {
    match op {
        b"r" | b"R" => Ok(Op::Read),
        b"w" | b"W" => Ok(Op::Write),
        other => Err(format!("operation {} is neither r nor w", shown(other))),
    }
}

fn number(text: &[u8], what: &str) -> Result<u64, LineFault> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("{what} {} is not a whole number", shown(text)))
}

fn seconds(text: &[u8]) -> Result<f64, LineFault> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    let seconds = parsed.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("timestamp {} is not a number of seconds", shown(text)))
}

fn sectors(count: u64) -> Result<u64, LineFault> {
    count.checked_mul(SECTOR_BYTES).ok_or_else(|| format!("{count} sectors are more than 4 PiB"))
}

/// Whether a word is a device's numbers, such as `8,0`.
fn is_device(word: &[u8]) -> bool {
    let mut numbers = word.split(|byte| *byte == b',');
    let mut is_number = || numbers.next().is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    is_number() && is_number() && numbers.next().is_none()
}

/// Bytes of a trace in the form of messages.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]);
    if bytes.len() > LONGEST { format!("{text:?}...") } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(op: Op, device: &str, offset: u64, len: u32) -> Parsed<'_> {
        Parsed { op, device: device.as_bytes(), offset, len }
    }

    #[test]
    fn lines_say_what_they_say_and_show_their_form() {
        for (format, line, expected) in [
            (Format::Csv, "r,4096,512", parsed(Op::Read, "", 4096, 512)),
            (Format::Csv, "W , 0,1073741824", parsed(Op::Write, "", 0, 1 << 30)),
            (Format::Spc, "0,303567,3584,w,0.000000", parsed(Op::Write, "0", 303_567 * 512, 3584)),
            (Format::Spc, "23, 8,512, R,1e3,more,fields", parsed(Op::Read, "23", 4096, 512)),
            (
                Format::Msr,
                "128166372003061629,hm,1,Read,383496192,32768,413",
                parsed(Op::Read, "hm,1", 383_496_192, 32_768),
            ),
            (Format::Msr, "1,src1,0,WRITE,1,2,3", parsed(Op::Write, "src1,0", 1, 2)),
            (
                Format::Blkparse,
                "8,0  3  1  0.000000000   697  Q   R 223490 + 8 [kjournald]",
                parsed(Op::Read, "8,0", 223_490 * 512, 4096),
            ),
            (Format::Blkparse, "259,1 0 2 1.5 1 Q WFS 16 + 1 [a b]", parsed(Op::Write, "259,1", 8192, 512)),
            (Format::Blkparse, "8,16 0 2 1.5 1 Q RA 1 + 2", parsed(Op::Read, "8,16", 512, 1024)),
        ] {
            assert_eq!(Parser::new(format).parse(line.as_bytes()), Ok(Some(expected)), "{line}");
            assert_eq!(Format::detect(line.as_bytes()), Some(format), "{line}");
        }
    }

    #[test]
    fn headings_show_the_form() {
        for (format, line) in [
            (Format::Csv, "op,offset,length"),
            (Format::Csv, "Op, Offset, Length"),
            (Format::Spc, "ASU,LBA,Size,Opcode,Timestamp"),
            (Format::Msr, "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime"),
            (Format::Blkparse, "Input file sda.blktrace.0 added"),
        ] {
            assert_eq!(Format::detect(line.as_bytes()), Some(format), "{line}");
        }
        for line in ["", "hello", "1,2", "x,1,2", "r,1,2,3", "0,1,2,x,0"] {
            assert_eq!(Format::detect(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn what_blkparse_prints_beside_requests_is_passed_over() {
        let mut parser = Parser::new(Format::Blkparse);
        for line in [
            "8,0 3 2 0.000001829 697 P N [kjournald]",
            "8,0 3 3 0.000002197 697 G W 223490 + 8 [kjournald]",
            "8,0 3 0 0.0 0 m N cfq697 insert_request",
            "8,0 3 4 0.1 697 Q DS 223490 + 8 [fstrim]",
            "8,0 3 4 0.1 697 Q FWS [jbd2]",
            "8,0 3 4 0.1 697 Q N 0 + 0 [smartd]",
            "8,0 3 4 0.1 697 Q FWS 0 + 0 [jbd2]",
            "8,0 3 5 0.1 697 C R 223490 + 8 [0]",
            "CPU0 (sda):",
            "Reads Queued:           0,        0KiB  Writes Queued:          24,      192KiB",
            "Total (sda):",
            "Throughput (R/W): 0KiB/s / 64KiB/s",
            "Skips: 0 forward (0 -   0.0%)",
        ] {
            assert_eq!(parser.parse(line.as_bytes()), Ok(None), "{line}");
        }
        assert!(
            parser.parse(b"8,0 3 1 0.0 697 Q R 8 + 8 [x]").unwrap().is_some(),
            "another trace may follow the totals"
        );
        assert!(parser.parse(b"Skips: 0 forward").is_err(), "but no totals without their head");
    }

    #[test]
    fn bad_lines_are_refused_with_the_reason() {
        for (format, line, said) in [
            (Format::Csv, "r,1", "2 fields and not 3"),
            (Format::Csv, "r,1,2,3", "4 fields and not 3"),
            (Format::Csv, "x,1,2", "operation \"x\" is neither"),
            (Format::Csv, "read,1,2", "operation \"read\" is neither"),
            (Format::Csv, "r,-1,2", "offset \"-1\""),
            (Format::Csv, "r,,2", "offset \"\""),
            (Format::Csv, "r,+1,2", "offset \"+1\""),
            (Format::Csv, "r,18446744073709551616,2", "not a whole number"),
            (Format::Csv, "r,1,1073741825", "longer than"),
            (Format::Csv, "r,4503599627370496,1", "beyond 4 PiB"),
            (Format::Csv, "r,18446744073709551615,1", "beyond 4 PiB"),
            (Format::Csv, "r,\u{663},1", "not a whole number"),
            (Format::Spc, "0,1,2,r", "fewer than 5"),
            (Format::Spc, "a,1,2,r,0", "ASU \"a\""),
            (Format::Spc, "0,18446744073709551615,2,r,0", "4 PiB"),
            (Format::Spc, "0,1,2,r,nan", "timestamp"),
            (Format::Spc, "0,1,2,r,soon", "timestamp"),
            (Format::Msr, "1,hm,1,Trim,1,2,3", "neither Read nor Write"),
            (Format::Msr, "1,,1,Read,1,2,3", "no name"),
            (Format::Msr, "1,hm,x,Read,1,2,3", "disk number"),
            (Format::Blkparse, "8,0 3 1 0.0 697", "fewer than 6"),
            (Format::Blkparse, "8,0 3 1 0.0 697 Q", "reads or writes"),
            (Format::Blkparse, "8,0 3 1 0.0 697 Q R", "sector is missing"),
            (Format::Blkparse, "8,0 3 1 0.0 697 Q R [x]", "sector \"[x]\""),
            (Format::Blkparse, "8,0 3 1 0.0 697 Q R 8 8 [x]", "no `+`"),
            (Format::Blkparse, "8,0 3 1 0.0 697 Q R 8 +", "count of sectors is missing"),
            (Format::Blkparse, "sda 3 1 0.0 697 Q R 8 + 8", "\"sda\" is not a device"),
        ] {
            let bad = Parser::new(format).parse(line.as_bytes()).unwrap_err();
            assert!(bad.contains(said), "{line}: {bad}");
        }
    }

    #[test]
    fn names_go_back_and_forth() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("CSV".parse::<Format>().unwrap_err().contains("blkparse"));
    }
}
