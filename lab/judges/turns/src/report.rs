//! Figures, and their tables.

use std::io::{Write, stdout};

use anyhow::{Context, Result as Fallible};
use serde::Serialize;
use serde_json::json;

use crate::row::Row;
use crate::seen::Seen;

/// The figures of one slice.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Operations a second.
    rate: f64,
    /// CPU time of an operation, in microseconds.
    cpu_us: f64,
    /// Bytes per operation that were read from drives.
    fetched_bytes: f64,
}

impl Figures {
    pub(crate) fn new(seen: &Seen, ops: u64) -> Figures {
        let ops = ops.max(1) as f64;
        Figures {
            rate: ops / seen.wall_us * 1e6,
            cpu_us: seen.cpu_us / ops,
            fetched_bytes: seen.fetched_bytes as f64 / ops,
        }
    }
}

/// All slices of a row that count.
pub(crate) struct Result {
    pub(crate) row: Row,
    /// By contender, then by round.
    pub(crate) figures: Vec<Vec<Figures>>,
}

/// A ratio over the rounds: its median, its least and its largest value.
#[derive(Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    min: f64,
    max: f64,
}

/// The figures of one contender.
#[derive(Debug, Serialize)]
struct Line {
    contender: &'static str,
    rate: f64,
    cpu_us: f64,
    fetched_bytes: f64,
    /// Times the rate of the first contender.
    rate_ratio: Ratio,
    /// Times its CPU time for an operation.
    cpu_ratio: Ratio,
    /// Whether the goal is reached; `None` for the contender to beat.
    reached: Option<bool>,
}

impl Result {
    fn lines(&self) -> Vec<Line> {
        let first = &self.figures[0];
        let line = |(at, figures): (usize, &Vec<Figures>)| {
            let of = |what: fn(&Figures) -> f64| median(figures.iter().map(what).collect());
            let ratio = |what: fn(&Figures) -> f64| {
                let mut ratios: Vec<f64> =
                    figures.iter().zip(first).map(|(one, first)| what(one) / what(first)).collect();
                ratios.sort_by(f64::total_cmp);
                Ratio { median: median(ratios.clone()), min: ratios[0], max: ratios[ratios.len() - 1] }
            };
            let (rate_ratio, cpu_ratio) = (ratio(|f| f.rate), ratio(|f| f.cpu_us));
            let goal = self.row.goal;
            let lowest = first.iter().map(|f| f.rate).fold(f64::INFINITY, f64::min);
            let reached = goal.rate_min.is_none_or(|min| rate_ratio.median >= min)
                && goal.cpu_max.is_none_or(|max| cpu_ratio.median <= max)
                && (!goal.within_noise || of(|f| f.rate) >= lowest);
            Line {
                contender: self.row.contenders[at],
                rate: of(|f| f.rate),
                cpu_us: of(|f| f.cpu_us),
                fetched_bytes: of(|f| f.fetched_bytes),
                rate_ratio,
                cpu_ratio,
                reached: (at > 0).then_some(reached),
            }
        };
        self.figures.iter().enumerate().map(line).collect()
    }

    fn goal(&self) -> String {
        let rate = self.row.goal.rate_min.map(|min| format!("rate at least {min:.2}x"));
        let cpu = self.row.goal.cpu_max.map(|max| format!("CPU at most {max:.2}x"));
        let noise = self.row.goal.within_noise.then(|| "rate within the noise".to_owned());
        [rate, cpu, noise].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Prints the table of a row.
pub(crate) fn print_table(result: &Result) -> Fallible<()> {
    stdout().write_all(table(result).as_bytes()).context("cannot print the figures")
}

/// Prints all rows as one value of JSON.
pub(crate) fn print_json(results: &[Result]) -> Fallible<()> {
    stdout().write_all(json_of(results)?.as_bytes()).context("cannot print the figures")
}

fn json_of(results: &[Result]) -> Fallible<String> {
    let rows = results.iter().map(|result| {
        let row = &result.row;
        json!({
            "row": row.name, "what": row.what, "unit": row.unit, "state": row.state.name(), "memory_bytes": row.memory_bytes,
            "goal": {"rate_min": row.goal.rate_min, "cpu_max": row.goal.cpu_max, "within_noise": row.goal.within_noise},
            "contenders": result.lines(), "rounds": result.figures.first().map_or(0, Vec::len),
        })
    });
    Ok(serde_json::to_string_pretty(&rows.collect::<Vec<_>>())? + "\n")
}

fn table(result: &Result) -> String {
    let (row, unit) = (&result.row, result.row.unit);
    let memory = row.memory_bytes.map_or(String::new(), |bytes| format!(", {} MiB of memory for data", bytes >> 20));
    let mut text =
        format!("\n{}: {} ({}{memory}; {} rounds)\n", row.name, row.what, row.state.name(), result.figures[0].len());
    text += &format!(
        "  {:<16} {:>12} {:>12} {:>14}  {:<22} {:<22} {}\n",
        "",
        format!("{unit}s/s"),
        "CPU us each",
        "fetched each",
        "rate",
        "CPU",
        result.goal()
    );
    for line in result.lines() {
        let ratio = |r: &Ratio| format!("{:.2}x ({:.2}-{:.2})", r.median, r.min, r.max);
        let verdict = line.reached.map_or("", |reached| if reached { "reached" } else { "MISSED" });
        text += &format!(
            "  {:<16} {:>12.1} {:>12.1} {:>12.0} B  {:<22} {:<22} {verdict}\n",
            line.contender,
            line.rate,
            line.cpu_us,
            line.fetched_bytes,
            ratio(&line.rate_ratio),
            ratio(&line.cpu_ratio)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, State};

    fn result(goal: Goal) -> Result {
        let row = Row {
            name: "reads",
            what: "reads of pages".into(),
            unit: "read",
            state: State::Warm,
            memory_bytes: Some(64 << 20),
            contenders: &["other", "iomill"],
            goal,
        };
        let figures = |wall_us: [f64; 3], cpu_us| {
            let seen = |wall_us| Seen { wall_us, cpu_us, ..Seen::default() };
            wall_us.map(|wall_us| Figures::new(&seen(wall_us), 10)).to_vec()
        };
        Result { row, figures: vec![figures([90.0, 200.0, 100.0], 80.0), figures([30.0, 50.0, 50.0], 40.0)] }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let lines = result(Goal::default()).lines();
        assert_eq!(lines[0].rate, 100_000.0);
        assert_eq!(lines[1].rate_ratio, Ratio { median: 3.0, min: 2.0, max: 4.0 });
        assert_eq!(lines[1].cpu_ratio, Ratio { median: 0.5, min: 0.5, max: 0.5 });
        assert_eq!((lines[0].reached, lines[1].reached), (None, Some(true)));
    }

    #[test]
    fn a_missed_goal_is_said() {
        let slow = result(Goal { rate_min: Some(3.5), ..Goal::default() });
        assert!(table(&slow).contains("MISSED") && table(&slow).contains("rate at least 3.50x"), "{}", table(&slow));
        let dear = result(Goal { rate_min: Some(3.0), cpu_max: Some(0.4), within_noise: true });
        assert_eq!(dear.lines()[1].reached, Some(false));
        let reached = result(Goal { rate_min: Some(3.0), cpu_max: Some(0.5), within_noise: true });
        assert!(table(&reached).contains("reached") && json_of(&[reached]).unwrap().contains("\"reached\": true"));
    }
}
