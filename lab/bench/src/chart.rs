//! `bench mixed` as a picture: operations per second over the share of hits, one line per contender. A second panel
//! shows the key-value loads.

use plotters::coord::Shift;
use plotters::prelude::*;

use iomill::{Error, Result};

use crate::report::{Report, Row};
use iomill_cli::human;

/// A panel's size in pixels.
const PANEL: (u32, u32) = (760, 480);
/// Separates the share of hits from the rest in a workload's name.
const HITS: &str = "%hit-";

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

/// The picture, as the text of an SVG file.
pub fn svg(report: &Report) -> Result<String> {
    let (hits, loads): (Vec<&Row>, Vec<&Row>) = report.results.iter().partition(|row| share(row).is_some());
    let mut text = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut text, (2 * PANEL.0, PANEL.1)).into_drawing_area();
        let draw = || -> DrawResult {
            root.fill(&WHITE)?;
            let panels = root.split_evenly((1, 2));
            draw_hits(&panels[0], &hits)?;
            draw_loads(&panels[1], &loads)?;
            Ok(root.present()?)
        };
        draw().map_err(|error| error.to_string())
    };
    drawn.map_err(|why| Error::Tool { what: "the picture".into(), why })?;
    Ok(text)
}

/// The share of hits of a workload, in percent.
fn share(row: &Row) -> Option<f64> {
    row.workload.split_once(HITS)?.0.parse().ok()
}

/// The distinct words of some rows, in order of appearance.
fn words<'a>(rows: &[&'a Row], word: impl Fn(&'a Row) -> &'a str) -> Vec<&'a str> {
    let mut words = Vec::new();
    for row in rows {
        let word = word(row);
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

fn most(rows: &[&Row]) -> f64 {
    rows.iter().map(|row| row.ops_per_s).fold(1.0, f64::max)
}

fn draw_hits(panel: &Panel<'_>, rows: &[&Row]) -> DrawResult {
    let least = rows.iter().map(|row| row.ops_per_s).fold(most(rows), f64::min).max(1.0);
    let mut chart = ChartBuilder::on(panel)
        .caption("reads in the same memory", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..100.0, (least / 1.5..most(rows) * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.05))
        .x_desc("reads that hit, %")
        .y_desc("operations per second")
        .y_label_formatter(&|ops| human::count(*ops))
        .draw()?;
    for (place, name) in words(rows, |row| &row.contender).into_iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let of = rows.iter().filter(|row| row.contender == name);
        let mut points: Vec<(f64, f64)> = of.filter_map(|row| Some((share(row)?, row.ops_per_s.max(1.0)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    legend(&mut chart, rows)
}

fn draw_loads(panel: &Panel<'_>, rows: &[&Row]) -> DrawResult {
    let (loads, names) = (words(rows, |row| &row.workload), words(rows, |row| &row.contender));
    let mut chart = ChartBuilder::on(panel)
        .caption("values by a zipf law, memory for a tenth", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..loads.len().max(1) as f64, 0.0..most(rows) * 1.4)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(BLACK.mix(0.05))
        .x_labels(2 * loads.len() + 1)
        // The label of a load stands in the middle of its bars.
        .x_label_formatter(&|x| match x.fract() {
            half if (half - 0.5).abs() < 0.01 => loads.get(*x as usize).copied().unwrap_or_default().to_owned(),
            _ => String::new(),
        })
        .y_desc("operations per second")
        .y_label_formatter(&|ops| human::count(*ops))
        .draw()?;
    let width = 0.8 / names.len().max(1) as f64;
    for (place, name) in names.iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        let bars = rows.iter().filter(|row| row.contender == *name).filter_map(|row| {
            let load = loads.iter().position(|load| *load == row.workload)?;
            let left = load as f64 + 0.1 + place as f64 * width;
            Some(Rectangle::new([(left, 0.0), (left + 0.9 * width, row.ops_per_s)], color.filled()))
        });
        chart
            .draw_series(bars)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], color.filled()));
    }
    legend(&mut chart, rows)
}

fn legend<'a, X: Ranged, Y: Ranged>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    rows: &[&Row],
) -> DrawResult {
    if !rows.is_empty() {
        chart
            .configure_series_labels()
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.85))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()?;
    }
    Ok(())
}
