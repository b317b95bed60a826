//! `iomill-lab replay --simulate`: the accesses of a trace that hit in simulated caches.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use iomill_trace::reference::{self, ARC, Distance, LRU, Reference};
use iomill_trace::simulate::{self, Outcome, Policy};
use iomill_trace::{Pages, Reader, chart, pages};
use serde_json::{Value, json};

use super::name::trace_name;
use crate::arguments::Replay;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::progress::Progress;
use iomill_cli::table::Table;

/// Least share of accesses that must return to a page. A trace with less is no test of a cache.
const REUSE_MIN: f64 = 0.01;

/// The policies of a reference that get a column.
const REFERENCE_COLUMNS: [&str; 5] = [LRU, "CLOCK", ARC, "S3-FIFO", "Belady-MIN"];

/// The results of one trace.
struct Traced {
    name: String,
    outcomes: Vec<Outcome>,
    /// Whether the share of accesses that return to a page reaches `REUSE_MIN`.
    has_reuse: bool,
}

pub fn run(context: &Context<'_>, arguments: &Replay) -> Result<Answer> {
    let reference = arguments.reference.as_deref().map(Reference::open).transpose()?;
    let interrupt = Interrupt::install()?;
    let (mut traces, all) = (Vec::new(), Policy::all());
    for path in &arguments.traces {
        let name = trace_name(path);
        let bar = CombinationsBar::new(context, &name);
        let mut reader = Reader::open(path, arguments.format)?;
        let pages = Pages::load(&mut reader, arguments.limit, pages::memory_bytes())?;
        interrupt.check()?;
        let sizes = sizes(arguments, reference.as_ref(), &name, &pages)?;
        let policies = if arguments.policies.is_empty() { &all[..] } else { &arguments.policies };
        let cases = simulate::cases(policies, &sizes, &arguments.set_sizes);
        let outcomes = simulate::run(&pages, &cases, interrupt.flag(), &|done| bar.show(done, cases.len()))?;
        interrupt.check()?;
        let reuse = 1.0 - pages.unique() as f64 / pages.len() as f64;
        traces.push(Traced { name, outcomes: outcomes.unwrap_or_default(), has_reuse: reuse >= REUSE_MIN });
    }
    if let Some(path) = &arguments.svg {
        let panels: Vec<_> = traces.iter().map(|trace| (trace.name.as_str(), &trace.outcomes[..])).collect();
        std::fs::write(path, chart::svg(&panels)?).map_err(Failure::local("write", path))?;
    }
    let text = match &reference {
        Some(reference) => compared(context, &traces, reference),
        None => table(&traces, None),
    };
    let documents = traces.iter().flat_map(|trace| trace.outcomes.iter().map(|o| document(&trace.name, o, &reference)));
    Ok(Answer::lines(text, documents.collect()))
}

/// The caches' sizes for a trace.
fn sizes(arguments: &Replay, reference: Option<&Reference>, name: &str, pages: &Pages) -> Result<Vec<u64>> {
    if !arguments.cache_pages.is_empty() {
        return Ok(arguments.cache_pages.clone());
    }
    let Some(reference) = reference else { return Ok(simulate::default_sizes(pages.unique())) };
    let sizes = reference.sizes(name);
    if sizes.is_empty() {
        let why = format!(
            "the reference has no trace named {name:?}; leave that trace out, or give sizes with --cache-pages"
        );
        return Err(Failure::Usage(why));
    }
    Ok(sizes)
}

fn document(trace: &str, outcome: &Outcome, reference: &Option<Reference>) -> Value {
    let case = outcome.case;
    let mut document = json!({
        "trace": trace,
        "policy": case.policy.name(),
        "cache_pages": case.cache_pages,
        "cache_pages_used": case.pages_used(),
        "set_size": case.set_size,
        "hit_rate_warm": outcome.hit_rate_warm,
        "hit_rate_whole": outcome.hit_rate_whole,
        "accesses_per_s": outcome.accesses_per_s,
    });
    if let Some(reference) = reference {
        document["reference"] = json!(reference.rates(trace, case.cache_pages));
    }
    document
}

/// All outcomes, one row each.
fn table(traces: &[Traced], reference: Option<&Reference>) -> String {
    let mut headings = vec!["trace", "policy", ">set size", ">cache pages", ">used", ">warm hits, %", ">all hits, %"];
    let theirs = reference.map(|_| REFERENCE_COLUMNS.map(|policy| format!(">{policy}"))).unwrap_or_default();
    if reference.is_some() {
        headings.extend(theirs.iter().map(String::as_str));
    }
    let mut table = Table::new(&headings);
    for trace in traces {
        for outcome in &trace.outcomes {
            let case = outcome.case;
            let mut row = vec![
                trace.name.clone(),
                case.policy.to_string(),
                case.set_size.map_or("-".to_owned(), |size| size.to_string()),
                case.cache_pages.to_string(),
                case.pages_used().to_string(),
                percent(outcome.hit_rate_warm),
                percent(outcome.hit_rate_whole),
            ];
            row.extend(reference.into_iter().flat_map(|reference| {
                let rate = |policy| reference.rate(&trace.name, case.cache_pages, policy);
                REFERENCE_COLUMNS.map(|policy| rate(policy).map_or("-".to_owned(), percent))
            }));
            table.row(row);
        }
    }
    table.render()
}

/// The table with the reference's hit rates, and the differences between ours and those.
fn compared(context: &Context<'_>, traces: &[Traced], reference: &Reference) -> String {
    for trace in traces.iter().filter(|trace| !trace.has_reuse) {
        context.note([format!(
            "{}: fewer than {}% of its accesses return to a page, so the means leave it out",
            trace.name,
            100.0 * REUSE_MIN
        )]);
    }
    let counted = traces.iter().filter(|trace| trace.has_reuse);
    let outcomes: Vec<_> = counted.flat_map(|trace| trace.outcomes.iter().map(|o| (trace.name.as_str(), *o))).collect();
    let mut text = table(traces, Some(reference));
    let distances = reference::distances(reference, &outcomes);
    let _ = writeln!(
        text,
        "\nWarm hit rates minus those of the reference's {LRU} and {ARC}, in percentage points, over all cells of {} pages or more:",
        simulate::PAGES_MIN
    );
    text + &distance_table(&distances)
}

fn distance_table(distances: &[Distance]) -> String {
    let headings = ["policy", ">set size", ">cells", ">mean, %", ">over LRU", ">worst", "in", ">over ARC"];
    let mut table = Table::new(&headings);
    let points = |value: f64| format!("{:+.2}", 100.0 * value);
    for distance in distances {
        let (worst, trace, pages) = &distance.worst;
        table.row([
            distance.policy.to_string(),
            distance.set_size.map_or("-".to_owned(), |size| size.to_string()),
            distance.cells.to_string(),
            percent(distance.mean),
            points(distance.over_lru),
            points(*worst),
            format!("{trace}, {pages} pages"),
            points(distance.over_arc),
        ]);
    }
    table.render()
}

pub(super) fn percent(rate: f64) -> String {
    format!("{:.2}", 100.0 * rate)
}

/// The progress over the combinations, on a terminal only. Threads share it.
pub(super) struct CombinationsBar(Mutex<Progress>);

impl CombinationsBar {
    pub(super) fn new(context: &Context<'_>, name: &str) -> CombinationsBar {
        let mut progress = Progress::of_steps(context.global);
        progress.say(format!("reading {name}"));
        CombinationsBar(Mutex::new(progress))
    }

    pub(super) fn show(&self, done: usize, total: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(done as u64, total as u64);
    }
}
