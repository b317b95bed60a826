//! The gate: a few ratios between contenders that later changes must not make worse, each with its measured noise.
//!
//! Goals: an answer within three minutes that a busy machine does not change. The contenders of a ratio take turns,
//! each round yields its own ratio, and only a difference beyond the spread of these ratios counts. Non-goals: absolute
//! figures.
//!
//! `gate.toml` has the bounds, and a description of each ratio.

mod bounds;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, Error, Result};
use serde::Serialize;

use crate::access::Access;
use crate::arena::{Arena, SEED};
use crate::asynchronous::Flyer;
use crate::bench::Stage;
use crate::cached::{self, Accesses, Whole};
use crate::contender::{
    Contender, IOMILL_CREATE, IOMILL_FUTURE_64, IOMILL_INLINE, IOMILL_READ_AT, IOMILL_READ_MANY, MMAP,
    MMAP_SMALL_PAGES, PLAIN_CREATE, Sample, URING_BY_HAND,
};
use crate::creates::{Create, Creates};
use crate::iomill::Iomill;
use crate::limited::Uncached;
use crate::machine::Machine;
use crate::pattern::PAGE_BYTES;
use crate::records::{Data, RecordReads, Skew};
use crate::rivals::resident;
use crate::rivals::uring::Uring;
use crate::rounds::{self, Failed, Measured, Outcome, Turns, WARM_UP};
use crate::task::Task;
use crate::warm;
use crate::workload::Workload;
pub use bounds::Bound;
use iomill_cli::human;
use iomill_cli::table::Table;

/// For cold reads the file is this many times as long as the cache.
const COLD_SIZE_OVER_CACHE: u64 = 8;

/// Records or pages per call, for calls that take many.
const BATCH: u32 = 256;

/// If the noise is more than this share of the bound, it may hide a ratio that is far worse.
const NOISE_SHARE_MAX: f64 = 0.25;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the measured files in bytes.
    pub size_bytes: u64,
    /// How iomill opens the array. The measurement sets caches and access itself.
    pub options: ArrayOptions,
    /// Turns of one thread.
    pub turns: Turns,
}

/// The figure that is divided by the same figure of another contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// User and system time per operation.
    CpuPerOp,
    /// Wall time per operation.
    TimePerOp,
}

impl Figure {
    fn of(self, sample: &Sample) -> f64 {
        match self {
            Figure::CpuPerOp => sample.cpu_us_per_op(),
            Figure::TimePerOp => 1e6 / sample.ops_per_s(),
        }
    }
}

/// A measured ratio: its name in `gate.toml`, the figure, and the two contenders.
#[derive(Clone, Copy, Debug)]
struct Pair {
    name: &'static str,
    figure: Figure,
    of: &'static str,
    over: &'static str,
}

const fn pair(name: &'static str, figure: Figure, of: &'static str, over: &'static str) -> Pair {
    Pair { name, figure, of, over }
}

/// Reads that bypass the cache.
const DRIVES: [Pair; 2] = [
    pair("drives-by-hand", Figure::CpuPerOp, IOMILL_INLINE, URING_BY_HAND),
    pair("drives-by-hand-time", Figure::TimePerOp, IOMILL_INLINE, URING_BY_HAND),
];
/// Reads of data larger than the memory.
const COLD: [Pair; 2] = [
    pair("cold-by-hand", Figure::CpuPerOp, IOMILL_READ_MANY, URING_BY_HAND),
    pair("cold-futures", Figure::CpuPerOp, IOMILL_FUTURE_64, IOMILL_READ_MANY),
];
/// Reads of cached bytes.
const WARM: [Pair; 5] = [
    pair("warm-mmap", Figure::CpuPerOp, IOMILL_READ_MANY, MMAP),
    pair("warm-mmap-small-pages", Figure::CpuPerOp, IOMILL_READ_MANY, MMAP_SMALL_PAGES),
    pair("warm-calls-mmap", Figure::CpuPerOp, IOMILL_READ_AT, MMAP),
    pair("warm-calls-mmap-small-pages", Figure::CpuPerOp, IOMILL_READ_AT, MMAP_SMALL_PAGES),
    pair("warm-futures", Figure::CpuPerOp, IOMILL_FUTURE_64, IOMILL_READ_AT),
];
/// New files.
const CREATES: [Pair; 1] = [pair("creates-plain", Figure::TimePerOp, IOMILL_CREATE, PLAIN_CREATE)];

