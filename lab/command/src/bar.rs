//! The progress of a measurement.

use indicatif::{ProgressBar, ProgressStyle};
use iomill_bench::bench::Stage;
use iomill_cli::context::Context;
use iomill_cli::human;

/// A progress bar, on a terminal only.
pub struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    /// An empty bar.
    pub fn new(context: &Context<'_>) -> Bar {
        let wanted = !context.global.quiet;
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}");
        let bar = wanted.then(|| ProgressBar::new(100)).map(|bar| match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        });
        Bar { bar }
    }

    /// Shows what the measurement does.
    pub fn show(&self, stage: Stage) {
        let Some(bar) = &self.bar else { return };
        match stage {
            Stage::Filling(done, total) => {
                bar.set_length(total.max(1));
                bar.set_position(done);
                bar.set_message(format!("writing {}", human::size(total)));
            }
            Stage::Measuring(at) => {
                bar.set_length(at.total as u64);
                bar.set_position(at.done as u64);
                bar.set_message(at.contender);
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
