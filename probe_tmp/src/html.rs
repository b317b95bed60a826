//! A probe as one HTML page with pictures.
//!
//! Goals: a single file for any browser, which fetches nothing and runs nothing. It shows the verdict first, then a picture for
//! each question, with linear growth drawn beside the measured points.
//! Non-goals: all figures; the JSON document has them.

use iomill::{Error, Result};
use iomill_bench::human;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::{Figures, Point};

/// A picture's size in pixels.
const SIZE: (u32, u32) = (560, 340);

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#222}\
    li:first-child{font-weight:bold}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}.bar{display:flex;width:26em;height:1.1em;background:#eee}\
    .drive{background:#377eb8}.platform{background:#e41a1c}svg{margin:.5em}";

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A picture of points.
struct Picture<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    /// The points, from left to right.
    points: Vec<(f64, f64)>,
    /// Whether to draw a straight line from 0 through the first point.
    with_linear: bool,
    x_text: &'a dyn Fn(f64) -> String,
    y_text: &'a dyn Fn(f64) -> String,
}

/// The page.
pub fn page(figures: &Figures) -> Result<String> {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>iomill probe</title><style>{STYLE}</style><h1>iomill probe</h1><ul>"
    );
    for words in &figures.verdict {
        page.push_str(&format!("<li>{}</li>", escape(words)));
    }
    page.push_str(&format!("</ul><p>{}</p>", escape(&figures.machine.line())));
    page.push_str(&latencies(figures));
    page.push_str(&costs(figures));
    page.push_str("<h2>How it grows</h2>");
    page.push_str(&pictures(figures)?);
    page.push_str("</html>\n");
    Ok(page)
}

/// The varied quantity, on the x axis.
#[derive(Clone, Copy, PartialEq)]
enum Across {
    Depth,
    Size,
    Threads,
    Drives,
}

/// The measured quantity, on the y axis.
#[derive(Clone, Copy)]
enum Up {
    Reads,
    Bandwidth,
    Cpu,
}

impl Across {
    fn of(self, point: &Point) -> f64 {
        match self {
            Across::Depth => point.depth.into(),
            Across::Size => point.request_bytes.into(),
            Across::Threads => point.threads as f64,
            Across::Drives => point.drives as f64,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Across::Depth => "in flight on each drive",
            Across::Size => "bytes per read",
            Across::Threads => "threads",
            Across::Drives => "drives",
        }
    }
}

impl Up {
    fn of(self, point: &Point) -> f64 {
        match self {
            Up::Reads => point.iops,
            Up::Bandwidth => point.bytes_per_s,
            Up::Cpu => point.cpu_us_per_op,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Up::Reads => "reads of 4 KiB/s",
            Up::Bandwidth => "bandwidth",
            Up::Cpu => "µs per read",
        }
    }
}

/// One picture for each measured question.
fn pictures(figures: &Figures) -> Result<String> {
    let mut text = String::new();
    let number = |value: f64| format!("{value:.0}");
    let size = |bytes: f64| human::size(bytes as u64);
    for (title, points, across, up) in [
        ("One thread, more in flight", &figures.depths, Across::Depth, Up::Reads),
        ("One thread, more in flight, 64 KiB", &figures.depths_wide, Across::Depth, Up::Bandwidth),
        ("CPU time, more in flight", &figures.depths, Across::Depth, Up::Cpu),
        ("One thread, larger reads", &figures.sizes, Across::Size, Up::Bandwidth),
        ("More threads", &figures.threads, Across::Threads, Up::Reads),
        ("More threads, 64 KiB", &figures.threads_wide, Across::Threads, Up::Bandwidth),
        ("More drives", &figures.drive_counts, Across::Drives, Up::Reads),
        ("More drives, 64 KiB", &figures.drive_counts_wide, Across::Drives, Up::Bandwidth),
    ] {
        if points.is_empty() {
            continue;
        }
        let picture = Picture {
            title,
            x: across.words(),
            y: up.words(),
            points: points.iter().map(|point| (across.of(point), up.of(point))).collect(),
            with_linear: matches!(across, Across::Threads | Across::Drives),
            x_text: if across == Across::Size { &size } else { &number },
            y_text: match up {
                Up::Reads => &human::count,
                Up::Bandwidth => &human::rate,
                Up::Cpu => &number,
            },
        };
        text.push_str(&picture.svg()?);
    }
    Ok(text)
}

