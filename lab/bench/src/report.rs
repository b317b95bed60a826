//! Figures of a measurement, for programs and for people.
//!
//! Goals: the median over the rounds, with the minimum and the maximum; stable JSON keys.
//! Non-goals: plots.

use std::collections::BTreeMap;

use iomill::{Error, Result};
use serde::Serialize;

use crate::contender::{Cache, IOMILL_NULL, Sample};
use crate::machine::Machine;
use crate::rounds::{Failed, Measured, Outcome, Plan};
use crate::task::Task;
use iomill_cli::human;
use iomill_cli::table::Table;

/// Width of a table without a terminal, as far as workload names can wrap.
const USUAL_WIDTH: usize = 100;

/// All results of a measurement. Its JSON is iomill's format of results: fields may be added, never renamed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The machine of the measurement.
    pub machine: Machine,
    /// One row per contender and workload.
    pub results: Vec<Row>,
    /// Contenders that did not take part.
    pub left_out: Vec<LeftOut>,
    /// True if the run was cancelled before all rounds were done.
    pub cancelled: bool,
    /// The error that ended the run before all measurements were done, or null. The results are those of the earlier
    /// ones.
    pub failed: Option<Failed>,
    /// Contenders that the table compares with, instead of the best rival.
    #[serde(skip)]
    pub baselines: &'static [&'static str],
}

/// The figures of one contender in one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub contender: String,
    /// The name of the workload, such as `random-read-4KiB`.
    pub workload: String,
    /// Number of threads.
    pub threads: usize,
    /// `direct`, `cold`, `warm` or `held`.
    pub cache: String,
    /// Number of timed rounds.
    pub rounds: usize,
    /// Operations per second, the median of the rounds.
    pub ops_per_s: f64,
    /// The minimum over the rounds.
    pub min_ops_per_s: f64,
    /// The maximum over the rounds.
    pub max_ops_per_s: f64,
    /// Bytes per second, the median.
    pub bytes_per_s: f64,
    /// User and system time per operation in microseconds, the median.
    pub cpu_us_per_op: f64,
    /// The minimum over the rounds.
    pub min_cpu_us_per_op: f64,
    /// The maximum over the rounds.
    pub max_cpu_us_per_op: f64,
    /// The same median in nanoseconds.
    pub cpu_ns_per_op: f64,
    /// Bytes that were read from drives per operation, the median; null if the kernel does not count them.
    pub fetched_bytes_per_op: Option<f64>,
    /// Percentage of operations that found their bytes in memory, from the bytes fetched; null if no operation can.
    pub hit_percent: Option<f64>,
    /// Median latency in microseconds, the median of the rounds; null if none was timed.
    pub p50_us: Option<f64>,
    /// 99th percentile of latency, computed in the same way.
    pub p99_us: Option<f64>,
    /// Operations per second over those of the fastest rival of the same kind (warm, or not warm). Above 1 is better.
    /// Null without such a rival, and for contenders without I/O.
    pub ratio_to_best_rival: Option<f64>,
    /// The name of that rival.
    pub best_rival: Option<String>,
    /// CPU time per operation over that of the rival of the same kind that uses the least. Below 1 is better.
    pub cpu_ratio_to_best_rival: Option<f64>,
    /// The name of that rival.
    pub best_rival_cpu: Option<String>,
    /// Operations per second over those of each other contender of the same kind.
    pub ops_ratio_to: BTreeMap<String, f64>,
    /// CPU time per operation over that of each other contender of the same kind.
    pub cpu_ratio_to: BTreeMap<String, f64>,
    /// Operations per second over those of the same contender with one thread; null if that was not measured.
    pub ops_ratio_to_one_thread: Option<f64>,
    /// Important facts for a reader of the figures.
    pub notes: Vec<String>,
}

/// A contender that did not take part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub contender: String,
    /// The name of the workload.
    pub workload: String,
    /// `direct`, `cold`, `warm` or `held`.
    pub cache: String,
    /// The reason.
    pub why: String,
}