/// The verdict on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Not worse than its bound by more than the noise.
    Within,
    /// Worse than its bound by more than the noise.
    Worse,
    /// Not known to be worse, but the noise is so large that it may be far worse.
    TooNoisy,
    /// A contender did not take part.
    NotMeasured,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Within => "within",
            Verdict::Worse => "WORSE",
            Verdict::TooNoisy => "too noisy",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// One ratio.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Its name in `gate.toml`.
    pub name: String,
    /// Its description.
    pub what: String,
    /// The figure that is divided.
    pub figure: Figure,
    /// The contender of the figure that is divided.
    pub of: String,
    /// The contender of the divisor.
    pub over: String,
    /// The median of the rounds' ratios; null if there are none.
    pub seen: Option<f64>,
    /// The possible error of the median: half of the range of the rounds' ratios without the smallest and the largest.
    pub noise: Option<f64>,
    /// The largest allowed value.
    pub bound: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// Why it was not measured.
    pub why: Option<String>,
    /// The ratio of each round.
    pub rounds: Vec<f64>,
}

/// The result of the gate. Its JSON is iomill's format of results: fields may be added, never renamed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// The machine of the measurement.
    pub machine: Machine,
    /// All ratios.
    pub results: Vec<Ratio>,
    /// True if no ratio is worse.
    pub passed: bool,
    /// True if the run was cancelled before all rounds were done.
    pub cancelled: bool,
}

/// Measures on `arena`. `cancel` ends it soon; the result then has the complete ratios only.
pub fn run(arena: &mut Arena, settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Gate> {
    let bounds = bounds::recorded()?;
    warm::check_memory(settings.size_bytes, warm::COPIES)?;
    let (flat, _) =
        arena.fill_with_flat(settings.size_bytes, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let mut course = Course { settings, cancel, stage, bounds, results: Vec::new(), cancelled: false };
    let machine = Machine::look(arena.target()?.parts());
    let data = Arc::new(Data::new(flat.path().to_owned(), flat.len_bytes() / PAGE_BYTES as u64, SEED)?);
    course.turns(drives(arena, settings)?, Workload::RANDOM_READ, &DRIVES)?;
    course.turns(cold(arena, settings)?, cold_access(settings), &COLD)?;
    let reads = RecordReads { skew: Skew::Uniform, batch: BATCH };
    course.turns(warm(arena, settings, &data), reads, &WARM)?;
    let creates: Vec<Box<dyn Contender<Creates>>> =
        vec![Box::new(Create::in_array(arena, &settings.options)), Box::new(Create::plain(arena))];
    course.turns(creates, Creates, &CREATES)?;
    let (results, cancelled) = (course.results, course.cancelled);
    let passed = results.iter().all(|ratio| ratio.verdict != Verdict::Worse);
    Ok(Gate { machine, results, passed, cancelled })
}

fn drives(arena: &Arena, settings: &Settings) -> Result<Vec<Box<dyn Contender>>> {
    Ok(vec![Box::new(Iomill::new(IOMILL_INLINE, arena, &settings.options)?), Box::new(Uring::new(arena.target()?))])
}

fn cold_access(settings: &Settings) -> Access {
    Access::page_reads(settings.size_bytes, (settings.size_bytes / COLD_SIZE_OVER_CACHE).max(1 << 20), BATCH)
}

fn cold(arena: &Arena, settings: &Settings) -> Result<Vec<Box<dyn Contender<Access>>>> {
    let mut contenders: Vec<Box<dyn Contender<Access>>> = vec![
        Box::new(Accesses::in_batches(arena, &settings.options)?),
        Box::new(Uncached::new(Box::new(Uring::new(arena.target()?)), iomill::DEFAULT_DEPTH)),
    ];
    for flyer in flyers() {
        contenders.push(Box::new(Accesses::in_flight(&flyer, arena, &settings.options)?));
    }
    Ok(contenders)
}

fn warm(arena: &Arena, settings: &Settings, data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>> {
    let cache_bytes = settings.size_bytes.saturating_mul(warm::CACHE_OVER_SIZE);
    let whole = Arc::new(Whole::new(arena, &settings.options, cache_bytes));
    let mut contenders = cached::warm(data, &whole, &flyers());
    contenders.retain(|one| [IOMILL_READ_AT, IOMILL_READ_MANY, IOMILL_FUTURE_64].contains(&one.name()));
    contenders.push(Box::new(resident::mmap(data)));
    contenders.push(Box::new(resident::mmap_small_pages(data)));
    contenders
}

/// The asynchronous ways that take part.
fn flyers() -> Vec<Flyer> {
    let all = Flyer::all().into_iter();
    all.filter(|flyer| flyer.name() == IOMILL_FUTURE_64).collect()
}

/// The measurements of the gate, one after the other.
struct Course<'a> {
    settings: &'a Settings,
    cancel: &'a AtomicBool,
    stage: &'a mut dyn FnMut(Stage),
    bounds: Vec<Bound>,
    results: Vec<Ratio>,
    cancelled: bool,
}

impl Course<'_> {
    /// Lets contenders take turns, and computes ratios of their results.
    fn turns<T: Task>(
        &mut self,
        mut contenders: Vec<Box<dyn Contender<T> + '_>>,
        task: T,
        pairs: &[Pair],
    ) -> Result<()> {
        let plans = self.settings.turns.plans(task, WARM_UP);
        if self.cancelled {
            return Ok(());
        }
        let stage = &mut *self.stage;
        for one in rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), self.cancel)? {
            self.cancelled |= one.cancelled;
            if let Some(Failed { what, why }) = one.failed {
                return Err(Error::Tool { what, why });
            }
            if one.cancelled && one.outcomes.is_empty() {
                // No round is complete, so there is no result.
                break;
            }
            for pair in pairs {
                let missing = || Error::invalid(format!("the ratio {:?}", pair.name), "add its bound to gate.toml");
                let bound = self.bounds.iter().find(|bound| bound.name == pair.name).ok_or_else(missing)?;
                self.results.push(ratio(pair, bound, &one));
            }
        }
        Ok(())
    }
}

