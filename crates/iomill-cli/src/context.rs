//! The array that a command works on, and the notices about it.

use std::cell::RefCell;
use std::env;
use std::path::{Path, PathBuf};

use iomill::{Array, ArrayOptions, Peek, Profile, RuntimeOptions, Topology};

use crate::arguments::Global;
use crate::failure::{Failure, Result};

/// Names a drive of the array, unless an option does.
const ARRAY_VARIABLE: &str = "IOMILL_ARRAY";

/// The common input of all commands: the global options, the profile, and the notices so far.
#[derive(Debug)]
pub struct Context<'a> {
    /// The global options as the user gave them.
    pub global: &'a Global,
    profile: Option<Profile>,
    notices: RefCell<Vec<String>>,
    cut_short: RefCell<Option<Failure>>,
}

impl<'a> Context<'a> {
    /// A context without notices. Arrays open with the settings of that profile.
    pub fn new(global: &'a Global, profile: Option<Profile>) -> Context<'a> {
        Context { global, profile, notices: RefCell::default(), cut_short: RefCell::default() }
    }

    /// Options for an array without a cache: most commands read each byte once.
    pub fn options(&self) -> ArrayOptions {
        self.cached_options().cache_bytes(0)
    }

    /// Options for an array with the default cache, for commands that read bytes more than once.
    pub fn cached_options(&self) -> ArrayOptions {
        let options = self.global.queues.apply(ArrayOptions::new()).with_tuning(|tuning| tuning.poll(self.global.poll));
        let options = self.profile.iter().cloned().fold(options, ArrayOptions::profile);
        let options = match self.global.drive_threads {
            None => options,
            Some(given) => options.with_tuning(|tuning| tuning.drive_threads(given)),
        };
        let options = self.global.nodes.apply(options);
        match self.global.engine {
            None => options,
            Some(engine) => options.engine(engine.kind()),
        }
    }

    /// The same options for plain files. It refuses those that concern an array only.
    pub fn runtime_options(&self, options: ArrayOptions) -> Result<RuntimeOptions> {
        let nodes = &self.global.nodes;
        let names_nodes =
            nodes.topology != Topology::default() || nodes.cache_nodes.is_some() || nodes.io_nodes.is_some();
        if !self.global.array.is_empty() || self.global.profile.is_some() || names_nodes {
            let why = "a plain file belongs to no array; leave out --array, --profile, --topology, --cache-nodes and --io-nodes";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(RuntimeOptions::like(options))
    }

    /// The drives that name the array.
    pub fn starts(&self) -> Result<Vec<PathBuf>> {
        if !self.global.array.is_empty() {
            return Ok(self.global.array.clone());
        }
        if let Some(drive) = env::var_os(ARRAY_VARIABLE).filter(|value| !value.is_empty()) {
            return Ok(vec![drive.into()]);
        }
        if Path::new("iomill/label").is_file() {
            return Ok(vec![PathBuf::from(".")]);
        }
        let why = "which array? Name any drive of it with `-a DIR` or in the environment variable IOMILL_ARRAY, or go \
                   into a drive's directory; `iomill init` makes a new array";
        Err(Failure::Usage(why.to_owned()))
    }

    /// The drives that name the array, or `None` if nothing names one.
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

    /// Runs a piece of work on an open array and closes it. If both fail, the result is the work's failure.
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

    /// Adds notices for the user.
    pub fn note(&self, notices: impl IntoIterator<Item = String>) {
        self.notices.borrow_mut().extend(notices);
    }

    /// Records that a signal ended a measurement. The command still reports the rounds that were complete.
    pub fn cut_short(&self, failure: Failure) {
        self.cut_short.replace(Some(failure));
    }

    /// The failure that ended the measurement, if there is one.
    pub fn take_cut(&self) -> Option<Failure> {
        self.cut_short.take()
    }

    /// The notices so far, for a command that prints its own document.
    pub fn notices(&self) -> Vec<String> {
        self.notices.borrow().clone()
    }

    /// The notices so far, which are given once.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }
}