impl Report {
    /// Computes the figures of measurements, one for each workload.
    pub fn new<T: Task>(machine: Machine, measured: &[Measured<T>]) -> Report {
        let (results, left_out) = (Vec::new(), Vec::new());
        let mut report = Report { machine, results, left_out, cancelled: false, failed: None, baselines: &[] };
        for one in measured {
            report.cancelled |= one.cancelled;
            report.failed = report.failed.or_else(|| one.failed.clone());
            let workload = one.plan.workload.to_string();
            let mut rows: Vec<Row> = one.outcomes.iter().map(|outcome| row(outcome, &one.plan)).collect();
            compare(&mut rows);
            report.results.append(&mut rows);
            for (contender, cache, why) in &one.left_out {
                let (contender, cache) = ((*contender).to_owned(), cache.name().to_owned());
                report.left_out.push(LeftOut { contender, workload: workload.clone(), cache, why: why.clone() });
            }
        }
        compare_with_one_thread(&mut report.results);
        report
    }

    /// The report as JSON, for programs.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::Tool { what: "writing the report as JSON".into(), why: e.to_string() })
    }

    /// The report as a table for people, for a terminal with `terminal_width` columns or for none; without a newline at
    /// the end.
    pub fn table(&self, terminal_width: Option<usize>) -> String {
        let columns = self.columns();
        let headings: Vec<&String> = columns.iter().map(|column| &column.0).collect();
        let mut table = Table::new(&headings).usual_width(USUAL_WIDTH);
        for row in &self.results {
            table.row(columns.iter().map(|column| (column.1)(row)));
        }
        let mut lines = vec![self.machine.line(), table.render_for(terminal_width).trim_end().to_owned()];
        if self.baselines.is_empty() {
            lines.push(
                "x: ratio to the best rival. Warm contenders compare only with warm ones, the others with the rest."
                    .into(),
            );
            lines.push("Direct I/O has no cache, so it has no warm row.".into());
        } else {
            let cpu = "x: CPU time per operation divided by that of the named contender (below 1 is better),";
            lines.push(format!("{cpu}\nthen operations per second divided by its own (above 1 is better)."));
        }
        lines.extend(self.left_out_lines());
        if self.cancelled {
            lines.push("Cancelled: only complete rounds are counted.".into());
        }
        if self.failed.is_some() {
            lines.push("A measurement failed: only those before it are counted.".into());
        }
        lines.join("\n")
    }
}

impl Report {
    /// The contenders that did not take part. Contenders with the same reason and the same workloads share a line.
    fn left_out_lines(&self) -> Vec<String> {
        let mut kept: Vec<(String, &str, Vec<&str>)> = Vec::new();
        for out in &self.left_out {
            let label = label(&out.contender, &out.cache);
            match kept.iter_mut().find(|(who, why, _)| *who == label && *why == out.why) {
                Some((_, _, what)) => what.push(&out.workload),
                None => kept.push((label, &out.why, vec![&out.workload])),
            }
        }
        let mut lines: Vec<(String, &str, Vec<&str>)> = Vec::new();
        for (label, why, mut what) in kept {
            // With several numbers of threads a workload occurs more than once.
            what.dedup();
            match lines.iter_mut().find(|(_, other, workloads)| *other == why && *workloads == what) {
                Some((who, _, _)) => who.push_str(&format!(", {label}")),
                None => lines.push((label, why, what)),
            }
        }
        lines.into_iter().map(|(who, why, what)| format!("{who} did not do {}: {why}", what.join(", "))).collect()
    }
}

/// A column: its heading, and a function that gives its cell in a row.
type Column = (String, Box<dyn Fn(&Row) -> String>);

