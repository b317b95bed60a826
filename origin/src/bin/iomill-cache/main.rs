//! The command of a cache: `init`, `stat`, `ls`, `verify`, `evict`, `pin` and `unpin`. It may run while other processes
//! use the cache. Non-goals: names of objects, which the drives do not have: `ls`, `verify` and `pin` ask the store.

mod answer;
mod call;
#[cfg(feature = "clients")]
mod objects;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use iomill_origin::{Cache, Options};

use answer::{Answer, Failure};
use call::{Call, HELP, Verb, parsed};

/// The standard output of a caller that may have closed it, as in the command `iomill`.
#[path = "../../../../crates/iomill-cli/src/streams.rs"]
#[expect(
    dead_code,
    unsafe_code,
    reason = "the standard input is not read here; each unsafe block of the file says why"
)]
mod streams;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let json = has("--json");
    if arguments.is_empty() || has("--help") || has("-h") {
        return print(HELP).unwrap_or_else(|failure| failed(&[failure], json));
    }
    match parsed(arguments).and_then(|call| run(&call)) {
        Ok(answer) => {
            let text = if json { answer.json() } else { answer.text() };
            let printed = print(&text).unwrap_or_else(|failure| failed(&[failure], json));
            // Drives that are left out, or have failed: the rest is done.
            if answer.notices.is_empty() { printed } else { failed(&answer.failures(), json) }
        }
        Err(failure) => failed(&[failure], json),
    }
}

/// Reports failures on the standard error. Returns the exit code of the first one.
fn failed(failures: &[Failure], json: bool) -> ExitCode {
    for failure in failures {
        let line = if json { failure.json() } else { format!("iomill-cache: {}", failure.message) };
        // Without a standard error there is no place for it.
        let _ = writeln!(io::stderr(), "{line}");
    }
    failures.first().map_or(ExitCode::FAILURE, Failure::code)
}

fn print(text: &str) -> Result<ExitCode, Failure> {
    match streams::stdout().and_then(|mut out| out.write_all(text.as_bytes())) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The code that a shell shows for a tool that SIGPIPE ended.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::from(128 + 13)),
        Err(error) => Err(Failure::new("local", format!("cannot write to standard output: {error}"))),
    }
}

fn has_drive(dir: &Path) -> bool {
    dir.join("iomill-origin/label").exists()
}

fn open(call: &Call) -> Result<Cache, Failure> {
    let is_init = call.verb == Verb::Init;
    // A directory that is none must not become one by a look at it.
    if let Some(dir) = call.dirs.iter().find(|dir| !is_init && !has_drive(dir)) {
        let why = "no drive of a cache is here; mount the drive, or make one by `iomill-cache init`";
        return Err(Failure::new("no_array", format!("{}: {why}", dir.display())));
    }
    let mut options = Options::new().memory_bytes(1 << 20).on_root(is_init).anew(is_init);
    if let Some(bytes) = call.bytes {
        options = options.bytes(bytes);
    }
    if let Some(bytes) = call.granule {
        let bytes = u32::try_from(bytes).map_err(|e| Failure::new("invalid", format!("--granule: {e}")))?;
        options = options.granule_bytes(bytes);
    }
    if let Some(dir) = &call.index {
        options = options.index_dir(dir);
    }
    Ok(Cache::open(&call.dirs, options.by_time(call.by_time))?)
}

fn run(call: &Call) -> Result<Answer, Failure> {
    let cache = open(call)?;
    let mut answer = Answer::default();
    if call.verb == Verb::Evict {
        answer.count("evicted_bytes", cache.evict()?, "bytes were given back");
    }
    cache.wait_until_loaded();
    match (call.verb, &call.url) {
        (Verb::Unpin, None) => answer.count("unpinned_bytes", cache.unpin_all()?, "bytes were unpinned"),
        (Verb::Ls | Verb::Verify | Verb::Pin | Verb::Unpin, Some(url)) => {
            with_objects(call, url, &cache, &mut answer)?;
        }
        _ => {}
    }
    // Pinned bytes are written behind the fetch.
    cache.flush();
    answer.drives = cache.stat();
    answer.notices = cache.notices();
    Ok(answer)
}

#[cfg(feature = "clients")]
use objects::with_objects;

#[cfg(not(feature = "clients"))]
fn with_objects(call: &Call, _url: &str, _cache: &Cache, _answer: &mut Answer) -> Result<(), Failure> {
    let verb = call.verb.name();
    let why = format!(
        "{verb} needs the store of the objects, and this program was built without clients of stores: install it by `cargo \
         install --path origin --features clients`, or use `Cached::pin` of the crate or `CachedStore.pin` of Python"
    );
    Err(Failure::new("invalid", why))
}
