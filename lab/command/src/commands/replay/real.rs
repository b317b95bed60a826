//! `iomill-lab replay` on an array or a plain file: makes the requests of a trace on a file, in order.
//!
//! Without a named file it uses a temporary one, which is removed. A named file changes only with `--writes`, and a
//! plain file never. A killed replay leaves a file `replay-` and a number.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use iomill::{Array, ArrayOptions, File, PlainOptions, PolicyKind, Runtime};
use iomill_cli::human;
use iomill_trace::pages::PAGE_BYTES;
use iomill_trace::replay::{self, Figures, Owner, ReplayMode, Settings, Survey};
use iomill_trace::simulate::Policy;
use iomill_trace::{Reader, TraceError};
use serde_json::{Value, json};

use super::name::trace_name;
use crate::arguments::Replay;
use crate::arguments::check_cache;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::naming;
use iomill_cli::progress::Progress;
use iomill_cli::table::Table;

/// Time between updates of the progress bar.
const LOOK: Duration = Duration::from_millis(50);

/// A replay that can begin.
struct Task<'a> {
    context: &'a Context<'a>,
    arguments: &'a Replay,
    path: &'a Path,
    survey: Survey,
    interrupt: Interrupt,
    /// They include the cache that the user chose.
    options: ArrayOptions,
}

pub fn run(context: &Context<'_>, arguments: &Replay) -> Result<Answer> {
    let [path] = &arguments.traces[..] else {
        let why = "give one trace to replay on a file; --simulate takes several";
        return Err(Failure::Usage(why.to_owned()));
    };
    // An error of the array or the file comes before the trace is read, which may take long.
    let options = with_cache(context, arguments)?;
    let plain = match &arguments.plain {
        Some(plain) => Some((plain, open_plain(context, plain, &options)?)),
        None => context.starts().map(|_| None)?,
    };
    let kind = std::fs::metadata(path).map_err(Failure::local("read", path))?;
    if !kind.is_file() {
        let why = "it is no regular file, and a trace is read more than once; write the trace to a regular file first"
            .to_owned();
        return Err(TraceError::Whole { path: path.display().to_string(), why }.into());
    }
    let interrupt = Interrupt::install()?;
    let survey = Survey::of(&mut Reader::open(path, arguments.format)?, arguments.limit, interrupt.flag())?;
    interrupt.check()?;
    let task = Task { context, arguments, path, survey, interrupt, options };
    match (&arguments.file, plain) {
        (_, Some((path, (runtime, file)))) => task.on_plain(path, &runtime, file),
        (None, None) => task.on_temporary(),
        (Some(name), None) => {
            let array = task.options.clone().read_only(!task.writes()).open_at(context.starts()?)?;
            context.with(array, |array| task.on_file(array, name))
        }
    }
}

/// The options for the array during the replay itself.
fn with_cache(context: &Context<'_>, arguments: &Replay) -> Result<ArrayOptions> {
    let one = |what: &str| Failure::Usage(format!("a file's cache has one {what}; --simulate takes several"));
    let policy = match arguments.policies[..] {
        [] => PolicyKind::default(),
        [Policy::Sets(policy)] => policy,
        [policy] => {
            let why = format!("{policy} exists only with --simulate; a file's cache has {}", names());
            return Err(Failure::Usage(why));
        }
        _ => return Err(one("policy")),
    };
    let [set_size] = arguments.set_sizes[..] else { return Err(one("set size")) };
    let mut options = context.cached_options().with_cache(|cache| cache.policy(policy).set_pages(set_size as usize));
    options = options.with_cache(|cache| cache.read_ahead_bytes(arguments.read_ahead));
    if let Some(bytes) = arguments.cache {
        // The library refuses that too, but only after the file has been prepared.
        let least = u64::from(set_size) * PAGE_BYTES;
        if (1..least).contains(&bytes) {
            let why = format!(
                "a cache has at least one set of {set_size} pages, which is {least} bytes; give more, or 0 for no cache"
            );
            return Err(Failure::Usage(why));
        }
        if bytes == 0 && (!arguments.policies.is_empty() || arguments.read_ahead > 0) {
            let why = "--policy and --read-ahead need a cache, and with --cache 0 there is none; leave one of them out";
            return Err(Failure::Usage(why.to_owned()));
        }
        check_cache(bytes)?;
        options = options.cache_bytes(bytes);
    }
    Ok(options)
}

