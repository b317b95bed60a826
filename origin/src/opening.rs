//! [`opened`]: the usable drives of a cache. A notice names each other drive, with the reason. All work on a drive here
//! is bounded in time: rule D3 of `docs/origin.md`. Non-goals: one drive (`drive`), and its use by a process (`cache`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use iomill::Runtime;

use crate::apart::Apart;
use crate::drive::{Drive, Terms, random_id};
use crate::error::{Error, Result};
use crate::notices::Notices;
use crate::options::Options;
use crate::roster::{Looked, Roster, known_cache, look, mark, may_begin};
use crate::timer::end_of;

/// The drives so far, and the problems of the others.
struct Drives<'a> {
    opened: Vec<Arc<Drive>>,
    first_error: Option<Error>,
    options: &'a Options,
    notices: &'a Notices,
}

/// Opens the drives of directories. An error if none can be opened, or if the directories belong to two caches.
pub fn opened(dirs: &[PathBuf], options: &Options, runtime: &Runtime, notices: &Notices) -> Result<Vec<Arc<Drive>>> {
    let mut drives = Drives { opened: Vec::new(), first_error: None, options, notices };
    let (looked, found) = drives.look(dirs)?;
    let (cache, roster) = known_cache(found)?;
    if cache.is_none()
        && let Some(error) = drives.first_error
    {
        // Rule M3: a drive without an answer may be one of another cache.
        return Err(error);
    }
    let terms = Terms {
        cache,
        // Of two processes that make drives of the same directories, the first one decides.
        new_cache: random_id().map_err(Error::io("take a random number for", &dirs[0]))?,
        share: options.bytes.map(|bytes| bytes / dirs.len() as u64),
        options: options.clone(),
        runtime: runtime.clone(),
        notices: notices.clone(),
        given_up: Arc::default(),
    };
    drives.open(&looked, terms, &Arc::new(roster))?;
    drives.remember()?;
    match drives.first_error {
        Some(error) if drives.opened.is_empty() => Err(error),
        _ => Ok(drives.opened),
    }
}

impl Drives<'_> {
    fn leave_out(&mut self, error: Error) {
        self.notices.add(format!("a drive is left out: {error}"));
        self.first_error.get_or_insert(error);
    }

    fn end(&self) -> Instant {
        end_of(self.options.open_within)
    }

    fn late(&self, dir: &Path) -> Error {
        Error::Late { path: dir.into(), within: self.options.open_within }
    }

    /// The directories that have answered, with their contents. A thread of its own examines each.
    fn look<'d>(&mut self, dirs: &'d [PathBuf]) -> Result<(Vec<&'d PathBuf>, Vec<Looked>)> {
        let begin = |dir: &'d PathBuf| {
            let (own, options) = (dir.clone(), self.options.clone());
            Ok((dir, Apart::begin(move || look(&own, &options)).map_err(Error::io("start a thread for", dir))?))
        };
        let begun = dirs.iter().map(begin).collect::<Result<Vec<_>>>()?;
        let (end, mut all) = (self.end(), Vec::new());
        for (dir, apart) in begun {
            match apart.wait_until(end).map_err(Error::io("examine", dir))? {
                Some(looked) => all.push((dir, looked)),
                None => self.leave_out(self.late(dir)),
            }
        }
        // Two processes that make drives of the same directories label them in one order, whatever the order of their
        // arguments. So both end with one cache.
        all.sort_by_key(|(_, looked)| looked.place);
        Ok(all.into_iter().unzip())
    }

    /// One after the other: the first one determines the cache.
    fn open(&mut self, dirs: &[&PathBuf], mut terms: Terms, roster: &Arc<Roster>) -> Result<()> {
        for dir in dirs {
            terms.given_up = Arc::new(AtomicBool::new(false));
            let (own, own_terms, own_roster) = (PathBuf::clone(dir), terms.clone(), Arc::clone(roster));
            let call =
                move || may_begin(&own, &own_terms.options, &own_roster).and_then(|()| Drive::open(&own, &own_terms));
            let apart = Apart::begin(call).map_err(Error::io("start a thread for", *dir))?;
            let drive = apart.wait_until(self.end()).map_err(Error::io("open", *dir))?;
            let drive = drive.unwrap_or_else(|| {
                terms.given_up.store(true, Relaxed);
                Err(self.late(dir))
            });
            match drive.and_then(|drive| self.checked(drive, dir)) {
                Ok(drive) => {
                    terms.cache = Some(drive.label.cache);
                    self.opened.push(Arc::new(drive));
                }
                Err(error @ (Error::Foreign { .. } | Error::Invalid { .. })) => return Err(error),
                Err(error) => self.leave_out(error),
            }
        }
        Ok(())
    }

    /// A drive beside those before it.
    fn checked(&self, drive: Drive, dir: &Path) -> Result<Drive> {
        if self.opened.iter().any(|other| other.label.drive == drive.label.drive) {
            let why = format!("{} is named twice, or is a copy of another drive", dir.display());
            return Err(Error::Invalid { what: "the directories", why });
        }
        let own = drive.geometry().granule_bytes();
        match self.opened.first().map(|first| first.geometry().granule_bytes()) {
            Some(others) if others != own => {
                let why = format!("its granules have {own} bytes, and those of the drives before it {others}");
                Err(Error::Label { path: crate::label::path_of(drive.home()), why })
            }
            _ => Ok(drive),
        }
    }

    /// Rules M1 and M2: each drive remembers all, so that none of them becomes a new drive by itself.
    fn remember(&mut self) -> Result<()> {
        let dir = |drive: &Arc<Drive>| drive.home().parent().map(Path::to_owned).unwrap_or_default();
        let named: Arc<Vec<(PathBuf, u128)>> =
            Arc::new(self.opened.iter().map(|drive| (dir(drive), drive.label.drive)).collect());
        let begin = |(n, drive): (usize, Arc<Drive>)| {
            let (own, named) = (Arc::clone(&drive), Arc::clone(&named));
            let call = move || {
                // Another process may append. The next opening then notes the directories.
                let noted = own.try_hold().map_or(Ok(()), |_held| Roster::note(own.home(), &named));
                noted.and_then(|()| mark(&named[n].0))
            };
            let apart = Apart::begin(call).map_err(Error::io("start a thread for", drive.home()))?;
            Ok((drive, apart))
        };
        let begun = std::mem::take(&mut self.opened).into_iter().enumerate().map(begin).collect::<Result<Vec<_>>>()?;
        let end = self.end();
        for (n, (drive, apart)) in begun.into_iter().enumerate() {
            match apart.wait_until(end).map_err(Error::io("write to", drive.home()))? {
                Some(Ok(())) => self.opened.push(drive),
                Some(Err(error)) => {
                    self.notices.add(format!("a drive that is unmounted later may be taken for a new one: {error}"));
                    self.opened.push(drive);
                }
                None => self.leave_out(self.late(&named[n].0)),
            }
        }
        Ok(())
    }
}
