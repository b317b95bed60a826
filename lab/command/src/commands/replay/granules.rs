//! `iomill-lab replay --simulate --granule`: the hit rates of caches of parts of pages, beside caches of pages with the
//! same memory.

use iomill_cli::human;
use iomill_trace::granules::{self, GranuleOutcome, Granules};
use iomill_trace::pages::PAGE_BYTES;
use iomill_trace::simulate::{self, Policy};
use iomill_trace::{Reader, pages};
use serde_json::{Value, json};

use super::name::trace_name;
use super::simulate::{CombinationsBar, percent};
use crate::arguments::Replay;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::Result;
use iomill_cli::interrupt::Interrupt;
use iomill_cli::table::Table;

pub fn run(context: &Context<'_>, arguments: &Replay) -> Result<Answer> {
    let interrupt = Interrupt::install()?;
    let (mut outcomes, all) = (Vec::new(), Policy::all());
    let policies = if arguments.policies.is_empty() { &all[..] } else { &arguments.policies };
    let others = arguments.granule.iter().copied().filter(|&bytes| bytes != PAGE_BYTES);
    let sizes: Vec<u64> = [PAGE_BYTES].into_iter().chain(others).collect();
    for path in &arguments.traces {
        let name = trace_name(path);
        let bar = CombinationsBar::new(context, &name);
        let (mut memories, mut of_trace) = (Vec::new(), Vec::new());
        for &bytes in &sizes {
            let mut reader = Reader::open(path, arguments.format)?;
            let granules = Granules::load(&mut reader, bytes, arguments.limit, pages::memory_bytes())?;
            interrupt.check()?;
            // The first granule is the page, so its number is that of the trace's pages.
            if memories.is_empty() {
                let pages = match &arguments.cache_pages[..] {
                    [] => simulate::default_sizes(granules.unique()),
                    named => named.to_owned(),
                };
                memories = simulate::cases(policies, &pages, &arguments.set_sizes);
            }
            let (before, total) = (of_trace.len(), memories.len() * sizes.len());
            let found = granules::run(&granules, &memories, interrupt.flag(), &|done| bar.show(before + done, total))?;
            interrupt.check()?;
            of_trace.extend(found.unwrap_or_default());
        }
        // Combinations that differ only in the granule are beside each other.
        let place = |outcome: &GranuleOutcome| memories.iter().position(|case| *case == outcome.case.memory);
        of_trace.sort_by_key(place);
        outcomes.extend(of_trace.into_iter().map(|outcome| (name.clone(), outcome)));
    }
    let documents = outcomes.iter().map(|(name, outcome)| document(name, outcome)).collect();
    Ok(Answer::lines(table(&outcomes), documents))
}

fn document(trace: &str, outcome: &GranuleOutcome) -> Value {
    let case = outcome.case;
    json!({
        "trace": trace,
        "policy": case.memory.policy.name(),
        "cache_pages": case.memory.cache_pages,
        "set_size": case.memory.set_size,
        "granule_bytes": case.granule_bytes,
        "header_bytes": case.header_bytes(),
        "entries": case.entries(),
        "request_hit_rate_warm": outcome.hit_rate_warm,
        "request_hit_rate_whole": outcome.hit_rate_whole,
        "pages_read_warm": outcome.pages_read_warm,
        "pages_read_whole": outcome.pages_read_whole,
    })
}

fn table(outcomes: &[(String, GranuleOutcome)]) -> String {
    let headings = [
        "trace",
        "policy",
        ">set size",
        ">cache pages",
        ">granule",
        ">entries",
        ">warm requests hit, %",
        ">all requests hit, %",
        ">warm pages read/request",
    ];
    let mut table = Table::new(&headings);
    for (name, outcome) in outcomes {
        let case = outcome.case;
        table.row([
            name.clone(),
            case.memory.policy.to_string(),
            case.memory.set_size.map_or("-".to_owned(), |size| size.to_string()),
            case.memory.cache_pages.to_string(),
            human::size(case.granule_bytes),
            case.entries().to_string(),
            percent(outcome.hit_rate_warm),
            percent(outcome.hit_rate_whole),
            format!("{:.3}", outcome.pages_read_warm),
        ]);
    }
    table.render()
}
