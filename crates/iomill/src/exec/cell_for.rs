//! The shared context in which an operation begins, which is made at its first use. Non-goals: its rules (`shared`).

use std::sync::Arc;

use super::Exec;
use super::cell::{SharedCell, Watch, own};
use super::refusal::engine_failed;
use super::shared::{EVERYWHERE, help_everywhere};
use crate::drive::Class;
use crate::drive::service::{Service, with_rings_or_without};
use crate::drive::shared::SharedContext;
use crate::error::{Error, Result};
use crate::sys::events;
use crate::sys::sync::{lock, write};

/// The most shares that wait for the host of callbacks. If more operations with callbacks begin, their threads do the
/// I/O too.
const POSTED_MAX: u32 = 512;

impl Exec {
    /// Whether the calling thread has enough operations in flight that a caller which may wait should do so.
    pub fn is_full_here(&self) -> bool {
        !events::is_telling() && self.has_most_here()
    }

    fn has_most_here(&self) -> bool {
        own::made(self.instance).is_some_and(|cell| cell.is_full()) || self.callbacks.is_host_full()
    }

    /// Whether the background has the most operations in flight.
    pub fn is_full_behind(&self) -> bool {
        lock(&self.shared.background).as_ref().is_some_and(|cell| cell.is_full())
    }

    /// The cell in which an asynchronous operation is to begin: the calling thread's, or for the background one that
    /// all threads share. If the system refuses the thread a context at the moment, another thread's cell is used. An
    /// error in a subscriber of events (rule 4 of `pools`).
    pub fn cell_for(&self, class: Class) -> Result<Arc<SharedCell>> {
        if events::is_telling() {
            return Err(Error::BlockingCall { call: "what a subscriber begins" });
        }
        if class == Class::Background {
            return self.background_cell();
        }
        let drives = self.services.count();
        match own::get(self.instance, drives, &self.shared.common, || self.new_shared_cell()) {
            Ok(cell) => Ok(cell),
            Err(error) => self.shared.any(drives).ok_or(error),
        }
    }

    /// The cell where the calling thread posts an operation with a callback ([`SharedCell::post`]). `None` if it should
    /// begin the operation in its own cell: it takes the turns of that one itself, or the host of callbacks has too
    /// much to do.
    pub fn cell_to_post_to(&self, class: Class) -> Option<Arc<SharedCell>> {
        if class == Class::Background || own::is_driven_here() || !self.has_threads() || events::is_telling() {
            return None;
        }
        let drives = self.services.count();
        let make = || self.shared.common.free_cell(drives, || self.new_shared_cell());
        self.callbacks.host_cell(drives, make).filter(|cell| cell.posted() < POSTED_MAX)
    }

    fn background_cell(&self) -> Result<Arc<SharedCell>> {
        let mut background = lock(&self.shared.background);
        let drives = self.services.count();
        if let Some(cell) = background.as_ref().filter(|cell| cell.drives() >= drives) {
            return Ok(Arc::clone(cell));
        }
        let cell = self.shared.common.free_cell(drives, || self.new_shared_cell())?;
        let before = background.replace(Arc::clone(&cell));
        // The lock is released first: an owner that is told in the turn may begin background work.
        drop(background);
        if let Some(before) = before {
            // Its operations go on there.
            before.leave();
            before.give_back();
        }
        Ok(cell)
    }

    fn new_shared_cell(&self) -> Result<Arc<SharedCell>> {
        let made = self.try_shared_cell();
        match &made {
            Ok(cell) => {
                let mut all = write(&self.shared.all);
                if all.is_empty() && self.has_threads() {
                    lock(EVERYWHERE.get()).push(Arc::downgrade(&self.shared));
                }
                all.push(Arc::clone(cell));
            }
            Err(error) => self.notice(format!("some threads share the engines of others for futures: {error}")),
        }
        made
    }

    fn try_shared_cell(&self) -> Result<Arc<SharedCell>> {
        let services: Vec<Service> = self.services.iter().cloned().collect();
        let engines = self.engines(&services)?;
        let make = |services: &[Service]| SharedContext::new(&engines, services);
        let context = with_rings_or_without(&services, self.may_change_engines, &|notice| self.notice(notice), make);
        let cell = SharedCell::new(context.map_err(engine_failed)?, &self.regions, &self.shared.common);
        if self.has_threads() {
            // Operations that have waited for a page go on there.
            self.resumes.get_ready()?;
            let reaper = self.shared.reaper.start(help_everywhere).map_err(engine_failed)?;
            reaper.add(&cell).map_err(engine_failed)?;
            let _there_already = self.shared.common.watcher.set(reaper as Arc<dyn Watch>);
        }
        Ok(cell)
    }
}

#[cfg(all(test, not(iomill_models)))]
impl SharedCell {
    /// A cell for operations without I/O.
    pub fn of_no_drives() -> Arc<SharedCell> {
        let (platform, locks) = (crate::engine::real::RealPlatform::default(), Arc::default());
        let engines = crate::drive::lane::Engines {
            platform: &platform,
            locks: &locks,
            hold: &[],
            notices: None,
            threads: Vec::new(),
        };
        let context = SharedContext::new(&engines, &[]).expect("without drives there is no engine to make");
        SharedCell::new(context, &Arc::default(), &Arc::default())
    }
}
