//! [`Call`]: the parsed command line. Non-goals: its effects.

use std::ffi::OsString;
use std::path::PathBuf;

use super::answer::Failure;

pub const HELP: &str = "A cache of objects on local drives.

usage: iomill-cache init [--bytes SIZE] [--granule SIZE] [OPTION...] DIR...
       iomill-cache stat [OPTION...] DIR...
       iomill-cache ls --url URL [OPTION...] DIR...
       iomill-cache verify --url URL [OPTION...] DIR...
       iomill-cache evict [OPTION...] DIR...
       iomill-cache pin --url URL [OPTION...] DIR...
       iomill-cache unpin [--url URL] [OPTION...] DIR...

init    makes directories, one on each drive, the drives of a cache, also on the file system of `/`, and also
        directories of former drives that are empty now
stat    prints the bytes on each drive
ls      prints the cached and pinned bytes of an object, or of each object below a prefix
verify  reads the cached bytes of these objects from the drives, and compares their sums
evict   evicts all granules, and returns their space
pin     fetches these objects to the drives, and keeps them there until they are unpinned or the machine restarts
unpin   ends the pins of these objects; without --url, all pins

--bytes    the bytes of all drives together; by default three quarters of their free space
--granule  the length of a granule, from 4K to 64K; 16K by default
--url      an object, or the prefix of objects: s3://, gs://, az://, abfs://, http://, https:// or file:///, with the
           usual environment variables
--name     the name that the programs of this cache give the store; by default the one that Python's `iomill.cached`
           gives it
--by-time  objects without etag and version count, as with `Options::by_time`
--index    the directory of the index that all processes share; /dev/shm by default
--json     prints one object of JSON: see docs/origin.md

A SIZE is a number of bytes, or one with K, M, G, T or P (also Ki and KiB), which are powers of 1024.
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Init,
    Stat,
    Ls,
    Verify,
    Evict,
    Pin,
    Unpin,
}

const VERBS: [Verb; 7] = [Verb::Init, Verb::Stat, Verb::Ls, Verb::Verify, Verb::Evict, Verb::Pin, Verb::Unpin];

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Verb::Init => "init",
            Verb::Stat => "stat",
            Verb::Ls => "ls",
            Verb::Verify => "verify",
            Verb::Evict => "evict",
            Verb::Pin => "pin",
            Verb::Unpin => "unpin",
        }
    }

    /// Whether it is about objects, so that it needs their store.
    fn needs_url(self) -> bool {
        matches!(self, Verb::Ls | Verb::Verify | Verb::Pin)
    }
}

/// See the module.
pub struct Call {
    pub verb: Verb,
    pub bytes: Option<u64>,
    pub granule: Option<u64>,
    pub index: Option<PathBuf>,
    pub url: Option<String>,
    pub name: Option<String>,
    pub by_time: bool,
    pub dirs: Vec<PathBuf>,
}

fn usage(why: impl Into<String>) -> Failure {
    Failure::new("usage", why)
}

pub fn parsed(arguments: Vec<OsString>) -> Result<Call, Failure> {
    let mut arguments = arguments.into_iter().filter(|argument| argument != "--json");
    let verb = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let known = VERBS.into_iter().find(|known| known.name() == verb);
    let verb = known.ok_or_else(|| usage(format!("no command {verb:?}; see --help")))?;
    let (bytes, granule, index, url, name, by_time, dirs) = Default::default();
    let mut call = Call { verb, bytes, granule, index, url, name, by_time, dirs };
    while let Some(argument) = arguments.next() {
        // Only directories may have names that are not UTF-8, and such a name is no option below.
        let option = argument.to_string_lossy();
        let mut value = || arguments.next().ok_or_else(|| usage(format!("{option} needs a value")));
        match &*option {
            "--bytes" => call.bytes = Some(size(&value()?.to_string_lossy())?),
            "--granule" => call.granule = Some(size(&value()?.to_string_lossy())?),
            "--index" => call.index = Some(value()?.into()),
            "--url" => call.url = Some(text(&option, value()?)?),
            "--name" => call.name = Some(text(&option, value()?)?),
            "--by-time" => call.by_time = true,
            other if other.starts_with('-') => return Err(usage(format!("no option {other}; see --help"))),
            _ => call.dirs.push(PathBuf::from(&argument)),
        }
    }
    check(&call)?;
    Ok(call)
}

fn text(option: &str, value: OsString) -> Result<String, Failure> {
    value.into_string().map_err(|value| usage(format!("{option} {value:?}: it is not UTF-8")))
}

fn check(call: &Call) -> Result<(), Failure> {
    let verb = call.verb.name();
    if call.dirs.is_empty() {
        return Err(usage("name the directories of the drives; see --help"));
    }
    if call.verb != Verb::Init && (call.bytes.is_some() || call.granule.is_some()) {
        return Err(usage("--bytes and --granule are for init: a drive keeps the values with which it was made"));
    }
    if call.verb.needs_url() && call.url.is_none() {
        return Err(usage(format!("{verb} needs --url: the drives do not have the names of objects; see --help")));
    }
    let takes_url = call.verb.needs_url() || call.verb == Verb::Unpin;
    if !takes_url && (call.url.is_some() || call.name.is_some() || call.by_time) {
        return Err(usage(format!("{verb} takes no --url, --name and --by-time: it is about whole drives")));
    }
    if call.url.is_none() && (call.name.is_some() || call.by_time) {
        return Err(usage("--name and --by-time are for a store, which --url names"));
    }
    Ok(())
}

/// Sizes are read as by the command `iomill`: digits, then nothing, `B`, or one of `K`, `Ki`, `KiB` (also `k`); the
/// same with `M`, `G`, `T`, `P`. All units are powers of 1,024. `KB` and `MB` are refused, because they are ambiguous.
fn size(text: &str) -> Result<u64, Failure> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|e| usage(format!("{text:?} is no size: {e}")))?;
    let mut letters = unit.chars();
    let shift = match (letters.next(), letters.as_str()) {
        (None, _) | (Some('B'), "") => Some(0),
        (Some(letter), "" | "i" | "iB") => {
            "KMGTP".find(if letter == 'k' { 'K' } else { letter }).map(|place| 10 * (place + 1))
        }
        _ => None,
    };
    let shift = shift.ok_or_else(|| {
        usage(format!("{text:?}: a size is bytes, or has K, Ki, KiB, or the same with M, G, T, P (powers of 1024)"))
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| usage(format!("{text:?} is too much")))
}
