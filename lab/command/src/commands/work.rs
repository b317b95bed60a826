//! `iomill-lab work`.

use std::fs;
use std::path::{Path, PathBuf};

use iomill::Error;
use iomill_bench::leftovers::{self, By};
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::progress::Progress;
use iomill_cli::table::Table;
use iomill_cli::{human, terminal};
use iomill_work::{Contender, Figures, Load, Outcome, Settings};
use serde_json::{Value, json};

use super::cached;
use super::common::{DRIVES, answer, defaults_only};
use crate::arguments::BenchWork;

/// A turn of a contender, for the standard input.
pub fn turn() -> Result<Answer> {
    let served = iomill_work::serve(std::io::stdin().lock(), std::io::stdout().lock());
    served.map_err(|error| Error::io("talk through", "a pipe to the measurement", error))?;
    Ok(Answer::default())
}

pub fn run(context: &Context<'_>, arguments: &BenchWork) -> Result<Answer> {
    defaults_only(context, "work measures")?;
    let interrupt = Interrupt::install()?;
    let outcome = measure(context, arguments, &interrupt)?;
    let document = document(arguments, &outcome, interrupt.check().is_err());
    let mut answer = answer(context, text(arguments, &outcome), document.to_string())?;
    answer.failures.extend(interrupt.check().err());
    Ok(answer)
}

fn measure(context: &Context<'_>, arguments: &BenchWork, interrupt: &Interrupt) -> Result<Outcome> {
    let base = arguments.place.dir();
    let base = std::path::absolute(base).map_err(Failure::local("find", base))?;
    let bases = arguments.drives.clone().unwrap_or_else(|| vec![base.clone(); DRIVES]);
    let mut made = Made(Vec::new());
    let place = made.make(&base, ".flat")?;
    let mut drives = Vec::new();
    for (index, base) in bases.iter().enumerate() {
        drives.push(made.make(base, &format!("-{index}"))?);
    }
    let of_load = arguments.load.contenders();
    let takes_part = |contender: &Contender| {
        *contender == Contender::Iomill || arguments.rivals.as_ref().is_none_or(|rivals| rivals.contains(contender))
    };
    if let Some(other) = arguments.rivals.iter().flatten().find(|rival| !of_load.contains(rival)) {
        let names: Vec<&str> = of_load.iter().map(|contender| contender.name()).collect();
        let why = format!("{} takes no part in {}; there are {}", other.name(), arguments.load.name(), names.join(","));
        return Err(Failure::Usage(why));
    }
    let mut helper = cached::helper()?;
    helper.arguments = vec!["work-turn".to_owned()];
    let settings = Settings {
        load: arguments.load,
        contenders: of_load.iter().copied().filter(takes_part).collect(),
        place,
        drives,
        size_bytes: arguments.size,
        rounds: arguments.rounds.into(),
        helper,
    };
    let mut progress = Progress::of_steps(context.global);
    let outcome = iomill_work::run(&settings, interrupt.flag(), &mut |what, step, steps| {
        progress.say(what);
        progress.set(step as u64, steps as u64);
    });
    drop(progress);
    let removed = made.remove();
    match (outcome, interrupt.check()) {
        (Err(_), Err(interrupted)) => Err(interrupted),
        (outcome, _) => {
            let outcome = outcome?;
            removed?;
            Ok(outcome)
        }
    }
}

/// Directories that are removed when the measurement ends, for any reason.
struct Made(Vec<PathBuf>);

impl Made {
    fn make(&mut self, base: &Path, ending: &str) -> Result<PathBuf> {
        leftovers::remove_in(base);
        let path = base.join(format!("{}{ending}", leftovers::name(By::Bench)));
        fs::create_dir(&path).map_err(Failure::local("create", &path))?;
        self.0.push(path.clone());
        Ok(path)
    }

    fn remove(mut self) -> Result<()> {
        let all = std::mem::take(&mut self.0);
        all.iter().try_for_each(|path| fs::remove_dir_all(path).map_err(Failure::local("remove", path)))
    }
}

impl Drop for Made {
    /// After a failure the user sees that failure.
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = fs::remove_dir_all(path));
    }
}

fn of_part<'a>(outcome: &'a Outcome, part: &'a str) -> impl Iterator<Item = &'a Figures> {
    outcome.figures.iter().filter(move |figures| figures.part == part)
}

/// The fastest rival in a part.
fn best_rival<'a>(outcome: &'a Outcome, part: &'a str) -> Option<&'a Figures> {
    let rivals = of_part(outcome, part).filter(|figures| figures.contender != Contender::Iomill);
    rivals.max_by(|one, two| one.rate[0].total_cmp(&two.rate[0]))
}

fn text(arguments: &BenchWork, outcome: &Outcome) -> String {
    let mut table =
        Table::new(&[arguments.load.name(), ">per second", ">x best rival", ">CPU", ">least", ">most", ">read"]);
    let mut part = "";
    for figures in &outcome.figures {
        if figures.part != part {
            part = &figures.part;
            table.row([format!("{part} ({})", figures.unit)].into_iter().chain((0..6).map(|_| String::new())));
        }
        let best = best_rival(outcome, part).map(|best| best.rate[0]);
        let [rate, least, most] = figures.rate;
        table.row([
            format!("  {}", figures.contender.name()),
            human::count(rate),
            best.map_or_else(|| "-".to_owned(), |best| human::ratio(rate / best)),
            human::time_us(figures.cpu_us),
            human::count(least),
            human::count(most),
            human::size(figures.fetched_bytes),
        ]);
    }
    let mut lines = vec![table.render_for(terminal::width())];
    lines.push(format!(
        "Data of {}, and memory for {} of them beside the program's own, in a memory cgroup. Medians of {} turns. CPU is for each of what is counted. Read: what drives \
         delivered in a turn, over all parts.",
        human::size(arguments.size),
        human::size(outcome.cache_bytes),
        outcome.figures.first().map_or(0, |figures| figures.rounds)
    ));
    for (contender, why) in &outcome.left_out {
        lines.push(format!("No figures of {}: {why}.", contender.name()));
    }
    lines.join("\n") + "\n"
}

fn document(arguments: &BenchWork, outcome: &Outcome, is_cancelled: bool) -> Value {
    let results = outcome.figures.iter().map(|figures| {
        let best = best_rival(outcome, &figures.part);
        json!({
            "part": figures.part,
            "contender": figures.contender.name(),
            "unit": figures.unit,
            "rounds": figures.rounds,
            "per_s": figures.rate[0],
            "min_per_s": figures.rate[1],
            "max_per_s": figures.rate[2],
            "cpu_us": figures.cpu_us,
            "fetched_bytes": figures.fetched_bytes,
            "best_rival": best.map(|best| best.contender.name()),
            "ratio_to_best_rival": best.map(|best| figures.rate[0] / best.rate[0]),
        })
    });
    let left_out = outcome.left_out.iter().map(|(contender, why)| json!({ "contender": contender.name(), "why": why }));
    json!({
        "load": Load::name(arguments.load),
        "size_bytes": arguments.size,
        "cache_bytes": outcome.cache_bytes,
        "results": results.collect::<Vec<_>>(),
        "left_out": left_out.collect::<Vec<_>>(),
        "cancelled": is_cancelled,
    })
}
