//! The drawing: a panel for reads from drives and one for reads from memory. Each contender is a row with two bars.
//!
//! All scales are linear and begin at zero. Text has room for wide fonts, because the reader's browser chooses the
//! font.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use iomill::{Error, Result};

use super::{BATCH, SIZE_OVER_CACHE};
use crate::contender::{Cache, IOMILL_FUTURE_512, IOMILL_READ_AT, IOMILL_READ_MANY, MMAP, PREAD, URING_BY_HAND};
use crate::report::{Report, Row};
use iomill_cli::human;

/// Sizes in pixels. The width is that of a page on GitHub.
const WIDTH: i32 = 880;
const MARGIN: i32 = 22;
const TITLE: i32 = 58;
const PANEL_HEAD: i32 = 72;
const PANEL_GAP: i32 = 18;
const ROW: i32 = 27;
const BAR: i32 = 17;
const BAR_LENGTH_MAX: f64 = 250.0;
const FOOT_LINE: i32 = 19;
/// Right end of the contenders' names.
const NAMES: i32 = 168;

/// Sizes of text in pixels. A character is at most this part of the size wide, on average.
const LARGE: f64 = 17.0;
const MIDDLE: f64 = 14.5;
const SMALL: f64 = 12.5;
const CHARACTER: f64 = 0.6;
/// The SVG backend divides sizes of fonts by this number.
const BACKEND_SCALE: f64 = 1.24;

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const FAINT: RGBColor = RGBColor(0x59, 0x63, 0x6e);
const FRAME: RGBColor = RGBColor(0xd0, 0xd7, 0xde);
const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xd6);
const RIVAL: RGBColor = RGBColor(0xa6, 0xb0, 0xbb);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

/// A figure of each row.
struct Column {
    left: i32,
    head: &'static str,
    /// The least, the median and the largest value of the rounds.
    figures: fn(&Row) -> [f64; 3],
    text: fn(f64) -> String,
}

const COLUMNS: [Column; 2] = [
    Column {
        left: NAMES + 10,
        head: "reads per second: more is better",
        figures: |row| [row.min_ops_per_s, row.ops_per_s, row.max_ops_per_s],
        text: human::count,
    },
    Column {
        left: NAMES + 364,
        head: "CPU time per read: less is better",
        figures: |row| [row.min_cpu_us_per_op, row.cpu_us_per_op, row.max_cpu_us_per_op],
        text: human::time_us,
    },
];

struct Panel<'a> {
    title: &'static str,
    about: String,
    /// The fastest first.
    rows: Vec<&'a Row>,
}

/// The picture, as the text of an SVG file. `command` is the command line that measured.
pub fn svg(report: &Report, command: &str) -> Result<String> {
    let panels = panels(report);
    let foot = foot(report, command);
    let height = TITLE + panels.iter().map(Panel::height).sum::<i32>() + FOOT_LINE * foot.len() as i32 + MARGIN;
    let mut text = String::new();
    let drawn = {
        let canvas = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
        draw(&canvas, &panels, &foot, height).map_err(|error| error.to_string())
    };
    drawn.map_err(|why| Error::Tool { what: "the picture".into(), why })?;
    Ok(text)
}

fn panels(report: &Report) -> [Panel<'_>; 2] {
    let sorted = |warm: bool| {
        let is_warm = |row: &&Row| row.cache == Cache::Warm.name();
        let mut rows: Vec<&Row> = report.results.iter().filter(|row| is_warm(row) == warm).collect();
        rows.sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s));
        rows
    };
    [
        Panel {
            title: "Cold: reads of 4 KiB from drives",
            about: format!(
                "The page cache is empty. iomill's cache is full, and holds 1/{SIZE_OVER_CACHE} of the file."
            ),
            rows: sorted(false),
        },
        Panel {
            title: "Warm: reads of 128 bytes from memory",
            about: "All bytes are in the page cache, and in iomill's cache.".to_owned(),
            rows: sorted(true),
        },
    ]
}

/// The lines below the panels.
fn foot(report: &Report, command: &str) -> Vec<String> {
    let rounds = report.results.iter().map(|row| row.rounds).max().unwrap_or(0);
    let mut lines = vec![
        format!(
            "Bars: median of {rounds} rounds, in each of which all take turns. Thin lines: from the least to the most."
        ),
        format!("read_many takes {BATCH} pages or records a call. All other calls take one."),
        report.machine.line(),
        format!("$ {command}"),
    ];
    let out: Vec<String> =
        report.left_out.iter().map(|out| format!("{} ({})", name(&out.contender), out.cache)).collect();
    if !out.is_empty() {
        lines.insert(2, format!("Not measured: {}.", out.join(", ")));
    }
    lines.iter().map(|line| fitting(line)).collect()
}

