//! The figures of a measurement: a table for people, and a document for programs.

use serde_json::{Value, json};

use iomill::EngineKind;
use iomill_loops::quick::{DRIVES, PAGE_BYTES};

use super::course::{Contender, Group, Sample, Way};
use super::site::Size;
use crate::human;
use crate::machine::{Ground, Machine};
use crate::table::Table;

/// A CPU that is busy for a larger share of the time is the limit.
const BUSY: f64 = 0.85;

/// All that was measured.
#[derive(Debug)]
pub struct Report {
    pub machine: Machine,
    /// How iomill reads.
    pub engine: EngineKind,
    /// Whether iomill bypasses the kernel's page cache.
    pub is_direct: bool,
    pub place: String,
    pub size: Size,
    /// Most reads in flight.
    pub depth: usize,
    pub rows: Vec<Row>,
    pub counts_fetches: bool,
    pub is_registered: bool,
    pub is_complete: bool,
}

/// A contender's figures.
#[derive(Clone, Debug)]
pub struct Row {
    pub group: Group,
    pub way: Way,
    /// `None` if there is no turn that counts.
    pub figures: Option<Figures>,
    /// Why it takes no part.
    pub missing: Option<String>,
}

/// Medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub rounds: usize,
    pub ops_per_s: f64,
    pub min_ops_per_s: f64,
    pub max_ops_per_s: f64,
    pub cpu_us_per_op: f64,
    pub latency_us: Option<(f64, f64)>,
}

impl Figures {
    fn of(samples: &[Sample]) -> Option<Figures> {
        let ops = sorted(samples, |sample| Some(sample.pages as f64 / sample.seen.wall.as_secs_f64()));
        let latency = |pick: fn((f64, f64)) -> f64| median(&sorted(samples, |sample| sample.latency_us.map(pick)));
        Some(Figures {
            rounds: samples.len(),
            ops_per_s: median(&ops)?,
            min_ops_per_s: *ops.first()?,
            max_ops_per_s: *ops.last()?,
            cpu_us_per_op: median(&sorted(samples, |sample| Some(sample.seen.cpu_us / sample.pages as f64)))?,
            latency_us: latency(|both| both.0).zip(latency(|both| both.1)),
        })
    }

    /// How many CPUs were busy.
    fn cpus(&self) -> f64 {
        self.ops_per_s * self.cpu_us_per_op / 1e6
    }
}

fn sorted(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().filter_map(value).filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Of an even number of values the lower middle one.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

impl Row {
    pub fn of(contender: &Contender) -> Row {
        let figures = if contender.missing.is_none() { Figures::of(&contender.samples) } else { None };
        Row { group: contender.group, way: contender.way, figures, missing: contender.missing.clone() }
    }

    fn label(&self) -> &'static str {
        match (self.way, self.group) {
            (Way::ReadMany, _) => "iomill read_many",
            (Way::ReadAt, _) => "iomill read_at",
            (Way::Ring, _) => "io_uring by hand",
            (Way::Pread, Group::Warm) => "pread",
            (Way::Pread, _) => "pread (O_DIRECT)",
            (Way::Mmap, _) => "mmap",
        }
    }
}

/// The contender that the others of a group compare with.
fn baseline(group: Group) -> Way {
    if group == Group::Warm { Way::Mmap } else { Way::Ring }
}

/// The name of a contender in documents.
fn name(way: Way) -> &'static str {
    match way {
        Way::ReadMany => "iomill-read_many",
        Way::ReadAt => "iomill-read_at",
        Way::Ring => "uring-by-hand",
        Way::Pread => "pread",
        Way::Mmap => "mmap",
    }
}

