//! The command of a cache: `init`, `stat`, `evict` and `unpin`. It may run while other processes use the cache. Non-goals: names of objects, which are not on
//! the drives.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use iomill_origin::{Cache, Options};

/// The standard output of a caller that may have closed it, as the command `iomill` has it.
#[path = "../../../crates/iomill-cli/src/streams.rs"]
#[expect(
    dead_code,
    unsafe_code,
    reason = "the standard input is not read here; each unsafe block of the file says why"
)]
mod streams;

const HELP: &str = "A cache of objects on local drives.

usage: iomill-cache init [--bytes SIZE] [--granule SIZE] [--index DIR] DIR...
       iomill-cache stat [--index DIR] DIR...
       iomill-cache evict [--index DIR] DIR...
       iomill-cache unpin [--index DIR] DIR...

init    makes directories, one on each drive, into the drives of a cache, also on the file system of `/`, and also those that have been drives
        of it and are empty now
stat    says how much is on each drive
evict   forgets all that is cached, and gives its space back
unpin   lets all that programs have pinned go as all else does

--bytes    what all drives together may take; three quarters of what is free by default
--granule  the length of a granule, from 4K to 64K; 16K by default
--index    the directory of the index that all processes share; /dev/shm by default

A SIZE is a number of bytes, or one with K, M, G, T or P (also Ki and KiB), which are powers of 1024.
";

/// What the command line says.
struct Call {
    verb: String,
    bytes: Option<u64>,
    granule: Option<u64>,
    index: Option<PathBuf>,
    dirs: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let asks_for_help =
        arguments.is_empty() || arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let said = if asks_for_help { Ok(HELP.to_owned()) } else { parsed(arguments).and_then(|call| run(&call)) };
    said.and_then(|said| print(&said)).unwrap_or_else(|why| {
        // Without a standard error there is no place for it.
        let _ = writeln!(io::stderr(), "iomill-cache: {why}");
        ExitCode::FAILURE
    })
}

fn print(text: &str) -> Result<ExitCode, String> {
    match streams::stdout().and_then(|mut out| out.write_all(text.as_bytes())) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The code that a shell shows for a tool that SIGPIPE ended.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::from(128 + 13)),
        Err(error) => Err(format!("cannot write to standard output: {error}")),
    }
}

fn parsed(arguments: Vec<OsString>) -> Result<Call, String> {
    let mut arguments = arguments.into_iter();
    let verb = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let mut call = Call { verb, bytes: None, granule: None, index: None, dirs: Vec::new() };
    while let Some(argument) = arguments.next() {
        // Only directories may have names that are not UTF-8, and such a name is no option below.
        let option = argument.to_string_lossy();
        let mut value = || arguments.next().ok_or_else(|| format!("{option} needs a value"));
        match &*option {
            "--bytes" => call.bytes = Some(size(&value()?.to_string_lossy())?),
            "--granule" => call.granule = Some(size(&value()?.to_string_lossy())?),
            "--index" => call.index = Some(value()?.into()),
            other if other.starts_with('-') => return Err(format!("no option {other}; see --help")),
            _ => call.dirs.push(PathBuf::from(&argument)),
        }
    }
    if call.dirs.is_empty() {
        return Err("name the directories of the drives; see --help".into());
    }
    if call.verb != "init" && (call.bytes.is_some() || call.granule.is_some()) {
        return Err("--bytes and --granule are for init: a drive keeps what it was made with".into());
    }
    Ok(call)
}

/// As the command `iomill` reads sizes: digits, then nothing, `B`, or one of `K`, `Ki`, `KiB` (also `k`); the same with `M`, `G`, `T`, `P`. All units
/// are powers of 1,024. `KB` and `MB` are refused, because they are ambiguous.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|e| format!("{text:?} is no size: {e}"))?;
    let mut letters = unit.chars();
    let shift = match (letters.next(), letters.as_str()) {
        (None, _) | (Some('B'), "") => Some(0),
        (Some(letter), "" | "i" | "iB") => {
            "KMGTP".find(if letter == 'k' { 'K' } else { letter }).map(|place| 10 * (place + 1))
        }
        _ => None,
    };
    let shift = shift.ok_or_else(|| {
        format!("{text:?}: a size is bytes, or has K, Ki, KiB, or the same with M, G, T, P (powers of 1024)")
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too much"))
}

fn has_drive(dir: &Path) -> bool {
    dir.join("iomill-origin/label").exists()
}

fn run(call: &Call) -> Result<String, String> {
    let is_init = call.verb == "init";
    let mut options = Options::new().memory_bytes(1 << 20).on_root(is_init).anew(is_init);
    if let Some(bytes) = call.bytes {
        options = options.bytes(bytes);
    }
    if let Some(bytes) = call.granule {
        options = options.granule_bytes(u32::try_from(bytes).map_err(|e| format!("--granule: {e}"))?);
    }
    if let Some(dir) = &call.index {
        options = options.index_dir(dir);
    }
    if !["init", "stat", "evict", "unpin"].contains(&call.verb.as_str()) {
        return Err(format!("no command {:?}; see --help", call.verb));
    }
    // A directory that is none must not become one by a look at it.
    if let Some(dir) = call.dirs.iter().find(|dir| call.verb != "init" && !has_drive(dir)) {
        return Err(format!(
            "{}: no cache has a drive here; mount the drive, or make it one by `iomill-cache init`",
            dir.display()
        ));
    }
    let cache = Cache::open(&call.dirs, options).map_err(|error| error.to_string())?;
    let mut said = String::new();
    if call.verb == "evict" {
        let freed = cache.evict().map_err(|error| error.to_string())?;
        said += &format!("{freed} bytes were given back\n");
    }
    cache.wait_until_loaded();
    if call.verb == "unpin" {
        let unpinned = cache.unpin_all().map_err(|error| error.to_string())?;
        said += &format!("{unpinned} bytes were unpinned\n");
    }
    for drive in cache.stat() {
        let share = 100.0 * drive.filled_bytes as f64 / drive.bytes.max(1) as f64;
        said += &format!(
            "{}: {} bytes, {} cached ({share:.1}%), {} of them asked for lately, {} pinned, {} on the drive\n",
            drive.path.display(),
            drive.bytes,
            drive.filled_bytes,
            drive.touched_bytes,
            drive.pinned_bytes,
            drive.allocated_bytes
        );
    }
    let notices = cache.notices();
    notices.iter().for_each(|notice| said += &format!("{notice}\n"));
    if notices.is_empty() { Ok(said) } else { Err(said.trim_end().to_owned()) }
}