impl Report {
    /// The columns that have values in these rows.
    fn columns(&self) -> Vec<Column> {
        let ratio = |value: Option<f64>| value.map_or("-".to_owned(), human::ratio);
        let time = |us: Option<f64>| us.map_or("-".to_owned(), human::time_us);
        let mut columns: Vec<Column> = Vec::new();
        let mut add = |head: &str, cell: Box<dyn Fn(&Row) -> String>| columns.push((head.to_owned(), cell));
        add("contender", Box::new(|row| label(&row.contender, &row.cache)));
        add("~-workload", Box::new(|row| row.workload.clone()));
        add(">thr", Box::new(|row| row.threads.to_string()));
        if self.results.iter().any(|row| row.hit_percent.is_some()) {
            add("?>hits", Box::new(|row| row.hit_percent.map_or("-".to_owned(), |percent| format!("{percent:.1}%"))));
        }
        add(">ops/s", Box::new(|row| human::count(row.ops_per_s)));
        add(">CPU/op", Box::new(|row| human::time_us(row.cpu_us_per_op)));
        if self.baselines.is_empty() {
            add("?>p50", Box::new(move |row| time(row.p50_us)));
            add("?>p99", Box::new(move |row| time(row.p99_us)));
            add(">ops x", Box::new(move |row| ratio(row.ratio_to_best_rival)));
            add(">CPU x", Box::new(move |row| ratio(row.cpu_ratio_to_best_rival)));
        }
        if self.results.iter().any(|row| row.threads > 1 && row.ops_ratio_to_one_thread.is_some()) {
            add("?>x 1 thr", Box::new(move |row| ratio(row.ops_ratio_to_one_thread)));
        }
        for (index, &to) in self.baselines.iter().enumerate() {
            let both = move |row: &Row| {
                let (cpu, ops) = (row.cpu_ratio_to.get(to).copied(), row.ops_ratio_to.get(to).copied());
                if cpu.is_none() && ops.is_none() { "-".to_owned() } else { format!("{} {}", ratio(cpu), ratio(ops)) }
            };
            let spare = if index == 0 { "" } else { "?" };
            add(&format!("{spare}>x {to}"), Box::new(both));
        }
        columns
    }
}

fn label(contender: &str, cache: &str) -> String {
    if cache == Cache::Direct.name() { contender.to_owned() } else { format!("{contender} ({cache})") }
}

fn row<T: Task>(outcome: &Outcome, plan: &Plan<T>) -> Row {
    let ops = Spread::of(&outcome.samples, Sample::ops_per_s);
    let cpu = Spread::of(&outcome.samples, Sample::cpu_us_per_op);
    let bytes = Spread::of(&outcome.samples, |s| s.bytes as f64 / s.wall.as_secs_f64().max(1e-9));
    let timed: Vec<&Sample> = outcome.samples.iter().filter(|sample| !sample.latency_ns.is_empty()).collect();
    let fetched: Option<Vec<f64>> =
        outcome.samples.iter().map(|s| Some(s.fetched_bytes? as f64 / s.ops.max(1) as f64)).collect();
    let fetched_bytes_per_op = fetched.map(median);
    let missed = plan.workload.finds().and_then(|finds| Some(fetched_bytes_per_op? / finds.miss_bytes as f64));
    let latency = |quantile: f64| {
        let us = |sample: &&Sample| sample.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        (!timed.is_empty()).then(|| median(timed.iter().map(us).collect()))
    };
    Row {
        contender: outcome.contender.to_owned(),
        workload: plan.workload.to_string(),
        threads: plan.threads,
        cache: outcome.cache.name().to_owned(),
        rounds: outcome.samples.len(),
        ops_per_s: ops.median,
        min_ops_per_s: ops.min,
        max_ops_per_s: ops.max,
        bytes_per_s: bytes.median,
        cpu_us_per_op: cpu.median,
        min_cpu_us_per_op: cpu.min,
        max_cpu_us_per_op: cpu.max,
        cpu_ns_per_op: cpu.median * 1e3,
        fetched_bytes_per_op,
        hit_percent: missed.map(|share| (100.0 * (1.0 - share)).clamp(0.0, 100.0)),
        p50_us: latency(0.5),
        p99_us: latency(0.99),
        ratio_to_best_rival: None,
        best_rival: None,
        cpu_ratio_to_best_rival: None,
        best_rival_cpu: None,
        ops_ratio_to: BTreeMap::new(),
        cpu_ratio_to: BTreeMap::new(),
        ops_ratio_to_one_thread: None,
        notes: outcome.notes.clone(),
    }
}