impl Report {
    /// Whether no contender has a figure.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.figures.is_none())
    }

    fn figures(&self, group: Group, way: Way) -> Option<Figures> {
        self.rows.iter().find(|row| (row.group, row.way) == (group, way))?.figures
    }

    /// Operations per second over those of the group's baseline.
    fn ratio(&self, row: &Row) -> Option<f64> {
        Some(row.figures?.ops_per_s / self.figures(row.group, baseline(row.group))?.ops_per_s)
    }

    fn title(&self, group: Group) -> String {
        match group {
            Group::Cold => format!("from the drive, {} at a time", self.depth),
            Group::One => "from the drive, one at a time".to_owned(),
            Group::Warm => "from memory".to_owned(),
        }
    }

    /// Table and explanations, for a person.
    pub fn text(&self) -> String {
        let size = human::size(self.size.bytes);
        let mut lines = vec![
            format!(
                "{size} in {DRIVES} directories under {}, all on one {}",
                self.place,
                self.machine.drives.first().map_or_else(|| "unknown device".to_owned(), Ground::line)
            ),
            format!("{}\n", self.machine.host()),
        ];
        lines.push(self.table());
        lines.extend(self.explanations());
        lines.join("\n") + "\n"
    }

    fn table(&self) -> String {
        let mut table = Table::new(&["random reads of 4 KiB", ">reads/s", ">ratio", ">CPU per read", "?>p50", "?>p99"]);
        let mut group = None;
        for row in &self.rows {
            if group.replace(row.group) != Some(row.group) {
                let mut cells = vec![self.title(row.group)];
                cells.resize(6, String::new());
                table.row(cells);
            }
            let cell = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let figures = row.figures;
            let latency = figures.and_then(|figures| figures.latency_us);
            table.row([
                format!("  {}", row.label()),
                cell(figures.map(|figures| human::count(figures.ops_per_s))),
                cell(self.ratio(row).map(human::ratio)),
                cell(figures.map(|figures| human::time_us(figures.cpu_us_per_op))),
                cell(latency.map(|(p50, _)| human::time_us(p50))),
                cell(latency.map(|(_, p99)| human::time_us(p99))),
            ]);
        }
        table.render()
    }

    fn explanations(&self) -> Vec<String> {
        let warm = human::size(self.size.warm_bytes);
        let rounds = self.rows.iter().filter_map(|row| row.figures).map(|figures| figures.rounds).max().unwrap_or(0);
        let mut lines = vec![
            format!(
                "One thread reads whole pages in a random order, and checks each. Figures are medians of {rounds} rounds."
            ),
            "Ratio: reads/s over those of io_uring by hand, and from memory over those of mmap; above 1 is faster."
                .to_owned(),
            "p50, p99: how long a read takes. Of reads that are in flight together there is no comparable figure (-)."
                .to_owned(),
        ];
        lines.push(match self.counts_fetches {
            true => "From the drive: the kernel has counted that the pages came from there. iomill has no cache here.".to_owned(),
            false => "The kernel does not count what this file system reads, so nothing shows that pages came from the drive.".to_owned(),
        });
        lines.push(format!(
            "From memory: the first {warm} of the file, in iomill's cache, or in the kernel's for mmap and pread."
        ));
        lines.extend(self.limits());
        if self.engine != EngineKind::Uring {
            lines.push(format!("iomill reads by {} here.", self.engine));
        }
        if !self.is_registered && self.figures(Group::Cold, Way::Ring).is_some() {
            lines.push("io_uring by hand could not register its buffers: the limit of locked memory (`ulimit -l`) is too small.".to_owned());
        }
        lines.extend(self.missing());
        if !self.is_complete {
            lines.push("Interrupted: only complete rounds are counted.".to_owned());
        }
        lines
    }

    /// What limits the reads, where that is known.
    fn limits(&self) -> Option<String> {
        let (many, one) = (self.figures(Group::Cold, Way::ReadMany)?, self.figures(Group::One, Way::ReadAt)?);
        let fastest =
            self.figures(Group::Cold, Way::Ring).filter(|ring| ring.ops_per_s > many.ops_per_s).unwrap_or(many);
        let busy = format!("{:.0}%", 100.0 * fastest.cpus());
        let limit = if fastest.cpus() >= BUSY {
            format!(
                "Limit: the CPU of the reading thread, which is busy for {busy} of the time; the drive may do more."
            )
        } else {
            format!("Limit: the drive. The CPU of the reading thread is busy for {busy} of the time.")
        };
        let times = many.ops_per_s / one.ops_per_s;
        Some(format!("{limit}\nMany reads in one call of iomill are {times:.1} times as fast as one after the other."))
    }

    /// The contenders that are missing. Those with the same reason share a line.
    fn missing(&self) -> Vec<String> {
        let mut lines: Vec<(Vec<String>, &str)> = Vec::new();
        for row in &self.rows {
            let Some(why) = &row.missing else { continue };
            let has_other = self.rows.iter().any(|other| other.label() == row.label() && other.missing.is_none());
            let label = match has_other {
                true => format!("{} {}", row.label(), self.title(row.group)),
                false => row.label().to_owned(),
            };
            match lines.iter_mut().find(|(_, other)| other == why) {
                Some((labels, _)) if labels.contains(&label) => {}
                Some((labels, _)) => labels.push(label),
                None => lines.push((vec![label], why)),
            }
        }
        lines.into_iter().map(|(labels, why)| format!("No figures of {}: {why}.", labels.join(", "))).collect()
    }

    /// The document, for programs.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().filter_map(|row| Some(self.row(row, row.figures?)));
        let left_out = self.rows.iter().filter_map(|row| {
            let why = row.missing.as_ref()?;
            Some(json!({ "contender": name(row.way), "group": group(row.group), "why": why }))
        });
        json!({
            "machine": self.machine,
            "engine": self.engine.to_string(),
            "direct": self.is_direct,
            "bytes": self.size.bytes,
            "warm_bytes": self.size.warm_bytes,
            "fetches_counted": self.counts_fetches,
            "results": rows.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
            "cancelled": !self.is_complete,
        })
    }

    fn row(&self, row: &Row, figures: Figures) -> Value {
        let ratio = self.ratio(row);
        json!({
            "contender": name(row.way),
            "group": group(row.group),
            "workload": "random-read-4KiB",
            "threads": 1,
            "in_flight": match row.group {
                Group::Cold => Some(self.depth),
                Group::One => Some(1),
                Group::Warm => None,
            },
            "rounds": figures.rounds,
            "ops_per_s": figures.ops_per_s,
            "min_ops_per_s": figures.min_ops_per_s,
            "max_ops_per_s": figures.max_ops_per_s,
            "bytes_per_s": figures.ops_per_s * PAGE_BYTES as f64,
            "cpu_us_per_op": figures.cpu_us_per_op,
            "p50_us": figures.latency_us.map(|both| both.0),
            "p99_us": figures.latency_us.map(|both| both.1),
            "ratio": ratio,
            "ratio_to": ratio.map(|_| name(baseline(row.group))),
        })
    }
}

