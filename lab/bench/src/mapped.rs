//! Mapped parts compared with system calls: reads of the same bytes by both, and the cost of growth.
//!
//! Goals: the engine as an array uses it, also while a part cannot be mapped. Two alternatives are measured beside it:
//! `pread`, and copies by the kernel from a mapping (`process_vm_readv`), which need no signal handler. Non-goals:
//! batches; each thread has one request at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use serde::Serialize;

use crate::arena::SEED;
use crate::bench::Stage;
use crate::contender::{Cache, Contender, PREAD};
use crate::flat::FlatFile;
use crate::leftovers::{self, By};
use crate::machine::{self, Machine};
use crate::report::Report;
use crate::rounds::{self, Plan, Progress, Turns, WARM_UP};
use crate::target::{Part, Target};
use crate::workload::Order;
use iomill_cli::human;
pub use iomill_contenders::mapped::growth::{self, Growth};
pub use iomill_contenders::mapped::reads::{self, PlainReads, Way};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the file that is read, in bytes.
    pub size_bytes: u64,
    /// Bytes per read; one measurement each.
    pub request_bytes: Vec<u32>,
    /// The orders of the reads; one measurement each.
    pub orders: Vec<Order>,
    /// The number of bytes by which a file grows, in writes of 4 KiB. 0 leaves growth out.
    pub growth_bytes: u64,
    /// How turns are taken.
    pub turns: Turns,
}

/// The results. Their JSON is iomill's format of results: fields may be added, never renamed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappedReport {
    /// The reads.
    #[serde(flatten)]
    pub reads: Report,
    /// The cost of growth.
    pub growth: Vec<Growth>,
}

/// Measures on a file in the directory `dir`, which is removed afterwards. `cancel` ends it soon; the report then has
/// the complete rounds only.
pub fn run(
    dir: PathBuf,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<MappedReport> {
    let there = machine::available_memory_bytes()?;
    if settings.size_bytes > there / 10 * 8 {
        let what = format!("a file of {}", human::size(settings.size_bytes));
        let why = format!("it does not fit in {} of free memory; give a smaller --size", human::size(there));
        return Err(Error::invalid(what, why));
    }
    leftovers::remove_in(&dir);
    let path = dir.join(format!("{}.mapped", leftovers::name(By::Bench)));
    let flat = FlatFile::write(path, settings.size_bytes, SEED, cancel, &mut |done, total| {
        stage(Stage::Filling(done, total))
    })?;
    let part = Part { path: flat.path().to_owned(), len_bytes: flat.len_bytes() };
    let target = Target::new(vec![part], SEED, Target::striped(1, 1))?;
    let machine = Machine::look(target.parts());
    let flat = Arc::new(flat);
    let mut measured = Vec::new();
    'plans: for plan in settings.plans() {
        for cache in [Cache::Cold, Cache::Warm] {
            let ways = [Way::Mapped, Way::Around, Way::Pread, Way::VmRead];
            let mut contenders: Vec<Box<dyn Contender<PlainReads>>> = Vec::new();
            for way in ways {
                contenders.push(Box::new(reads::Reads::new(way, &flat, cache)));
            }
            let one = rounds::run(&mut contenders, &plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
            let cancelled = one.cancelled;
            measured.push(one);
            if cancelled {
                break 'plans;
            }
        }
    }
    drop(flat);
    let reads = Report { baselines: &[PREAD], ..Report::new(machine, &measured) };
    let mut growth = Vec::new();
    if settings.growth_bytes > 0 {
        let ways = growth::ALL;
        for (done, (way, is_ahead)) in ways.into_iter().enumerate() {
            if cancel.load(Ordering::Relaxed) {
                break;
            }
            stage(Stage::Measuring(Progress { done, total: ways.len(), contender: "growth" }));
            growth.push(growth::grow(&dir, way, is_ahead, settings.growth_bytes)?);
        }
    }
    Ok(MappedReport { reads, growth })
}

impl Settings {
    fn plans(&self) -> Vec<Plan<PlainReads>> {
        let mut plans = Vec::new();
        for &order in &self.orders {
            for &op_bytes in &self.request_bytes {
                plans.extend(self.turns.plans(PlainReads { order, op_bytes }, WARM_UP));
            }
        }
        plans
    }
}

impl MappedReport {
    /// The report as JSON, for programs.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::Tool { what: "writing the report as JSON".into(), why: e.to_string() })
    }

    /// The report as a table for people, without a newline at the end.
    pub fn table(&self, terminal_width: Option<usize>) -> String {
        let mut text = self.reads.table(terminal_width);
        if !self.growth.is_empty() {
            text += "\n\n";
            text += &growth::table(&self.growth);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn all_ways_read_and_grow() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings {
            size_bytes: 4 << 20,
            request_bytes: vec![512, 65536],
            orders: vec![Order::Random, Order::Sequential],
            growth_bytes: 3 << 20,
            turns: Turns { threads: vec![2], rounds: 1, slice: Duration::from_millis(20) },
        };
        let report = run(dir.path().to_owned(), &settings, &AtomicBool::new(false), &mut |_| ()).unwrap();
        assert_eq!(report.reads.results.len(), 2 * 2 * 2 * 4);
        assert!(report.reads.results.iter().all(|row| row.ops_per_s > 0.0));
        let document: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(document["results"][0]["contender"], "mmap-engine");
        assert_eq!(document["results"][0]["workload"], "random-read-512B");
        let growth = document["growth"].as_array().unwrap();
        assert_eq!(growth.len(), growth::ALL.len());
        // There are 768 writes. Each takes one call or more, or a few large steps make room for all.
        for row in &report.growth {
            let least = if row.contender == "pwrite" { 768 } else { 0 };
            let steps = if row.is_preallocated { 20 } else { 768 };
            assert!((least..=least + 3 * steps).contains(&row.calls), "{row:?}");
        }
        assert!(report.table(None).contains("growth"), "{}", report.table(None));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
        let too_much = Settings { size_bytes: 1 << 60, ..settings };
        assert!(run(dir.path().to_owned(), &too_much, &AtomicBool::new(false), &mut |_| ()).is_err());
    }
}
