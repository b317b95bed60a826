//! The pictures of the report, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use iomill::{Error, Result};
use iomill_cli::human;

use crate::experiment::{Point, Section, Shape};

const WIDTH: i32 = 860;
const NAMES: i32 = 250;
const BARS: i32 = 430;
const ROW: i32 = 17;
const HEAD: i32 = 26;

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xd6);
const RIVAL: RGBColor = RGBColor(0xa6, 0xb0, 0xbb);

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// The picture of an experiment, as the text of an SVG file.
pub fn svg(section: &Section) -> Result<String> {
    let drawn = match section.shape {
        Shape::Bars => bars(&section.points),
        Shape::Lines => lines(&section.points),
    };
    drawn.map_err(|error| Error::Tool { what: format!("the picture of {}", section.name), why: error.to_string() })
}

/// Whether a contender is iomill.
pub fn is_own(series: &str) -> bool {
    series.starts_with("iomill") || series.starts_with("duel")
}

fn bars(points: &[Point]) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let groups = groups(points);
    let height = groups.iter().map(|group| HEAD + ROW * of(points, group).count() as i32).sum::<i32>().max(ROW);
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
    let left = Pos::new(HPos::Left, VPos::Center);
    let font = ("sans-serif", 12).into_font().color(&INK).pos(left);
    let draw = || -> Drawn {
        let mut at = 0;
        for group in &groups {
            let most = of(points, group).map(|point| point.value[2]).fold(f64::MIN_POSITIVE, f64::max);
            root.draw(&Text::new(
                group.clone(),
                (4, at + HEAD / 2),
                ("sans-serif", 13).into_font().color(&INK).pos(left),
            ))?;
            at += HEAD;
            for point in of(points, group) {
                let color = if is_own(&point.series) { OURS } else { RIVAL };
                let length = |value: f64| NAMES + (f64::from(BARS) * value / most) as i32;
                let [value, least, most] = point.value;
                root.draw(&Text::new(point.series.clone(), (16, at + ROW / 2), font.clone()))?;
                root.draw(&Rectangle::new([(NAMES, at + 2), (length(value), at + ROW - 2)], color.filled()))?;
                root.draw(&PathElement::new(
                    vec![(length(least), at + ROW / 2), (length(most), at + ROW / 2)],
                    INK.stroke_width(1),
                ))?;
                root.draw(&Text::new(number(value), (length(most) + 6, at + ROW / 2), font.clone()))?;
                at += ROW;
            }
        }
        Ok(root.present()?)
    };
    draw()?;
    drop(root);
    Ok(text)
}

fn lines(points: &[Point]) -> std::result::Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH as u32, 380)).into_drawing_area();
    let xs: Vec<f64> = points.iter().filter_map(|point| point.x).collect();
    let (least, most) = xs.iter().fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
    let top = points.iter().map(|point| point.value[2]).fold(1.0, f64::max);
    let draw = || -> Drawn {
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .x_label_area_size(28)
            .y_label_area_size(64)
            .build_cartesian_2d(least..most.max(least + 1.0), 0.0..top * 1.05)?;
        chart.configure_mesh().y_label_formatter(&|value| number(*value)).light_line_style(WHITE).draw()?;
        for (index, series) in series(points).iter().enumerate() {
            let color =
                if is_own(series) { OURS.mix(1.0 - 0.2 * (index % 4) as f64) } else { Palette99::pick(index).mix(0.9) };
            let mut line: Vec<(f64, f64)> = points
                .iter()
                .filter(|point| point.series == *series)
                .filter_map(|point| Some((point.x?, point.value[0])))
                .collect();
            line.sort_by(|one, two| one.0.total_cmp(&two.0));
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
                .label(series.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(root.present()?)
    };
    draw()?;
    drop(root);
    Ok(text)
}

/// A number of a picture or a table.
pub fn number(value: f64) -> String {
    if value >= 1000.0 { human::count(value) } else { format!("{value:.1}") }
}

/// The groups in order of appearance.
pub fn groups(points: &[Point]) -> Vec<String> {
    distinct(points.iter().map(|point| &point.group))
}

/// The series in order of appearance.
pub fn series(points: &[Point]) -> Vec<String> {
    distinct(points.iter().map(|point| &point.series))
}

fn distinct<'a>(words: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in words {
        if !found.contains(word) {
            found.push(word.clone());
        }
    }
    found
}

/// The points of a group.
pub fn of<'a>(points: &'a [Point], group: &'a str) -> impl Iterator<Item = &'a Point> {
    points.iter().filter(move |point| point.group == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(group: &str, x: f64, series: &str, value: f64) -> Point {
        Point { group: group.into(), x: Some(x), series: series.into(), value: [value; 3], cpu_us: None }
    }

    #[test]
    fn each_point_is_drawn() {
        let points = [point("a", 1.0, "iomill", 5000.0), point("a", 1.0, "mmap", 2.5), point("b", 2.0, "iomill", 7.0)];
        let drawn = bars(&points).unwrap();
        for word in ["iomill", "mmap", "5.00k", "2.5", "7.0"] {
            assert!(drawn.contains(word), "{word}: {drawn}");
        }
        assert_eq!(drawn.matches("<rect").count(), 3, "{drawn}");
        let drawn = lines(&points).unwrap();
        assert!(drawn.contains("iomill") && drawn.contains("mmap") && drawn.matches("<circle").count() == 3, "{drawn}");
    }
}