/// The name of a group in documents.
fn group(group: Group) -> &'static str {
    match group {
        Group::Cold => "cold",
        Group::One => "cold-one",
        Group::Warm => "warm",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::course::CONTENDERS;
    use super::super::meter::Seen;
    use super::*;

    fn sample(pages: u64, latency_us: Option<(f64, f64)>) -> Sample {
        let seen = Seen { wall: Duration::from_secs(1), cpu_us: 1e5, ..Seen::default() };
        Sample { pages, seen, latency_us }
    }

    /// Contender number i does 1000 (i + 1) reads/s, on a tenth of a CPU. The last round of each was slow.
    fn report(is_missing: impl Fn(Group, Way) -> bool) -> Report {
        let rows = CONTENDERS.into_iter().zip(1..).map(|((group, way), times)| {
            let latency_us = (group != Group::Cold).then_some((10.0, 20.0));
            let samples = [3, 1000, 1000].map(|pages| sample(pages * times, latency_us));
            let missing = is_missing(group, way).then(|| "it is forbidden".to_owned());
            let figures = if missing.is_none() { Figures::of(&samples) } else { None };
            Row { group, way, figures, missing }
        });
        let machine = Machine {
            cpu_model: "A CPU".into(),
            cores: 2,
            cores_allowed: 1,
            memory_bytes: 8 << 30,
            kernel: "6.1".into(),
            drives: vec![Ground { file_system: "ext4".into(), ..Ground::default() }],
        };
        let size = Size { bytes: 1 << 30, warm_bytes: 256 << 20 };
        let place = "/x".to_owned();
        let rows = rows.collect();
        Report {
            machine,
            engine: EngineKind::Aio,
            is_direct: true,
            place,
            size,
            depth: 128,
            rows,
            counts_fetches: true,
            is_registered: false,
            is_complete: false,
        }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_within_a_group() {
        let report = report(|_, _| false);
        let document = report.json();
        let row = |index: usize| &document["results"][index];
        assert_eq!((&row(0)["ops_per_s"], &row(0)["min_ops_per_s"]), (&1000.0.into(), &3.0.into()));
        assert_eq!((&row(0)["cpu_us_per_op"], &row(0)["rounds"]), (&100.0.into(), &3.into()));
        assert_eq!((&row(0)["ratio"], &row(0)["ratio_to"]), (&0.5.into(), &"uring-by-hand".into()));
        assert_eq!((&row(2)["ratio"], &row(2)["in_flight"]), (&0.75.into(), &1.into()));
        assert_eq!((&row(9)["ratio_to"], &row(9)["p99_us"]), (&"mmap".into(), &20.0.into()));
        assert_eq!((&document["cancelled"], &document["left_out"]), (&true.into(), &json!([])));
        let text = report.text();
        for said in [
            "1 GiB in 4 directories under /x, all on one ext4 on an unknown device\n",
            "A CPU, 1 of 2 CPUs, 8 GiB memory, Linux 6.1\n",
            "Limit: the drive. The CPU of the reading thread is busy for 10% of the time.\n",
            "in one call of iomill are 0.3 times as fast",
            "iomill reads by libaio here.\n",
            "ulimit -l",
            "Figures are medians of 3 rounds.\n",
            "Interrupted",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains("No figures"), "{text}");
    }

    #[test]
    fn what_is_missing_has_a_line_and_no_figures() {
        let report = report(|_, way| way == Way::Ring);
        let text = report.text();
        let said = "No figures of io_uring by hand: it is forbidden.\n";
        assert!(text.contains(said), "{text}");
        let document = report.json();
        assert_eq!(document["left_out"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            (&document["results"][0]["ratio"], &document["results"][0]["ratio_to"]),
            (&Value::Null, &Value::Null)
        );
        let line = text.lines().find(|line| line.contains("io_uring by hand")).unwrap_or_default();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["io_uring", "by", "hand", "-", "-", "-", "-", "-"]);
        let one = super::tests::report(|group, way| (group, way) == (Group::Cold, Way::Ring)).text();
        let said = "No figures of io_uring by hand from the drive, 128 at a time: it is forbidden.\n";
        assert!(one.contains(said), "{one}");
        let none = super::tests::report(|_, _| true);
        assert!(none.is_empty() && !report.is_empty());
    }
}