fn names() -> String {
    PolicyKind::all().map(PolicyKind::name).collect::<Vec<_>>().join(", ")
}

/// Opens a plain file for reading, with a cache of its own.
fn open_plain(context: &Context<'_>, path: &Path, options: &ArrayOptions) -> Result<(Runtime, File)> {
    let runtime = context.runtime_options(options.clone())?.start()?;
    let file = PlainOptions::new().runtime(&runtime).open(path)?;
    Ok((runtime, file))
}

impl Task<'_> {
    /// Whether the replay changes the named file.
    fn writes(&self) -> bool {
        self.arguments.writes && self.survey.writes > 0
    }

    fn on_file(&self, array: &Array, name: &str) -> Result<Answer> {
        let file = array.open_file(name)?;
        let end = self.survey.end_bytes;
        self.is_long_enough(&file, name, &format!("or extend this one by a hole with `iomill truncate {name} {end}`"))?;
        let mode = if self.arguments.writes { ReplayMode::AsRecorded } else { ReplayMode::ReadsOnly };
        let left_out = if self.arguments.writes { 0 } else { self.survey.writes };
        self.note_left_out(left_out, &format!("--writes lets them change {name:?}"));
        let figures = self.replay(Owner::Array(array), &file, mode, "")?;
        file.close()?;
        self.answer(&figures, (Some(name), None), left_out)
    }

    fn on_plain(&self, path: &Path, runtime: &Runtime, file: File) -> Result<Answer> {
        self.is_long_enough(
            &file,
            &path.display().to_string(),
            "or replay only the beginning of the trace with --limit",
        )?;
        self.note_left_out(self.survey.writes, "a plain file is only read");
        let replayed = self.replay(Owner::Runtime(runtime), &file, ReplayMode::ReadsOnly, "");
        let closed = file.close();
        self.context.note(runtime.notices());
        let figures = replayed?;
        closed?;
        self.answer(&figures, (None, Some(path)), self.survey.writes)
    }

    /// Refuses a file that ends before the trace's last request. `way_out` is advice besides the choice of another
    /// file.
    fn is_long_enough(&self, file: &File, name: &str, way_out: &str) -> Result<()> {
        let (len, end) = (file.len(), self.survey.end_bytes);
        if len >= end {
            return Ok(());
        }
        let why = format!("it has {len} bytes, and the trace reaches {end}; choose a longer file, {way_out}");
        Err(iomill::Error::invalid(format!("file {name:?}"), why).into())
    }

    fn note_left_out(&self, writes: u64, why: &str) {
        if writes > 0 {
            self.context.note([format!("{} writes are left out; {why}", human::count(writes as f64))]);
        }
    }

    /// Replays on a new temporary file. It is prepared without the cache, which is empty when the replay begins.
    fn on_temporary(&self) -> Result<Answer> {
        let name = naming::for_replay()?;
        self.context.with_writer(|array| {
            let file = array.create_file(&name, &iomill::FileOptions::new())?;
            self.prepare(array, file).map_err(|failure| match array.delete(&name) {
                Ok(()) => failure,
                Err(error) => failure.and(format!("{error}; {}", remains(&name))),
            })
        })?;
        let opened = self.context.starts().and_then(|starts| Ok(self.options.clone().open_at(starts)?));
        let array = opened.map_err(|failure| match self.context.with_writer(|array| Ok(array.delete(&name)?)) {
            Ok(()) => failure,
            Err(other) => failure.and(format!("{other}; {}", remains(&name))),
        })?;
        self.context.with(array, |array| {
            let replayed = self.replay_on(array, &name);
            match (replayed, array.delete(&name)) {
                (Ok(figures), Ok(())) => self.answer(&figures, (None, None), 0),
                (Ok(_), Err(error)) => Err(Failure::from(error).and(remains(&name))),
                (Err(failure), Ok(())) => Err(failure),
                (Err(failure), Err(error)) => Err(failure.and(format!("{error}; {}", remains(&name)))),
            }
        })
    }

    /// Makes a new file as long as the trace needs, with data in all pages that the trace touches. It is closed when
    /// this returns.
    fn prepare(&self, array: &Array, file: File) -> Result<()> {
        let fill = || {
            // Preparing writes whole pages.
            file.set_len(self.survey.end_bytes.next_multiple_of(PAGE_BYTES))?;
            if self.arguments.sparse {
                let what = "the file is empty: pages that the trace has not written are holes, and reads of them reach no drive";
                self.context.note([what.to_owned()]);
                return Ok(());
            }
            self.replay(Owner::Array(array), &file, ReplayMode::Prepare, "preparing").map(|_figures| ())
        };
        close_or_discard(fill(), file)
    }

    /// Opens the file, replays on it and closes it.
    fn replay_on(&self, array: &Array, name: &str) -> Result<Figures> {
        let file = array.open_file(name)?;
        close_or_discard(self.replay(Owner::Array(array), &file, ReplayMode::AsRecorded, ""), file)
    }

    /// Goes through the trace once, and shows the progress.
    fn replay(&self, owner: Owner<'_>, file: &File, mode: ReplayMode, what: &'static str) -> Result<Figures> {
        let settings = Settings { threads: self.arguments.threads.into(), mode, limit: self.arguments.limit };
        let reader = Reader::open(self.path, self.arguments.format)?;
        let written = if mode == ReplayMode::ReadsOnly { 0 } else { self.survey.write_bytes };
        let mut progress = Progress::new(self.context.global, Some(self.survey.read_bytes + written));
        progress.say(what);
        let done = AtomicU64::new(0);
        let (cancel, survey) = (self.interrupt.flag(), &self.survey);
        let figures = thread::scope(|scope| {
            let work = || replay::run(reader, (owner, file), survey, settings, &done, cancel);
            let work = match thread::Builder::new().name("replay".to_owned()).spawn_scoped(scope, work) {
                Ok(work) => work,
                Err(error) => return Err(machine(&error.to_string())),
            };
            let mut shown = 0;
            while !work.is_finished() {
                thread::sleep(LOOK);
                let now = done.load(Ordering::Relaxed);
                progress.advance(now - shown);
                shown = now;
            }
            work.join().map_err(|_| machine("it panicked; its message is above"))
        });
        self.interrupt.check()?;
        Ok(figures??)
    }

    /// `file` is the named file of the array, and `plain` the plain file.
    fn answer(&self, figures: &Figures, (file, plain): (Option<&str>, Option<&Path>), left_out: u64) -> Result<Answer> {
        let (p50, p99) = (figures.latency_us(50.0), figures.latency_us(99.0));
        let headings = ["trace", "?>requests", ">op/s", "?>bytes/s", ">p50", ">p99", ">warm hits, %", ">all hits, %"];
        let mut table = Table::new(&headings);
        let (warm, whole) = (figures.warm.hit_rate(), figures.whole.hit_rate());
        let percent = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{:.2}", 100.0 * rate));
        table.row([
            trace_name(self.path),
            human::count((figures.reads + figures.writes) as f64),
            human::count(figures.ops_per_s()),
            human::rate(figures.bytes_per_s()),
            human::time_us(p50),
            human::time_us(p99),
            percent(warm),
            percent(whole),
        ]);
        let document: Value = json!({
            "trace": trace_name(self.path),
            "file": file,
            "plain": plain.map(|path| path.to_string_lossy()),
            "threads": self.arguments.threads,
            "reads": figures.reads,
            "writes": figures.writes,
            "writes_left_out": left_out,
            "bytes": figures.bytes,
            "seconds": figures.wall.as_secs_f64(),
            "ops_per_s": figures.ops_per_s(),
            "bytes_per_s": figures.bytes_per_s(),
            "p50_us": p50,
            "p99_us": p99,
            "cache_bytes": figures.whole.cache_bytes,
            "hit_rate_warm": warm,
            "hit_rate_whole": whole,
        });
        Ok(Answer::new(table.render(), document))
    }
}

/// Closes the temporary file. After a failure it discards the file's pages, because the file will be deleted and
/// writing them may take long.
fn close_or_discard<T>(result: Result<T>, file: File) -> Result<T> {
    match result {
        Ok(done) => Ok(file.close().map(|()| done)?),
        Err(failure) => {
            file.discard();
            Err(failure)
        }
    }
}

fn machine(why: &str) -> Failure {
    iomill::Error::Tool { what: "the thread that replays".to_owned(), why: why.to_owned() }.into()
}

fn remains(name: &str) -> String {
    format!("the temporary file {name:?} remains; remove it later with `iomill rm {name}`")
}
