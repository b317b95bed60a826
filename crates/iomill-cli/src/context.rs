//! The array that a command works on, and what is to be noted about it.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use iomill::{Array, ArrayOptions, Peek, Profile};
use iomill_bench::rivals::Bring;

use crate::arguments::{Command, Global, Mode};
use crate::failure::{Failure, Result};

/// Names a drive of the array where no option does.
const ARRAY_VARIABLE: &str = "IOMILL_ARRAY";

/// Refuses places that cannot be drives.
fn existing(places: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    for place in &places {
        let why = match fs::metadata(place) {
            Ok(found) if !found.is_dir() => "it is no directory; name the directory where a drive is mounted",
            Err(error) if error.kind() == ErrorKind::NotFound => "there is no such directory",
            // What else may be wrong is said when it is used.
            _ => continue,
        };
        return Err(iomill::Error::Drive { path: place.clone(), why: why.to_owned() }.into());
    }
    Ok(places)
}

/// The options of every command, at work.
#[derive(Debug)]
pub struct Context<'a> {
    /// As they were given.
    pub global: &'a Global,
    /// Makes rivals whose dependencies this crate does without.
    pub bring: Option<&'a dyn Bring>,
    profile: Option<Profile>,
    notices: RefCell<Vec<String>>,
    cut_short: RefCell<Option<Failure>>,
}

impl<'a> Context<'a> {
    /// A context that has noted nothing, and has read the profile that the command shall follow.
    pub fn new(global: &'a Global, command: &Command, bring: Option<&'a dyn Bring>) -> Result<Context<'a>> {
        let profile = match (&global.profile, command) {
            // It writes one.
            (_, Command::Probe(_)) | (None, _) => None,
            (Some(_), Command::Bench(_)) => {
                let why = "a measurement chooses depth, mode and weights itself: leave --profile out, and give --depth, --mode or --plug";
                return Err(Failure::Usage(why.to_owned()));
            }
            (Some(path), _) => Some(Profile::read(path)?),
        };
        Ok(Context { global, bring, profile, notices: RefCell::default(), cut_short: RefCell::default() })
    }

    /// How arrays are opened: without a cache, since commands stream and look at nothing twice.
    pub fn options(&self) -> ArrayOptions {
        self.cached_options().cache_bytes(0)
    }

    /// How arrays are opened by who does look twice: with the default cache.
    pub fn cached_options(&self) -> ArrayOptions {
        let options = self.global.queues.apply(ArrayOptions::new()).poll(self.global.poll);
        let options = self.profile.iter().cloned().fold(options, ArrayOptions::profile);
        let mode = self.global.mode.map(|mode| match mode {
            Mode::Auto => iomill::Mode::Auto,
            Mode::Inline => iomill::Mode::Inline,
            Mode::DriveThreads => iomill::Mode::DriveThreads,
        });
        let options = mode.into_iter().fold(options, ArrayOptions::mode);
        let options = self.global.nodes.apply(options);
        match self.global.engine {
            None => options,
            Some(engine) => options.engine(engine.kind()),
        }
    }

    /// The drives that name the array.
    pub fn starts(&self) -> Result<Vec<PathBuf>> {
        if !self.global.array.is_empty() {
            return existing(self.global.array.clone());
        }
        if let Some(drive) = env::var_os(ARRAY_VARIABLE).filter(|value| !value.is_empty()) {
            return existing(vec![drive.into()]);
        }
        if Path::new("iomill/label").is_file() {
            return Ok(vec![PathBuf::from(".")]);
        }
        let why = "which array? Name any drive of it with `-a DIR` or in the environment variable IOMILL_ARRAY, or go \
                   into a drive's directory; `iomill init` makes a new array";
        Err(Failure::Usage(why.to_owned()))
    }

    /// The drives that name the array, or none where nothing does.
    pub fn starts_if_named(&self) -> Result<Option<Vec<PathBuf>>> {
        match self.starts() {
            Ok(starts) => Ok(Some(starts)),
            Err(Failure::Usage(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Runs a piece of work on the array, opened for writing, and closes it.
    pub fn with_writer<T>(&self, work: impl FnOnce(&Array) -> Result<T>) -> Result<T> {
        let array = self.options().open_at(self.starts()?)?;
        self.with(array, work)
    }

    /// Runs a piece of work on the array, opened for reading, and closes it.
    pub fn with_reader<T>(&self, work: impl FnOnce(&Array) -> Result<T>) -> Result<T> {
        let array = self.options().read_only(true).open_at(self.starts()?)?;
        self.with(array, work)
    }

    /// Runs a piece of work on an open array and closes it. The work's failure goes before that of closing.
    pub fn with<T>(&self, array: Array, work: impl FnOnce(&Array) -> Result<T>) -> Result<T> {
        let result = work(&array);
        let closed = array.clone().close();
        self.note(array.notices());
        match (result, closed) {
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(failure), Err(error)) => {
                self.note([format!("closing the array failed too: {error}")]);
                Err(failure)
            }
            (result, Ok(())) => result,
        }
    }

    /// Looks at the array without its lock.
    pub fn peek(&self) -> Result<Peek> {
        Ok(self.options().peek(self.starts()?)?)
    }

    /// Takes notes for the user.
    pub fn note(&self, notices: impl IntoIterator<Item = String>) {
        self.notices.borrow_mut().extend(notices);
    }

    /// Takes note that a measurement was ended by a signal; what was complete by then is told all the same.
    pub fn cut_short(&self, failure: Failure) {
        self.cut_short.replace(Some(failure));
    }

    /// What ended the measurement, if something did.
    pub fn take_cut(&self) -> Option<Failure> {
        self.cut_short.take()
    }

    /// What was noted.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }
}
