//! Computes points from the documents of steps.

use serde_json::Value;

use crate::experiment::{Point, Step};

/// The documents of a step.
pub fn lines(documents: &Value) -> &[Value] {
    documents.as_array().map_or(&[], Vec::as_slice)
}

pub fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or("").to_owned()
}

/// The rows of a measurement, each with its group.
pub fn rows(document: &Value, group: impl Fn(&Value) -> (String, Option<f64>)) -> Vec<Point> {
    let rows = document["results"].as_array().map_or(&[][..], Vec::as_slice);
    let point = |row: &Value| {
        let (group, x) = group(row);
        let number = |key: &str| row[key].as_f64();
        let value = [number("ops_per_s")?, number("min_ops_per_s")?, number("max_ops_per_s")?];
        Some(Point { group, x, series: text(row, "contender"), value, cpu_us: number("cpu_us_per_op") })
    };
    rows.iter().filter_map(point).collect()
}

/// The rows of all steps that did not find their bytes in memory.
pub fn from_drives(
    steps: &[Step],
    documents: &[Value],
    group: impl Fn(&Step, &Value) -> (String, Option<f64>),
) -> Vec<Point> {
    const WARM: &str = "warm";
    let marked = measured(steps, documents, |step, row| match text(row, "cache") == WARM {
        true => (WARM.to_owned(), None),
        false => group(step, row),
    });
    marked.into_iter().filter(|point| point.group != WARM).collect()
}

/// The rows of all steps.
pub fn measured(
    steps: &[Step],
    documents: &[Value],
    group: impl Fn(&Step, &Value) -> (String, Option<f64>),
) -> Vec<Point> {
    let of = |(step, documents)| {
        lines(documents).iter().flat_map(|document| rows(document, |row| group(step, row))).collect::<Vec<_>>()
    };
    steps.iter().zip(documents).flat_map(of).collect()
}

/// Hit rates of each trace, as means over the sizes of the cache.
pub fn simulated(steps: &[Step], documents: &[Value], series: impl Fn(&Value) -> (String, Option<f64>)) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for (step, documents) in steps.iter().zip(documents) {
        let mut sums: Vec<(String, Option<f64>, Vec<f64>)> = Vec::new();
        for row in lines(documents) {
            let Some(rate) = row["hit_rate_whole"].as_f64() else { continue };
            let (name, x) = series(row);
            match sums.iter_mut().find(|sum| sum.0 == name) {
                Some(sum) => sum.2.push(100.0 * rate),
                None => sums.push((name, x, vec![100.0 * rate])),
            }
        }
        for (series, x, mut rates) in sums {
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            rates.sort_by(f64::total_cmp);
            let value = [mean, rates[0], rates[rates.len() - 1]];
            let group = step.name.split('.').next().unwrap_or("").to_owned();
            points.push(Point { group, x, series, value, cpu_us: None });
        }
    }
    points
}

/// Appends a second of files that grow, their sync at the end included.
pub fn grown(document: &Value) -> Vec<Point> {
    let point = |row: &Value| {
        let number = |key: &str| row[key].as_f64();
        let rate = number("bytes")? / number("op_bytes")? / (number("seconds")? + number("sync_seconds")?);
        let group = match row["is_preallocated"].as_bool()? {
            true => "growth, allocated ahead",
            false => "growth, not allocated ahead",
        };
        let series = text(row, "contender");
        Some(Point { group: group.to_owned(), x: None, series, value: [rate; 3], cpu_us: None })
    };
    document["growth"].as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(point).collect()
}

/// The figures of a whole program.
pub fn program_rows(document: &Value) -> Vec<Point> {
    let rows = document["results"].as_array().map_or(&[][..], Vec::as_slice);
    let point = |row: &Value| {
        let number = |key: &str| row[key].as_f64();
        let value = [number("per_s")?, number("min_per_s")?, number("max_per_s")?];
        let group = format!("{} ({})", text(row, "part"), text(row, "unit"));
        Some(Point { group, x: None, series: text(row, "contender"), value, cpu_us: number("cpu_us") })
    };
    rows.iter().filter_map(point).collect()
}

/// The split of a read's latency, from `iomill probe`.
pub fn probed(document: &Value) -> Vec<Point> {
    let mut points = Vec::new();
    for drive in document["drives"].as_array().map_or(&[][..], Vec::as_slice) {
        let split = &drive["latency"];
        for (series, key) in [("whole", "split_us"), ("platform", "platform_us"), ("drive", "device_us")] {
            if let Some(value) = split[key].as_f64() {
                points.push(Point {
                    group: text(drive, "path"),
                    x: None,
                    series: series.to_owned(),
                    value: [value; 3],
                    cpu_us: None,
                });
            }
        }
    }
    points
}