fn ratio<T: Task>(pair: &Pair, bound: &Bound, measured: &Measured<T>) -> Ratio {
    let find = |name: &str| measured.outcomes.iter().find(|outcome| outcome.contender == name);
    let each = |of: &Outcome, over: &Outcome| -> Vec<f64> {
        let both = of.samples.iter().zip(&over.samples);
        both.map(|(of, over)| pair.figure.of(of) / pair.figure.of(over)).filter(|ratio| ratio.is_finite()).collect()
    };
    let rounds = find(pair.of).zip(find(pair.over)).map_or(Vec::new(), |(of, over)| each(of, over));
    let left_out = |(name, _, why): &(&'static str, _, String)| {
        [pair.of, pair.over].contains(name).then(|| format!("{name}: {why}"))
    };
    let spread = spread(&rounds);
    let why = measured.left_out.iter().find_map(left_out).or_else(|| Some("it was cancelled".to_owned()));
    let verdict = match spread {
        None => Verdict::NotMeasured,
        Some((seen, noise)) if seen - noise > bound.at_most => Verdict::Worse,
        Some((_, noise)) if noise > bound.at_most * NOISE_SHARE_MAX => Verdict::TooNoisy,
        Some(_) => Verdict::Within,
    };
    Ratio {
        name: bound.name.clone(),
        what: bound.what.clone(),
        figure: pair.figure,
        of: pair.of.to_owned(),
        over: pair.over.to_owned(),
        seen: spread.map(|(seen, _)| seen),
        noise: spread.map(|(_, noise)| noise),
        bound: bound.at_most,
        verdict,
        why: why.filter(|_| spread.is_none()),
        rounds,
    }
}

/// The median of some ratios, and its possible error: half of the distance from the second to the last but one. With
/// nine rounds this range contains the true median in 96% of all cases. With fewer than seven ratios all count.
fn spread(ratios: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let skip = usize::from(sorted.len() >= 7);
    let (low, high) = (sorted.get(skip)?, sorted.get(sorted.len() - 1 - skip)?);
    Some((crate::report::median(sorted.clone()), (high - low) / 2.0))
}

impl Gate {
    /// The result as JSON, for programs.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::Tool { what: "writing the gate as JSON".into(), why: e.to_string() })
    }

    /// The result as a table for people, without a newline at the end.
    pub fn table(&self, terminal_width: Option<usize>) -> String {
        let mut table = Table::new(&["ratio", ">seen", ">noise", ">at most", "verdict", "?~ what"]);
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), human::ratio);
        for ratio in &self.results {
            let noise = ratio.noise.map_or("-".to_owned(), |noise| format!("± {noise:.2}"));
            let verdict = ratio.verdict.name().to_owned();
            let cells = [ratio.name.clone(), cell(ratio.seen), noise, human::ratio(ratio.bound), verdict];
            table.row(cells.into_iter().chain([ratio.what.clone()]));
        }
        let mut lines = vec![self.machine.line(), table.render_for(terminal_width).trim_end().to_owned()];
        let reasons = self.results.iter().filter_map(|ratio| Some((&ratio.name, ratio.why.as_ref()?)));
        lines.extend(reasons.map(|(name, why)| format!("{name} was not measured: {why}")));
        if self.cancelled {
            lines.push("Cancelled: only complete rounds are counted.".into());
        }
        lines.join("\n")
    }

    /// The ratios that are worse, in words; `None` if there are none.
    pub fn fault(&self) -> Option<String> {
        let worse = self.results.iter().filter(|ratio| ratio.verdict == Verdict::Worse);
        let told = worse.map(|ratio| {
            let (seen, noise) = (ratio.seen.unwrap_or_default(), ratio.noise.unwrap_or_default());
            format!("{} is {seen:.2} ± {noise:.2} where at most {:.2} is allowed", ratio.name, ratio.bound)
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}
