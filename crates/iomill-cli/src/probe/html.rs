//! A probe as one HTML page with pictures.
//!
//! Goals: a single file for any browser, which fetches nothing and runs nothing. It shows the verdict first, then a
//! picture for each question, with linear growth drawn beside the measured points. Non-goals: all figures; the JSON
//! document has them.

use crate::human;

use super::figures::{Figures, Point};

/// A picture's size in pixels, and the edges of the area that the points are in.
const SIZE: (f64, f64) = (560.0, 340.0);
const LEFT: f64 = 96.0;
const RIGHT: f64 = 550.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 290.0;
/// Labels on the x axis are at least so far from each other.
const LABEL: f64 = 40.0;
/// Maximum number of lines across a picture.
const LINES_MAX: f64 = 6.0;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#222}\
    li:first-child{font-weight:bold}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}.bar{display:flex;width:26em;height:1.1em;background:#eee}\
    .drive{background:#377eb8}.platform{background:#e41a1c}svg{margin:.5em}";

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
    /// Whether the lines across are at powers of two.
    is_binary: bool,
}

/// The page.
pub fn page(figures: &Figures) -> String {
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
    page.push_str(&pictures(figures));
    page.push_str("</html>\n");
    page
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
            Up::Cpu => "CPU time per read",
        }
    }
}

/// One picture for each measured question.
fn pictures(figures: &Figures) -> String {
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
                Up::Cpu => &human::time_us,
            },
            is_binary: matches!(up, Up::Bandwidth),
        };
        text.push_str(&picture.svg());
    }
    text
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
    /// The x axis is logarithmic, with a label at each point. The y axis begins at zero.
    fn svg(&self) -> String {
        let first = self.points.first().copied().unwrap_or((1.0, 0.0));
        let last = self.points.last().map_or(1.0, |point| point.0);
        let slope = first.1 / first.0.max(1e-9);
        let linear: Vec<(f64, f64)> = self.points.iter().map(|(x, _)| (*x, slope * x)).collect();
        let shown = self.points.iter().chain(linear.iter().filter(|_| self.with_linear));
        let most = shown.map(|point| point.1).fold(1e-9, f64::max) * 1.08;
        let (from, to) = ((first.0 * 0.9).max(1e-9).ln(), (last * 1.1).max(1e-9).ln());
        let x = |value: f64| LEFT + (value.max(1e-9).ln() - from) / (to - from).max(1e-9) * (RIGHT - LEFT);
        let y = |value: f64| BOTTOM - value / most * (BOTTOM - TOP);
        let line = |points: &[(f64, f64)], style: &str| {
            let at: Vec<String> = points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
            format!("<polyline points=\"{}\" fill=\"none\" {style}/>", at.join(" "))
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">",
            SIZE.0, SIZE.1
        );
        let middle = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
        svg.push_str(&text((middle.0, 22.0), "middle", "font-size=\"17\"", self.title));
        svg.push_str(&text((middle.0, SIZE.1 - 10.0), "middle", "", self.x));
        svg.push_str(&text((14.0, middle.1), "middle", &format!("transform=\"rotate(-90 14 {})\"", middle.1), self.y));
        let step = step(most, self.is_binary);
        for value in (0..).map(|count| f64::from(count) * step).take_while(|value| *value <= most) {
            svg.push_str(&grid((LEFT, y(value)), (RIGHT, y(value))));
            let label = if value == 0.0 { "0".to_owned() } else { (self.y_text)(value) };
            svg.push_str(&text((LEFT - 6.0, y(value) + 4.0), "end", "", &label));
        }
        let mut labelled = f64::NEG_INFINITY;
        for (value, _) in &self.points {
            svg.push_str(&grid((x(*value), TOP), (x(*value), BOTTOM)));
            if x(*value) >= labelled + LABEL {
                labelled = x(*value);
                svg.push_str(&text((labelled, BOTTOM + 16.0), "middle", "", &(self.x_text)(*value)));
            }
        }
        if self.with_linear {
            svg.push_str(&line(&linear, "stroke=\"#aaa\""));
        }
        svg.push_str(&line(&self.points, "stroke=\"#377eb8\" stroke-width=\"2\""));
        for (a, b) in &self.points {
            svg.push_str(&format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#377eb8\"/>", x(*a), y(*b)));
        }
        svg + "</svg>"
    }
}

/// The distance of the lines across a picture of values up to `most`: 1, 2 or 5 times a power of ten, or a power of
/// two.
fn step(most: f64, is_binary: bool) -> f64 {
    let least = (most / LINES_MAX).max(1e-12);
    if is_binary {
        return least.log2().ceil().exp2();
    }
    let ten = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|times| times * ten).into_iter().find(|step| *step >= least).unwrap_or(10.0 * ten)
}

fn grid(from: (f64, f64), to: (f64, f64)) -> String {
    format!("<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#e5e5e5\"/>", from.0, from.1, to.0, to.1)
}

fn text(at: (f64, f64), anchor: &str, more: &str, words: &str) -> String {
    format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" {more}>{}</text>", at.0, at.1, escape(words))
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
        let page = page(&figures);
        assert!(page.contains("<li>the &lt;drives&gt; &amp; more</li>"));
        assert!(page.contains("no &lt;queues&gt;"));
        // No picture of missing measurements: here the drives with 64 KiB.
        assert_eq!(page.matches("<svg").count(), 7);
        for part in ["More threads", "width:90.0%", "width:10.0%", "in flight on each drive", "/mnt/1"] {
            assert!(page.contains(part), "{part}");
        }
        for fetched in ["http-equiv", "<script", "src=", "href=", "@import"] {
            assert!(!page.contains(fetched), "{fetched}");
        }
    }

    #[test]
    fn a_picture_has_its_points_where_they_belong() {
        let number = |value: f64| format!("{value}");
        let picture = Picture {
            title: "<title>",
            x: "x",
            y: "y",
            points: vec![(1.0, 100.0), (2.0, 150.0), (4.0, 200.0)],
            with_linear: true,
            x_text: &number,
            y_text: &number,
            is_binary: false,
        };
        let svg = picture.svg();
        assert!(svg.contains(">&lt;title&gt;</text>") && svg.matches("<circle").count() == 3, "{svg}");
        // The straight line ends at four times the first value, which is the most. The points end at half of that.
        assert!(
            svg.contains("<polyline points=\"126.1,231.2 ")
                && svg.contains(" 522.7,54.8\" fill=\"none\" stroke=\"#aaa\""),
            "{svg}"
        );
        assert!(svg.contains("<circle cx=\"522.7\" cy=\"172.4\""), "{svg}");
        for label in [">0<", ">100<", ">400<", ">1<", ">2<", ">4<"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
    }

    #[test]
    fn lines_across_are_at_round_values() {
        assert_eq!([step(430.0, false), step(7.0, false), step(1e9, false)], [100.0, 2.0, 2e8]);
        assert_eq!([step(1.9e9, true), step(6.0, true)], [(512 << 20) as f64, 1.0]);
        // One point, and none above zero.
        let picture = Picture {
            title: "",
            x: "",
            y: "",
            points: vec![(1.0, 0.0)],
            with_linear: false,
            x_text: &|_| String::new(),
            y_text: &|_| String::new(),
            is_binary: true,
        };
        assert!(!picture.svg().contains("NaN") && !picture.svg().contains("inf"), "{}", picture.svg());
    }
}
