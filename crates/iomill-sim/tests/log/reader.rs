//! A reader that the writer overtakes in the middle.

use iomill::catalog::log::header::FileKind;
use iomill::catalog::log::merged::{Replay, Stop, Visit, read_beside_writer};
use iomill::catalog::log::record::LogRecord;
use iomill::catalog::state::files::Files;

use super::machine::{Machine, Refused};
use super::model::{View, view};

/// Reads like an independent program, by the page on the format alone.
struct Reader<'a> {
    files: Files,
    late_until: u64,
    groups_until: usize,
    overtake: &'a mut dyn FnMut(),
}

impl Replay for Reader<'_> {
    fn reset(&mut self) {
        (self.files, self.late_until) = (Files::default(), 0);
    }

    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        if self.groups_until == 0 {
            (self.overtake)();
        }
        self.groups_until = self.groups_until.wrapping_sub(1);
        let is_checkpoint = matches!(visit.header.kind, FileKind::Checkpoint { .. });
        let is_late = is_checkpoint || visit.group.header.sequence <= self.late_until;
        visit.group.each_record(false, |record| {
            if let LogRecord::End { sequence, .. } = record {
                self.late_until = sequence;
            }
            self.files.apply(&record, is_late)
        })?;
        Ok(())
    }
}

/// Reads the log. Runs `overtake` after a number of groups.
pub fn read_overtaken(machine: &Machine<'_>, groups_until: usize, overtake: &mut dyn FnMut()) -> Result<View, Refused> {
    let mut reader = Reader { files: Files::default(), late_until: 0, groups_until, overtake };
    let voters = machine.voters()?;
    read_beside_writer(&voters, machine.array(), &mut reader).map_err(|error| error.to_string())?;
    let mut files = reader.files;
    files.index(Vec::new()).map_err(|fault| fault.to_string())?;
    Ok(view(&files))
}
