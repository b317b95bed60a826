//! A picture of hit rates: a panel per trace, with a line per policy and set size.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::{Result, TraceError};
use crate::simulate::Outcome;

/// A panel's size in pixels.
const PANEL: (u32, u32) = (760, 480);

/// The largest number of panels beside each other.
const COLUMNS: usize = 2;

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

/// The outcomes of a trace, with its name.
pub type Traced<'a> = (&'a str, &'a [Outcome]);

/// The picture, as the text of an SVG file. A trace without outcomes gets an empty panel.
pub fn svg(traces: &[Traced<'_>]) -> Result<String> {
    let mut text = String::new();
    let columns = traces.len().clamp(1, COLUMNS);
    let rows = traces.len().div_ceil(columns).max(1);
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32);
    let drawn = {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let panels = root.split_evenly((rows, columns));
        let fill = root.fill(&WHITE).map_err(|error| error.to_string());
        let panels =
            panels.iter().zip(traces).map(|(panel, trace)| draw(panel, *trace).map_err(|error| error.to_string()));
        fill.and_then(|()| panels.collect::<std::result::Result<(), String>>())
            .and_then(|()| root.present().map_err(|error| error.to_string()))
    };
    drawn.map_err(|why| TraceError::Whole { path: "the picture".to_owned(), why })?;
    Ok(text)
}

/// Writes the picture to a file.
pub fn write(path: &Path, traces: &[Traced<'_>]) -> Result<()> {
    let why = |error: std::io::Error| format!("cannot write the picture: {error}");
    std::fs::write(path, svg(traces)?)
        .map_err(|error| TraceError::Whole { path: path.display().to_string(), why: why(error) })
}

fn draw(panel: &Panel<'_>, (name, outcomes): Traced<'_>) -> DrawResult {
    let sizes = outcomes.iter().map(|outcome| outcome.case.pages_used() as f64);
    let (least, most) = sizes.fold((f64::INFINITY, 0.0f64), |(least, most), size| (least.min(size), most.max(size)));
    // A single size would make an axis without length.
    let (least, most) = if most > 0.0 { (least / 1.1, most * 1.1) } else { (1.0, 10.0) };
    let mut chart = ChartBuilder::on(panel)
        .caption(name, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d((least..most).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.05))
        .x_desc("pages in the cache")
        .y_desc("hit rate, %")
        .x_label_formatter(&|pages| count(*pages))
        .draw()?;
    for (place, line) in lines(outcomes).into_iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let points: Vec<(f64, f64)> =
            line.iter().map(|o| (o.case.pages_used() as f64, 100.0 * o.hit_rate_warm)).collect();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(label(line[0]))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    if !outcomes.is_empty() {
        chart
            .configure_series_labels()
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.85))
            .position(SeriesLabelPosition::LowerRight)
            .draw()?;
    }
    Ok(())
}

/// The outcomes of each policy and set size, by the caches' sizes.
fn lines(outcomes: &[Outcome]) -> Vec<Vec<&Outcome>> {
    let mut lines: Vec<Vec<&Outcome>> = Vec::new();
    let key = |outcome: &Outcome| (outcome.case.policy, outcome.case.set_size);
    for outcome in outcomes {
        match lines.iter_mut().find(|line| key(line[0]) == key(outcome)) {
            Some(line) => line.push(outcome),
            None => lines.push(vec![outcome]),
        }
    }
    lines.iter_mut().for_each(|line| line.sort_by_key(|outcome| outcome.case.pages_used()));
    lines
}

fn label(outcome: &Outcome) -> String {
    match outcome.case.set_size {
        Some(size) => format!("{}, sets of {size}", outcome.case.policy),
        None => outcome.case.policy.to_string(),
    }
}

/// A number of pages on the axis.
fn count(pages: f64) -> String {
    match pages {
        pages if pages >= 1e6 => format!("{:.1}M", pages / 1e6),
        pages if pages >= 1e4 => format!("{:.0}k", pages / 1e3),
        pages => format!("{pages:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Case, Policy, SetPolicy};

    fn outcomes() -> Vec<Outcome> {
        let policies = [
            (Policy::GlobalLru, None),
            (Policy::Sets(SetPolicy::Lru), Some(4)),
            (Policy::Sets(SetPolicy::Lru), Some(12)),
        ];
        let cases = policies
            .into_iter()
            .flat_map(|(policy, set_size)| [9600, 96].map(|cache_pages| Case { policy, cache_pages, set_size }));
        cases.map(|case| Outcome { case, hit_rate_warm: 0.4, hit_rate_whole: 0.3, accesses_per_s: 1e7 }).collect()
    }

    #[test]
    fn a_line_per_policy_and_set_size() {
        let outcomes = outcomes();
        let text = svg(&[("oltp", &outcomes), ("p<6>", &outcomes[..1]), ("none", &[])]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for said in ["oltp", "p&lt;6&gt;", "lru, sets of 4", "lru, sets of 12", "global-lru", "hit rate, %"] {
            assert!(text.contains(said), "{said}");
        }
        // Three lines with two points each, and one with one. The legend has a line for each, too.
        assert_eq!(text.matches("<circle").count(), 7);
    }

    #[test]
    fn lines_go_from_small_to_large() {
        let outcomes = outcomes();
        for line in lines(&outcomes) {
            assert_eq!(line.iter().map(|outcome| outcome.case.cache_pages).collect::<Vec<_>>(), [96, 9600]);
        }
    }
}