/// Fills in the ratio of several threads to one.
fn compare_with_one_thread(rows: &mut [Row]) {
    let alone: Vec<Row> = rows.iter().filter(|row| row.threads == 1).cloned().collect();
    for row in rows {
        let is_same =
            |one: &&Row| (&one.contender, &one.workload, &one.cache) == (&row.contender, &row.workload, &row.cache);
        row.ops_ratio_to_one_thread = alone.iter().find(is_same).and_then(|one| quotient(row.ops_per_s, one.ops_per_s));
    }
}

/// Fills in the ratios of the rows of one workload.
fn compare(rows: &mut [Row]) {
    let is_warm = |row: &Row| row.cache == Cache::Warm.name();
    let does_io = |row: &Row| row.contender != IOMILL_NULL;
    for warm in [false, true] {
        let kin: Vec<Row> = rows.iter().filter(|row| is_warm(row) == warm && does_io(row)).cloned().collect();
        for row in rows.iter_mut().filter(|row| is_warm(row) == warm && does_io(row)) {
            for other in kin.iter().filter(|other| other.contender != row.contender) {
                let name = || other.contender.clone();
                row.ops_ratio_to.extend(quotient(row.ops_per_s, other.ops_per_s).map(|ratio| (name(), ratio)));
                row.cpu_ratio_to.extend(quotient(row.cpu_us_per_op, other.cpu_us_per_op).map(|ratio| (name(), ratio)));
            }
        }
        let rivals = || kin.iter().filter(|row| !row.contender.starts_with("iomill-"));
        let most = rivals().max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s)).cloned();
        let least = rivals().min_by(|a, b| a.cpu_us_per_op.total_cmp(&b.cpu_us_per_op)).cloned();
        let (Some(most), Some(least)) = (most, least) else { continue };
        for row in rows.iter_mut().filter(|row| is_warm(row) == warm && does_io(row)) {
            row.ratio_to_best_rival = quotient(row.ops_per_s, most.ops_per_s);
            row.cpu_ratio_to_best_rival = quotient(row.cpu_us_per_op, least.cpu_us_per_op);
            row.best_rival = Some(most.contender.clone());
            row.best_rival_cpu = Some(least.contender.clone());
        }
    }
}

/// `None` instead of infinity or NaN, which JSON does not have.
fn quotient(value: f64, by: f64) -> Option<f64> {
    let quotient = value / by;
    quotient.is_finite().then_some(quotient)
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> Spread {
        let values: Vec<f64> = samples.iter().map(figure).collect();
        let min = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let max = values.iter().copied().reduce(f64::max).unwrap_or(0.0);
        Spread { median: median(values), min, max }
    }
}