/// A bar for each drive: the drive's share, and the platform's share.
fn latencies(figures: &Figures) -> String {
    let mut text = String::from(
        "<h2>A lone read of 4 KiB</h2><table><tr><th>drive</th><th>node</th><th>median</th><th>p99</th><th>\
         <span style=\"color:#377eb8\">drive</span> and <span style=\"color:#e41a1c\">platform</span></th></tr>",
    );
    let drives = figures.drives.iter().map(|drive| (&drive.path, drive.node, &drive.latency));
    let raw = figures.raw.iter().map(|raw| (&raw.path, raw.node, &raw.latency));
    for (path, node, latency) in drives.chain(raw) {
        let share = (100.0 * latency.device_us / latency.split_us.max(1e-9)).clamp(0.0, 100.0);
        let bar = match latency.is_split() {
            true => format!(
                "<div class=\"bar\" title=\"{}\"><div class=\"drive\" style=\"width:{share:.1}%\"></div><div class=\"platform\" style=\"width:{:.1}%\"></div></div>",
                escape(&latency.split_by),
                100.0 - share
            ),
            false => "counted too coarsely".to_owned(),
        };
        text.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{bar}</td></tr>",
            escape(&path.display().to_string()),
            node.map_or("-".to_owned(), |node| node.to_string()),
            human::time_us(latency.p50_us),
            human::time_us(latency.p99_us),
        ));
    }
    text + "</table>"
}

/// A row for each path to a drive.
fn costs(figures: &Figures) -> String {
    let mut text = format!(
        "<h2>What a read of 4 KiB costs</h2><p>Cycles: {}</p><table><tr><th>path</th><th>of</th><th>reads/s</th><th>CPU</th><th>cycles</th></tr>",
        escape(&figures.cycles_by)
    );
    for cost in &figures.paths {
        text.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&cost.words()),
            escape(&cost.path.display().to_string()),
            human::count(cost.iops),
            human::time_us(cost.cpu_us_per_op),
            cost.cycles_per_op.map_or("?".to_owned(), human::count),
        ));
    }
    text.push_str("</table>");
    for why in &figures.paths_left_out {
        text.push_str(&format!("<p>Not measured: {}</p>", escape(why)));
    }
    text
}

impl Picture<'_> {
    fn svg(&self) -> Result<String> {
        let mut text = String::new();
        let drawn = {
            let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&root).and_then(|()| Ok(root.present()?)).map_err(|error| error.to_string())
        };
        drawn.map_err(|why| Error::Tool { what: format!("the picture {:?}", self.title), why })?;
        Ok(text)
    }

    fn draw(&self, root: &Panel<'_>) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let last = self.points.last().map_or(1.0, |point| point.0).max(1.0);
        let slope = self.points.first().map_or(0.0, |(x, y)| y / x.max(1e-9));
        let linear: Vec<(f64, f64)> = self.points.iter().map(|(x, _)| (*x, slope * x)).collect();
        let lines = if self.with_linear { vec![&self.points, &linear] } else { vec![&self.points] };
        let most = lines.iter().flat_map(|line| line.iter()).map(|point| point.1).fold(1e-9, f64::max);
        let first = self.points.first().map_or(1.0, |point| point.0);
        let mut chart = ChartBuilder::on(root)
            .caption(self.title, ("sans-serif", 17))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(76)
            .build_cartesian_2d((first * 0.9..last * 1.1).log_scale(), 0.0..most * 1.08)?;
        chart
            .configure_mesh()
            .light_line_style(BLACK.mix(0.05))
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|x| (self.x_text)(*x))
            .y_label_formatter(&|y| (self.y_text)(*y))
            .draw()?;
        if self.with_linear {
            chart.draw_series(LineSeries::new(linear, BLACK.mix(0.35).stroke_width(1)))?;
        }
        chart.draw_series(LineSeries::new(self.points.clone(), BLUE.stroke_width(2)).point_size(3))?;
        Ok(())
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::verdict::tests::figures;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_shows_what_was_found() {
        let mut figures = figures([2e5, 4e5], 5.5e5, 1.5);
        figures.verdict = vec!["the <drives> & more".to_owned()];
        figures.sizes = figures.depths.clone();
        figures.depths_wide = figures.depths.clone();
        figures.threads_wide = figures.threads.clone();
        figures.paths_left_out = vec!["polling: no <queues>".to_owned()];
        let page = page(&figures).unwrap();
        assert!(page.contains("<li>the &lt;drives&gt; &amp; more</li>"));
        assert!(page.contains("no &lt;queues&gt;"));
        // No picture of what was not measured: here the drives with 64 KiB.
        assert_eq!(page.matches("<svg").count(), 7);
        for part in ["More threads", "width:90.0%", "width:10.0%", "in flight on each drive", "/mnt/1"] {
            assert!(page.contains(part), "{part}");
        }
        for fetched in ["http-equiv", "<script", "src=", "href=", "@import"] {
            assert!(!page.contains(fetched), "{fetched}");
        }
    }
}
