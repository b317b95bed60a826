//! Hit rates of other tools on the same traces, and the distance of our rates from them.
//!
//! Goals: a table of cells (a trace and a cache's size), our rates beside theirs, and one line per policy. Non-goals:
//! other methods than `warm`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::error::{Result, TraceError};
use crate::simulate::{Outcome, PAGES_MIN, Policy};

/// The reference's name of a least recently used cache without sets.
pub const LRU: &str = "LRU";
/// The reference's name of adaptive replacement.
pub const ARC: &str = "ARC";

/// If two tools have a rate for a policy, this tool's rate counts.
const PREFERRED_TOOL: &str = "libCacheSim";

/// The columns that are needed.
const COLUMNS: [&str; 6] = ["trace", "cache_pages", "policy", "method", "hit_rate", "tool"];

/// Hit rates by trace, size and policy.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    cells: HashMap<String, BTreeMap<u64, BTreeMap<String, f64>>>,
}

impl Reference {
    /// Reads a file with the columns trace, cache_pages, policy, method, hit_rate and tool. It skips rows of other
    /// methods than `warm`.
    pub fn open(path: &Path) -> Result<Reference> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Reference::parse(&text, &name),
            Err(source) => Err(TraceError::Read { path: name, packing: "", source }),
        }
    }

    fn parse(text: &str, name: &str) -> Result<Reference> {
        let expected = "rows `trace,cache_pages,fraction,policy,method,hit_rate,tool`, with a heading";
        let bad = |line: usize, what: String| TraceError::Line {
            path: name.to_owned(),
            line: line as u64 + 1,
            what,
            expected,
        };
        let mut lines = text.lines().enumerate();
        let heading: Vec<&str> = lines.next().map(|(_, line)| line.split(',').collect()).unwrap_or_default();
        let mut places = [0; COLUMNS.len()];
        for (place, column) in places.iter_mut().zip(COLUMNS) {
            let found = heading.iter().position(|name| *name == column);
            *place = found.ok_or_else(|| bad(0, format!("there is no column {column:?}")))?;
        }
        let mut reference = Reference::default();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != heading.len() {
                return Err(bad(at, format!("the line has {} fields and not {}", fields.len(), heading.len())));
            }
            let [trace, cache_pages, policy, method, hit_rate, tool] = places.map(|place| fields[place]);
            if method != "warm" {
                continue;
            }
            let pages: u64 =
                cache_pages.parse().map_err(|_| bad(at, format!("cache_pages {cache_pages:?} is no number")))?;
            let rate = hit_rate.parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate));
            let rate = rate.ok_or_else(|| bad(at, format!("hit_rate {hit_rate:?} is no number from 0 to 1")))?;
            let rates = reference.cells.entry(trace.to_owned()).or_default().entry(pages).or_default();
            if tool.starts_with(PREFERRED_TOOL) || !rates.contains_key(policy) {
                rates.insert(policy.to_owned(), rate);
            }
        }
        Ok(reference)
    }

    /// The sizes of caches that the reference has for a trace, in pages, smallest first.
    pub fn sizes(&self, trace: &str) -> Vec<u64> {
        self.cells.get(trace).map(|cells| cells.keys().copied().collect()).unwrap_or_default()
    }

    /// A policy's hit rate in a cell.
    pub fn rate(&self, trace: &str, pages: u64, policy: &str) -> Option<f64> {
        self.cells.get(trace)?.get(&pages)?.get(policy).copied()
    }

    /// All rates of a cell, by policy.
    pub fn rates(&self, trace: &str, pages: u64) -> Option<&BTreeMap<String, f64>> {
        self.cells.get(trace)?.get(&pages)
    }
}

/// The distance of one of our policies from the reference, over all cells that count. Rates are hits per access.
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// The policy.
    pub policy: Policy,
    /// Pages per set, if the policy has sets.
    pub set_size: Option<u32>,
    /// The number of cells.
    pub cells: usize,
    /// Mean hit rate.
    pub mean: f64,
    /// The mean of our rate less the reference's LRU.
    pub over_lru: f64,
    /// The least difference of our rate and the reference's LRU, with its trace and size in pages.
    pub worst: (f64, String, u64),
    /// The mean of our rate less the reference's ARC.
    pub over_arc: f64,
}