/// The middle value, or the mean of the two middle values; 0 for an empty list.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len(), values.get(middle)) {
        (len, Some(&upper)) if len % 2 == 0 => (values[middle - 1] + upper) / 2.0,
        (_, Some(&only)) => only,
        (_, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{FIO_IO_URING, IOMILL_INLINE, MMAP, PREAD, URING_BY_HAND};
    use crate::workload::Workload;
    use std::time::Duration;

    fn sample(ops: u64, cpu_us: f64, latency_ns: &[u64]) -> Sample {
        let mut sample =
            Sample { ops, bytes: ops * 4096, wall: Duration::from_secs(1), cpu_us, ..Sample::empty().unwrap() };
        latency_ns.iter().for_each(|&ns| sample.latency_ns.saturating_record(ns));
        sample
    }

    fn report() -> Report {
        let time = Duration::from_secs(1);
        let plan = Plan { workload: Workload::RANDOM_READ, threads: 2, rounds: 3, slice: time, warm_up: time };
        let outcome = |contender, cache, ops: [u64; 3], cpu_us| Outcome {
            contender,
            cache,
            samples: ops.iter().map(|&ops| sample(ops, cpu_us * ops as f64, &[1_000, 2_000, 9_000])).collect(),
            notes: vec!["a note".into()],
        };
        let outcomes = vec![
            outcome(IOMILL_INLINE, Cache::Direct, [330_000, 310_000, 100], 2.0),
            outcome(URING_BY_HAND, Cache::Direct, [300_000, 310_000, 320_000], 2.5),
            outcome(FIO_IO_URING, Cache::Direct, [400_000, 200_000, 250_000], 4.0),
            outcome(PREAD, Cache::Cold, [100_000, 100_000, 100_000], 9.0),
            outcome(MMAP, Cache::Warm, [2_000_000, 2_000_000, 2_000_000], 0.4),
            outcome(IOMILL_NULL, Cache::Direct, [9_000_000, 9_000_000, 9_000_000], 0.1),
        ];
        let left_out = vec![(PREAD, Cache::Warm, "no room".to_owned())];
        let measured = Measured { outcomes, left_out, ..Measured::of(plan) };
        Report::new(Machine { cpu_model: "A CPU".into(), cores: 2, ..Machine::default() }, &[measured])
    }

    #[test]
    fn names_stay_whole_in_a_wide_table() {
        let mut report = report();
        report.baselines = &[URING_BY_HAND, PREAD, MMAP];
        for row in &mut report.results {
            row.contender = "iomill-read_at-no-read-ahead".to_owned();
            row.cache = "held".to_owned();
        }
        let table = report.table(None);
        assert_eq!(table.matches("iomill-read_at-no-read-ahead (held)").count(), report.results.len(), "{table}");
    }

    #[test]
    fn a_reason_is_said_once() {
        let out = |contender: &str, workload: &str, why: &str| LeftOut {
            contender: contender.to_owned(),
            workload: workload.to_owned(),
            cache: "held".to_owned(),
            why: why.to_owned(),
        };
        let all =
            [("pread", "a", "r"), ("mmap", "a", "r"), ("pread", "b", "r"), ("mmap", "b", "r"), ("mmap", "c", "s")];
        let left_out = all.map(|(who, what, why)| out(who, what, why)).to_vec();
        let lines = Report { left_out, ..report() }.left_out_lines();
        assert_eq!(lines, ["pread (held), mmap (held) did not do a, b: r", "mmap (held) did not do c: s"]);
    }

    #[test]
    fn medians_extremes_and_ratios() {
        let report = report();
        let row = &report.results[0];
        assert_eq!((row.ops_per_s, row.min_ops_per_s, row.max_ops_per_s), (310_000.0, 100.0, 330_000.0));
        assert_eq!(row.bytes_per_s, 310_000.0 * 4096.0);
        assert_eq!((row.ratio_to_best_rival, row.best_rival.as_deref()), (Some(1.0), Some(URING_BY_HAND)));
        assert_eq!((row.cpu_ratio_to_best_rival, row.best_rival_cpu.as_deref()), (Some(0.8), Some(URING_BY_HAND)));
        assert_eq!(row.p50_us, Some(2.0));
        assert!(row.p99_us.is_some_and(|us| (8.9..9.1).contains(&us)));
        assert_eq!(report.results[3].cpu_ratio_to_best_rival, Some(3.6), "cold compares with direct");
        assert_eq!(report.results[4].ratio_to_best_rival, Some(1.0), "warm compares with warm");
        assert_eq!(report.results[5].ratio_to_best_rival, None, "what does no I/O does not compare");
        assert_eq!(report.results[0].cpu_ratio_to[FIO_IO_URING], 0.5);
        assert_eq!(report.results[1].ops_ratio_to.keys().collect::<Vec<_>>(), [FIO_IO_URING, IOMILL_INLINE, PREAD]);
        assert!(report.results[5].cpu_ratio_to.is_empty());
        assert_eq!((report.results[0].cpu_ns_per_op, report.results[0].hit_percent), (2000.0, None));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn the_json_has_its_keys_and_only_numbers_where_numbers_belong() {
        let value: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        let machine = value["machine"].as_object().unwrap();
        for key in ["cpu_model", "cores", "cores_allowed", "kernel", "memory_bytes", "drives"] {
            assert!(machine.contains_key(key), "{key}");
        }
        let rows = value["results"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            assert!(row["ops_ratio_to"].is_object() && row["cpu_ratio_to"].is_object());
            assert!(row["hit_percent"].is_null() && row["fetched_bytes_per_op"].is_null());
            for key in
                ["ops_per_s", "cpu_us_per_op", "cpu_ns_per_op", "p50_us", "p99_us", "min_ops_per_s", "max_ops_per_s"]
            {
                assert!(row[key].is_f64(), "{key}: {}", row[key]);
            }
            assert!(row["threads"].is_u64() && row["rounds"].is_u64());
            assert_eq!(row["workload"], "random-read-4KiB");
        }
        assert!(rows[0]["ratio_to_best_rival"].is_f64() && rows[5]["ratio_to_best_rival"].is_null());
        assert_eq!(value["left_out"][0]["why"], "no room");
        assert_eq!(value["cancelled"], false);
    }

    #[test]
    fn more_threads_are_compared_with_one() {
        let mut one = report();
        one.results.truncate(2);
        let mut rows = one.results.clone();
        rows.iter_mut().for_each(|row| (row.threads, row.ops_per_s) = (1, row.ops_per_s / 1.9));
        one.results.extend(rows);
        compare_with_one_thread(&mut one.results);
        let ratios: Vec<f64> = one.results.iter().map(|row| row.ops_ratio_to_one_thread.unwrap()).collect();
        assert!(ratios.iter().zip([1.9, 1.9, 1.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{ratios:?}");
        assert!(one.table(None).contains("x 1 thr") && one.table(None).contains("1.90x"), "{}", one.table(None));
        assert!(!report().table(None).contains("x 1 thr"));
    }

    #[test]
    fn a_table_with_baselines_compares_with_them() {
        let table = Report { baselines: &[URING_BY_HAND, PREAD], ..report() }.table(None);
        let line = table.lines().find(|line| line.trim_start().starts_with(FIO_IO_URING)).unwrap();
        assert!(table.contains("x uring-by-hand") && table.contains("x pread"), "{table}");
        assert!(line.contains("1.60x 0.81x") && line.contains("0.44x 2.50x"), "{line}");
        assert!(table.lines().skip(1).all(|line| line.chars().count() <= USUAL_WIDTH), "{table}");
    }

    #[test]
    fn the_table_is_narrow_and_says_what_there_is() {
        let table = report().table(None);
        for line in table.lines().filter(|line| !line.starts_with("A CPU")) {
            assert!(line.chars().count() <= USUAL_WIDTH, "{line}");
        }
        for part in ["310k", "2.50 µs", "mmap (warm)", "pread (cold)", "0.80x", "no room", "random-read-4KiB"] {
            assert!(table.contains(part), "{part} is not in:\n{table}");
        }
        let narrow = report().table(Some(75));
        let (rows, _) = narrow.split_once("\nx: ratio").unwrap();
        assert!(rows.lines().skip(1).all(|line| line.chars().count() <= 75), "{narrow}");
        assert!(rows.ends_with("No room for p99: use a wider terminal, or --json."), "{narrow}");
        assert!(["0.80x", "pread (cold)", "310k"].iter().all(|part| rows.contains(part)), "{narrow}");
    }
}
