//! Guards of a file's gate: [`Entered`] is inside, [`Resize`] keeps it closed. Non-goals: the gate itself (`gate`).

use super::FileState;
use super::gate::Closed;
use crate::drive::shares;
use crate::error::{Error, Result};
use crate::exec::users_code;
use crate::sys::events;
use crate::sys::sync::{Ordering, lock};

/// A guard inside a file's gate.
#[derive(Debug)]
pub struct Entered<'a>(&'a FileState);

impl<'a> Entered<'a> {
    /// Enters, unless the array is closed.
    pub fn enter(file: &'a FileState) -> Result<Entered<'a>> {
        file.exec.check_home()?;
        file.gate.enter(|| file.exec.pause());
        let entered = Entered(file);
        file.exec.check_open()?;
        Ok(entered)
    }

    /// Enters, unless the gate or the array is closed, or the caller is a subscriber of events (rule 4 of
    /// `exec::pools`).
    pub fn try_enter(file: &'a FileState) -> Option<Entered<'a>> {
        if events::is_telling() {
            return None;
        }
        let entered = file.gate.try_enter().then(|| Entered(file))?;
        file.exec.is_open().then_some(entered)
    }

    /// Enters, unless the array is closed. `None` if the gate is closed and the caller must not wait until it opens, and
    /// always in a subscriber of events (rule 4 of `exec::pools`).
    pub fn enter_if_open(file: &'a FileState) -> Result<Option<Entered<'a>>> {
        file.exec.check_home()?;
        if users_code::may_wait() {
            return Entered::enter(file).map(Some);
        }
        if events::is_telling() || !file.gate.try_enter() {
            return Ok(None);
        }
        let entered = Entered(file);
        file.exec.check_open()?;
        Ok(Some(entered))
    }
}

impl Entered<'_> {
    /// Stays inside without the guard. [`FileState::leave_gate`] leaves.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// A change of a file's length in progress: its gate is closed, and nothing is in flight.
#[derive(Debug)]
pub struct Resize<'a> {
    file: &'a FileState,
    _closed: Closed<'a>,
}

impl FileState {
    /// Leaves the gate for an operation that has stayed inside.
    pub fn leave_gate(&self) {
        self.gate.leave();
    }

    /// Closes the gate for a change of the file's length or place (rule 7 of the length). The caller is not inside.
    pub fn begin_resize(&self) -> Result<Resize<'_>> {
        // An early check, so that a call that must fail does not wait.
        self.check_writable()?;
        let closed = self.gate.close(|| self.exec.pause_for_io());
        self.exec.check_open()?;
        self.check_writable()?;
        Ok(Resize { file: self, _closed: closed })
    }

    /// `begin_resize` for a write that clears the bytes of failed writes. It waits for drives, so it is forbidden on a
    /// drive thread. Without threads it is also forbidden in a callback, which would wait for its own caller.
    pub fn begin_sweep(&self) -> Result<Resize<'_>> {
        if shares::is_serving() || !(self.exec.has_threads() || users_code::may_block()) {
            return Err(Error::BlockingCall { call: "a write that has to clear or move bytes of the file" });
        }
        self.begin_resize()
    }

    /// Closes the gate for the file's end, even if the array is closed. Operations that entered before have ended when
    /// this returns.
    pub fn close_gate(&self) -> impl Drop + '_ {
        self.gate.close(|| self.exec.pause_for_io())
    }
}

impl Resize<'_> {
    /// Whether failed writes may have left bytes beyond the end (rule 5 of the length).
    pub fn has_stale_tail(&self) -> bool {
        self.file.is_in_stale_tail(u64::MAX)
    }

    /// Before a shorter length: verifies the page that becomes the last one. An error changes nothing.
    pub fn check_cut(&self, len: u64) -> Result<()> {
        self.file.begin_cut(len, true).map(drop)
    }

    /// Shortens the length in memory.
    pub fn cut(&self, len: u64) {
        self.file.shorten(len);
    }

    /// Gives a small file another place if it needs one for `end` bytes (C38, C39). Another thread may have done it. If
    /// an error leaves the place in the catalog unknown, the file takes no more writes: they could be lost in the wrong
    /// place.
    pub fn move_for(&self, end: u64) -> Result<()> {
        let _grow = lock(&self.file.grow);
        if !self.file.must_move(end) {
            return Ok(());
        }
        let moved = self.file.backing.move_for(&self.file.exec, self.file.len(), end);
        moved.inspect_err(|error| {
            if matches!(error, Error::OutcomeUnknown { .. }) {
                self.file.note_unknown_record(error);
            }
        })
    }

    /// Lengthens the parts by holes, then the length in memory.
    pub fn extend(&self, len: u64) -> Result<()> {
        self.move_for(len)?;
        self.file.extend(len)?;
        self.file.wrote(len);
        Ok(())
    }

    /// Makes the bytes past the length read as zero. If that fails, the file must not grow over them, so it takes no
    /// more writes. If it cannot begin, or the machine lacks memory for it, nothing has changed, and the next growth
    /// tries again.
    pub fn clean_tail(&self) -> Result<()> {
        let (file, len) = (self.file, self.file.len());
        file.has_stale_tail.store(true, Ordering::Relaxed);
        let cut = file.begin_cut(len, false)?;
        // The last page of a small file is read and verified before it changes. A part is measured before its size
        // changes, and what was done to other parts is done again.
        let is_look = |error: &Error| matches!(error, Error::Io { action: "read" | "measure", .. });
        let has_begun = |error: &Error| !is_look(error) && !matches!(error, Error::CorruptPage { .. });
        file.end_cut(len, &cut).inspect_err(|error| {
            if has_begun(error) {
                file.set_poison_for_good(error);
            }
        })?;
        self.file.has_stale_tail.store(false, Ordering::Relaxed);
        self.file.is_tail_unknown.store(false, Ordering::Relaxed);
        Ok(())
    }
}
