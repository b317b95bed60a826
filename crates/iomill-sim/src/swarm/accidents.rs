//! Steps that cause faults of the machine.

use super::life::{Life, Said, nothing};
use super::program::{Act, Step, rates};
use crate::{Death, Fault, Injection, Kind, Rates};

/// The offset of the first sums in a file of sums, behind its heads.
const SUMS_AT: usize = 8192;

impl Life<'_> {
    /// Causes a fault.
    pub fn accident(&mut self, step: &Step) -> Said {
        let drive = step.which as usize % self.world.drives();
        match step.act {
            Act::Errors => self.fail_by_chance(step),
            Act::Inject => self.fail_next(step, drive),
            Act::Slow => {
                self.world.faults(|faults| faults.slow(drive, u64::from(2 + step.first % 200)));
                Ok(format!("drive {drive}"))
            }
            Act::Kill => {
                let death = if step.first.is_multiple_of(2) { Death::Error } else { Death::Empty };
                self.world.faults(|faults| faults.kill(drive, death));
                self.is_excused = true;
                Ok(format!("drive {drive}, {death:?}"))
            }
            Act::Fill => {
                let room = self.world.used_bytes(drive) + u64::from(step.first % 40) * 4096;
                self.world.set_capacity(drive, Some(room));
                self.is_excused = true;
                Ok(format!("drive {drive} has {room} bytes"))
            }
            Act::CrashSoon => {
                let at = self.world.effects() + u64::from(1 + step.first % 150);
                self.world.faults(|faults| faults.crash_at_effect = Some(at));
                Ok(format!("at change {at}"))
            }
            Act::Rot => self.rot(step, drive),
            Act::Lose | Act::Misplace => self.misdirect(step, drive),
            _ => {
                self.calm();
                Ok("calm".to_owned())
            }
        }
    }

    /// Changes bytes of a page of a part, of its sums, or of small files.
    fn rot(&mut self, step: &Step, drive: usize) -> Said {
        let files: Vec<String> = self.world.files(drive);
        let files: Vec<&String> =
            files.iter().filter(|path| path.contains("parts/") || path.contains("shared/")).collect();
        let Some(path) = files.get(step.first as usize % files.len().max(1)) else { return nothing() };
        let len = self.world.read(drive, path).map_or(0, |bytes| bytes.len());
        if len == 0 {
            return nothing();
        }
        let at = step.second as usize % len;
        let count = 1 + step.which as usize % 600;
        let is_head = path.ends_with(".sums") && at < SUMS_AT;
        let count = if is_head { count.min(SUMS_AT - at) } else { count };
        if self.has_rotten_head || (is_head && self.is_rotten) {
            return nothing();
        }
        self.world.corrupt(drive, path, at as u64, count).map_err(|error| error.to_string())?;
        self.has_rotten_head |= is_head;
        self.is_rotten |= !is_head;
        self.has_rotten_sums |= path.ends_with(".sums") && !is_head;
        Ok(format!("{count} bytes of {path} on drive {drive} at {at}"))
    }

    /// Loses or misplaces a write: of pages, or of sums. After one of sums no more faults are caused, because an old
    /// page with its old sum looks right.
    fn misdirect(&mut self, step: &Step, drive: usize) -> Said {
        if self.has_rotten_head {
            return nothing();
        }
        let fault = if step.act == Act::Lose { Fault::Lost } else { Fault::Misplaced };
        let skip = u64::from(step.second % 4);
        let is_of_sums = !self.is_rotten && step.first.is_multiple_of(3);
        let injection = Injection::new(Kind::Write, fault).drive(drive).skip(skip);
        let injection = if is_of_sums { injection.path(".sums") } else { injection.path("parts/").except(".sums") };
        self.world.faults(|faults| faults.inject(injection));
        self.is_rotten = true;
        self.has_rotten_head |= is_of_sums;
        let what = if is_of_sums { "sums" } else { "pages" };
        Ok(format!("a write of {what} on drive {drive} after {skip}: {fault:?}"))
    }

    /// A failed fsync may lose bytes that reads still return. If a page's sum is of these bytes, the page is rotten
    /// after a crash.
    fn may_be_rotten(&mut self, is_fsync: bool) {
        self.is_rotten |= is_fsync && self.program.has_sums;
    }

    fn fail_by_chance(&mut self, step: &Step) -> Said {
        let rates = rates(step.first);
        self.world.faults(|faults| faults.rates = rates);
        let harmless = Rates {
            short_read: rates.short_read,
            short_write: rates.short_write,
            interrupted: rates.interrupted,
            ..Rates::default()
        };
        self.is_excused |= rates != harmless;
        self.may_be_rotten(rates.sync_error > 0 || rates.catalog_error > 0);
        self.is_cut_short |= rates.short_write > 0;
        Ok(format!("{rates:?}"))
    }

    fn fail_next(&mut self, step: &Step, drive: usize) -> Said {
        let kinds = [
            Kind::Read,
            Kind::Write,
            Kind::Sync,
            Kind::SyncDir,
            Kind::Create,
            Kind::Open,
            Kind::Rename,
            Kind::Allocate,
            Kind::SetLen,
            Kind::Unlink,
            Kind::Zero,
        ];
        let kind = kinds[step.first as usize % kinds.len()];
        let takes_space = matches!(kind, Kind::Write | Kind::Create | Kind::Allocate);
        let errno = if takes_space && step.second.is_multiple_of(2) { libc::ENOSPC } else { libc::EIO };
        let (skip, times) = (u64::from(step.second % 5), u64::from(1 + step.second / 5 % 3));
        let injection = Injection::new(kind, Fault::Errno(errno)).drive(drive).skip(skip).times(times);
        self.world.faults(|faults| faults.inject(injection));
        self.is_excused = true;
        self.may_be_rotten(kind == Kind::Sync);
        Ok(format!("{times} {kind:?} on drive {drive} after {skip} fail with errno {errno}"))
    }
}