/// The line without characters that XML does not have, and not longer than the picture is wide.
fn fitting(line: &str) -> String {
    let most = (f64::from(WIDTH - 2 * MARGIN) / (SMALL * CHARACTER)) as usize;
    let mut shown: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most).collect();
    if line.chars().count() > most {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// A contender's name for people.
fn name(contender: &str) -> &str {
    match contender {
        IOMILL_READ_MANY => "iomill read_many",
        IOMILL_READ_AT => "iomill read_at",
        IOMILL_FUTURE_512 => "iomill, 512 futures",
        URING_BY_HAND => "io_uring by hand",
        MMAP => "mmap",
        PREAD => "pread",
        other => other,
    }
}

fn draw(canvas: &Canvas<'_>, panels: &[Panel<'_>], foot: &[String], height: i32) -> DrawResult {
    canvas.fill(&WHITE)?;
    canvas.draw(&Rectangle::new([(0, 0), (WIDTH - 1, height - 1)], FRAME))?;
    let line = |text: &str, y: i32, size: f64, color: RGBColor, bold: bool| {
        write(canvas, text, (MARGIN, y), HPos::Left, size, color, bold)
    };
    line("Random reads by one thread", MARGIN + 10, LARGE, INK, true)?;
    let mut top = TITLE;
    for panel in panels {
        line(panel.title, top + 8, MIDDLE, INK, true)?;
        line(&panel.about, top + 29, SMALL, FAINT, false)?;
        panel.draw(canvas, top)?;
        top += panel.height();
    }
    for (told, y) in foot.iter().zip((top..).step_by(FOOT_LINE as usize)) {
        line(told, y + FOOT_LINE / 2, SMALL, FAINT, false)?;
    }
    Ok(canvas.present()?)
}

impl Panel<'_> {
    fn height(&self) -> i32 {
        PANEL_HEAD + ROW * self.rows.len().max(1) as i32 + PANEL_GAP
    }

    fn draw(&self, canvas: &Canvas<'_>, top: i32) -> DrawResult {
        let first = top + PANEL_HEAD + ROW / 2;
        if self.rows.is_empty() {
            return write(canvas, "not measured", (MARGIN, first), HPos::Left, SMALL, FAINT, false);
        }
        for (row, y) in self.rows.iter().zip((first..).step_by(ROW as usize)) {
            let bold = is_ours(row);
            write(canvas, name(&row.contender), (NAMES, y), HPos::Right, SMALL, INK, bold)?;
        }
        for column in &COLUMNS {
            write(canvas, column.head, (column.left, top + 56), HPos::Left, SMALL, FAINT, false)?;
            let most = self.rows.iter().map(|row| (column.figures)(row)[2]).fold(f64::MIN_POSITIVE, f64::max);
            let x = |figure: f64| column.left + (figure / most * BAR_LENGTH_MAX).round() as i32;
            for (row, y) in self.rows.iter().zip((first..).step_by(ROW as usize)) {
                let [least, median, largest] = (column.figures)(row);
                let color = if is_ours(row) { OURS } else { RIVAL };
                // A bar of no length would look like a missing one.
                let end = x(median).max(column.left + 2);
                canvas.draw(&Rectangle::new([(column.left, y - BAR / 2), (end, y + BAR / 2)], color.filled()))?;
                canvas.draw(&PathElement::new([(x(least), y), (x(largest), y)], INK.stroke_width(1)))?;
                let label = (end.max(x(largest)) + 7, y);
                write(canvas, &(column.text)(median), label, HPos::Left, SMALL, INK, is_ours(row))?;
            }
        }
        Ok(())
    }
}

fn is_ours(row: &Row) -> bool {
    row.contender.starts_with("iomill")
}

fn write(
    canvas: &Canvas<'_>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    size: f64,
    color: RGBColor,
    bold: bool,
) -> DrawResult {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    let font = ("sans-serif", size * BACKEND_SCALE, weight).into_font().color(&color);
    Ok(canvas.draw(&Text::new(text.to_owned(), at, font.pos(Pos::new(side, VPos::Center))))?)
}