/// The distances of each policy and set size, in the order of their first outcomes. A cell counts if it has at least
/// [`PAGES_MIN`] pages, and an LRU and an ARC rate in the reference.
pub fn distances(reference: &Reference, outcomes: &[(&str, Outcome)]) -> Vec<Distance> {
    let mut distances: Vec<Distance> = Vec::new();
    for (trace, outcome) in outcomes {
        let (case, rate) = (outcome.case, outcome.hit_rate_warm);
        let of = |policy| reference.rate(trace, case.cache_pages, policy);
        let (Some(lru), Some(arc), true) = (of(LRU), of(ARC), case.cache_pages >= PAGES_MIN) else { continue };
        let known = distances.iter().position(|known| (known.policy, known.set_size) == (case.policy, case.set_size));
        let at = known.unwrap_or_else(|| {
            let worst = (f64::INFINITY, String::new(), 0);
            let (policy, set_size) = (case.policy, case.set_size);
            distances.push(Distance { policy, set_size, cells: 0, mean: 0.0, over_lru: 0.0, worst, over_arc: 0.0 });
            distances.len() - 1
        });
        let distance = &mut distances[at];
        distance.cells += 1;
        distance.mean += rate;
        distance.over_lru += rate - lru;
        distance.over_arc += rate - arc;
        if rate - lru < distance.worst.0 {
            distance.worst = (rate - lru, (*trace).to_owned(), case.cache_pages);
        }
    }
    for distance in &mut distances {
        let cells = distance.cells as f64;
        for sum in [&mut distance.mean, &mut distance.over_lru, &mut distance.over_arc] {
            *sum /= cells;
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Case, SetPolicy};

    const HEADING: &str = "trace,cache_pages,fraction,policy,method,hit_rate,tool\n";

    fn parse(rows: &str) -> Result<Reference> {
        Reference::parse(&(HEADING.to_owned() + rows), "ref.csv")
    }

    fn outcome(cache_pages: u64, hit_rate_warm: f64) -> Outcome {
        let case = Case { policy: Policy::Sets(SetPolicy::Lru), cache_pages, set_size: Some(12) };
        Outcome { case, hit_rate_warm, hit_rate_whole: 0.0, accesses_per_s: 1e7 }
    }

    #[test]
    fn distances_are_over_the_cells_that_count() {
        let reference = parse(
            "a,100,0.1,LRU,warm,0.5,Other 1\na,100,0.1,LRU,warm,0.4,libCacheSim 1\na,100,0.1,LRU,warm,0.6,Other 1\n\
             a,100,0.1,LRU,whole,0.9,libCacheSim 1\na,100,0.1,ARC,warm,0.5,x\n\
             a,200,0.2,LRU,warm,0.6,x\na,200,0.2,ARC,warm,0.6,x\na,7,0.2,LRU,warm,0.6,x\na,7,0.2,ARC,warm,0.6,x\n",
        );
        let reference = reference.unwrap();
        assert_eq!(reference.sizes("a"), [7, 100, 200]);
        assert_eq!(reference.rate("a", 100, LRU), Some(0.4));
        let ours = [outcome(7, 0.0), outcome(100, 0.5), outcome(200, 0.5), outcome(300, 0.5)].map(|o| ("a", o));
        let [distance] = &distances(&reference, &ours)[..] else { panic!("one policy") };
        assert_eq!((distance.cells, distance.set_size), (2, Some(12)));
        for (found, expected) in [(distance.mean, 0.5), (distance.over_lru, 0.0), (distance.over_arc, -0.05)] {
            assert!((found - expected).abs() < 1e-9, "{distance:?}");
        }
        assert!((distance.worst.0 + 0.1).abs() < 1e-9 && distance.worst.2 == 200);
        assert!(distances(&reference, &[("b", outcome(100, 0.5))]).is_empty());
    }

    #[test]
    fn bad_rows_are_named() {
        for (rows, said) in [
            ("a,100,0.1,LRU,warm,0.5\n", "line 2: the line has 6 fields and not 7"),
            ("a,x,0.1,LRU,warm,0.5,t\n", "cache_pages \"x\""),
            ("a,1,0.1,LRU,warm,50,t\n", "hit_rate \"50\""),
        ] {
            let error = parse(rows).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let error = Reference::parse("a,b\n", "ref.csv").unwrap_err().to_string();
        assert!(error.contains("no column \"trace\""), "{error}");
    }
}
