//! The progress of a measurement.

use iomill_bench::bench::Stage;
use iomill_cli::context::Context;
use iomill_cli::human;
use iomill_cli::progress::Progress;

/// The progress of a measurement, on a terminal.
pub struct Bar(Progress);

impl Bar {
    /// An empty bar.
    pub fn new(context: &Context<'_>) -> Bar {
        Bar(Progress::of_steps(context.global))
    }

    /// Shows the present step of the measurement.
    pub fn show(&mut self, stage: Stage) {
        let (done, total, what) = match stage {
            Stage::Filling(done, total) => (done, total, format!("writing {}", human::size(total))),
            Stage::Measuring(at) => (at.done as u64, at.total as u64, at.contender.to_owned()),
        };
        self.0.set(done, total);
        self.0.say(what);
    }
}
