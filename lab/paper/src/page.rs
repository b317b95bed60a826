//! The report: a self-contained page for people, and the same as a document and as a table for programs.

use std::fmt::Write;
use std::fs;

use iomill::{Error, Result};
use iomill_cli::machine::Machine;
use serde_json::json;

use crate::experiment::{Section, Settings, Verdict};
use crate::picture::{self, groups, number, of};

/// If the moments before and after an experiment differ by more than this factor, the page reports it: other work used
/// a part of the machine.
const NOISY: f64 = 1.25;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:56em;margin:2em auto;color:#1f2328;padding:0 1em}\
    table{border-collapse:collapse;font-size:13px}td,th{padding:2px 10px;border-bottom:1px solid #d0d7de;text-align:right}\
    td:first-child,th:first-child{text-align:left}pre{background:#f6f8fa;padding:8px;overflow-x:auto;font-size:12px}\
    .yes{color:#1a7f37}.no{color:#cf222e}.open{color:#59636e}svg{max-width:100%;height:auto}";

/// Writes `report.html`, `report.json` and `report.csv`.
pub fn write(settings: &Settings, sections: &[Section]) -> Result<()> {
    let machine = Machine::look(&[]);
    let document = json!({ "quick": settings.is_quick, "machine": machine, "experiments": sections });
    let files = [
        ("report.html", html(settings, sections, &machine)?),
        ("report.json", format!("{document}\n")),
        ("report.csv", csv(sections)),
    ];
    for (name, text) in files {
        let path = settings.report.join(name);
        fs::write(&path, text).map_err(|error| Error::io("write", &path, error))?;
    }
    Ok(())
}

fn html(settings: &Settings, sections: &[Section], machine: &Machine) -> Result<String> {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>iomill: the evaluation</title><style>{STYLE}</style>"
    );
    page.push_str("<h1>The evaluation</h1><p>The experiments of the works that iomill grows from, repeated beside today's rivals.");
    if settings.is_quick {
        page.push_str(
            " <b>A quick run: small data and short turns. Its figures show that all works, and hardly more.</b>",
        );
    }
    let _ = write!(
        page,
        "</p><p>This page was made on: {}. Each experiment names the machine that ran it.</p>",
        escaped(&machine.host())
    );
    page.push_str("<p>Figures are medians of interleaved rounds; thin lines show the least and the most. ");
    page.push_str(
        "On a machine with SSDs of its own: <code>iomill-lab paper --drives /mnt/ssd0,/mnt/ssd1,&hellip;</code>. With empty ones, for RAID 0 too: ",
    );
    page.push_str("<code>iomill-lab paper --devices /dev/nvme0n1,/dev/nvme1n1,&hellip;</code></p>");
    page.push_str("<table><tr><th>experiment<th>of<th>holds here<th style=text-align:left>why");
    for section in sections {
        let (class, word) = word(&section.verdict);
        let _ = write!(
            page,
            "<tr><td><a href=#{0}>{0}</a><td style=text-align:left>{1}<td class={class}>{word}<td style=text-align:left>{2}",
            section.name,
            escaped(section.work),
            escaped(&section.verdict.why)
        );
    }
    page.push_str("</table>");
    for section in sections {
        page.push_str(&one(section)?);
    }
    Ok(page + "</html>\n")
}

fn word(verdict: &Verdict) -> (&'static str, &'static str) {
    match verdict.holds {
        Some(true) => ("yes", "yes"),
        Some(false) => ("no", "no"),
        None => ("open", "not told"),
    }
}

fn one(section: &Section) -> Result<String> {
    let (class, word) = word(&section.verdict);
    let mut part = format!("<h2 id={}>{}</h2>", section.name, escaped(section.title));
    let _ = write!(part, "<p><b>{}</b>: {}</p>", escaped(section.work), escaped(section.found));
    let _ = write!(part, "<p>Holds here: <b class={class}>{word}</b>; {}.</p>", escaped(&section.verdict.why));
    if !section.points.is_empty() {
        let _ = write!(part, "<p>In {}:</p>{}", escaped(section.unit), picture::svg(section)?);
        part.push_str("<details open><summary>Table</summary><table><tr><th>contender<th>median<th>least<th>most<th>CPU of each, us");
        for group in groups(&section.points) {
            let _ = write!(part, "<tr><th colspan=5 style=text-align:left>{}", escaped(&group));
            for point in of(&section.points, &group) {
                let cpu = point.cpu_us.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.2}"));
                let [value, least, most] = point.value.map(number);
                let _ = write!(part, "<tr><td>{}<td>{value}<td>{least}<td>{most}<td>{cpu}", escaped(&point.series));
            }
        }
        part.push_str("</table></details>");
    }
    for (step, why) in &section.left_out {
        let _ = write!(part, "<p>Left out: {}: {}.</p>", escaped(step), escaped(why));
    }
    let spread = section.quiet.spread();
    let noise = if spread > NOISY { "Other work disturbed it" } else { "The machine was quiet" };
    let _ = write!(
        part,
        "<p>{noise}: the same computation and the same reads before and after it differ by {spread:.2}x.</p>"
    );
    let machines =
        section.machines.iter().map(|name| if name.is_empty() { "a machine without a record" } else { name });
    let _ = write!(part, "<p>Run on: {}.</p>", escaped(&machines.collect::<Vec<_>>().join("; then ")));
    let _ = write!(part, "<pre>{}</pre>", escaped(&section.commands.join("\n")));
    Ok(part)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn csv(sections: &[Section]) -> String {
    let mut table = "experiment,group,contender,median,least,most,cpu_us\n".to_owned();
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for section in sections {
        for point in &section.points {
            let cpu = point.cpu_us.map_or_else(String::new, |cpu| cpu.to_string());
            let [value, least, most] = point.value;
            let (group, series) = (quoted(&point.group), quoted(&point.series));
            let _ = writeln!(table, "{},{group},{series},{value},{least},{most},{cpu}", section.name);
        }
    }
    table
}
