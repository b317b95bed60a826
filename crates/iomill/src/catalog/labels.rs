//! [`Labels`]: the labels of an open array, as its writer keeps them (C10, C13).
//!
//! Goals: the list of voters is durable on all of them before the log relies on it. Non-goals: finding drives
//! (`discovery`), and the decision to change the voters (`log::writer`).

use std::sync::Arc;

use super::id::Id;
use super::label::{Label, LabelBody};
use super::log::group::OpeningId;
use super::log::merged::{LogEnd, Merged};
use super::log::writer::Announce;
use super::openings::{Openings, Proof};
use super::store::{Drive, LABEL, Staged};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::notices::Notices;
use crate::sys::sync::{Mutex, lock};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) platform: Arc<dyn Platform>,
    /// By index.
    pub(super) drives: Arc<[Drive]>,
    /// The content of the labels, or the content to write.
    pub(super) body: Arc<Mutex<LabelBody>>,
    /// The notes of openings. `None` if a person has removed them from all drives, and a repair makes new ones.
    pub(super) openings: Arc<Mutex<Option<Openings>>>,
    pub(super) notices: Arc<Notices>,
    /// Why the last announcement failed, if that passes.
    pub(super) passing: Arc<Mutex<Option<Error>>>,
}

impl Labels {
    /// The bytes of a drive's label.
    fn bytes(&self, body: &LabelBody, drive: &Drive) -> Result<Vec<u8>> {
        label_bytes(&body.label_of(drive.index), drive)
    }

    /// Writes the labels of these drives, each by itself. Returns the drives that failed, by index.
    fn write<'a>(&'a self, body: &LabelBody, drives: impl Iterator<Item = &'a Drive>) -> Vec<(usize, Error)> {
        let mut failed = Vec::new();
        for drive in drives {
            let written = self.bytes(body, drive).and_then(|bytes| {
                Staged::write(&*self.platform, [(&drive.fs, LABEL.to_owned(), bytes.as_slice())])?.commit()
            });
            if let Err(error) = written {
                failed.push((usize::from(drive.index), error));
            }
        }
        failed
    }
}

impl Announce for Labels {
    fn announce(&mut self, epoch: u64, voters: &[usize]) -> Vec<usize> {
        let mut named: Vec<u16> = voters.iter().map(|voter| *voter as u16).collect();
        named.sort_unstable();
        let body = LabelBody { epoch, voters: named, ..lock(&self.body).clone() };
        // The voters come first. Without them no other label may rule.
        let (of_voters, others): (Vec<&Drive>, Vec<&Drive>) =
            self.drives.iter().partition(|drive| voters.contains(&usize::from(drive.index)));
        let failed = self.write(&body, of_voters.into_iter());
        if failed.is_empty() {
            for (drive, error) in self.write(&body, others.into_iter()) {
                self.notices.push(format!("drive {drive}: its label stays behind until the next opening: {error}"));
            }
        }
        *lock(&self.body) = body;
        for (drive, error) in &failed {
            self.notices.push(format!("drive {drive}: its label could not be written: {error}"));
        }
        let names = failed.iter().map(|(drive, _)| *drive).collect();
        *lock(&self.passing) = failed.into_iter().map(|(_, error)| error).find(Error::passes);
        names
    }

    fn passing(&mut self) -> Option<Error> {
        lock(&self.passing).take()
    }

    fn begin(&mut self, merged: &Merged, end: &LogEnd) -> Result<OpeningId> {
        let mut openings = lock(&self.openings);
        if openings.is_none() {
            let number = end.opening.number.saturating_add(1);
            let opening = OpeningId { number, id: Id::random(&*self.platform)? };
            let proof = Proof { sequence: end.sequence, checksum: end.checksum };
            let array = lock(&self.body).array;
            *openings = Some(Openings::make(&*self.platform, array, &self.drives, opening, proof)?);
        }
        let Some(openings) = &mut *openings else { unreachable!("it was made above") };
        openings.judge_log(end, merged)?;
        openings.begin(&*self.platform, end)
    }

    fn use_begun(&mut self, sequence: u64, checksum: u64) -> Result<()> {
        match &mut *lock(&self.openings) {
            Some(openings) => openings.use_begun(&*self.platform, Proof { sequence, checksum }),
            None => Ok(()),
        }
    }

    fn prove(&mut self, sequence: u64, checksum: u64) {
        if let Some(openings) = &mut *lock(&self.openings)
            && let Err(error) = openings.close(&*self.platform, Proof { sequence, checksum })
        {
            self.notices.push(format!("the end of the log could not be noted on all drives: {error}"));
        }
    }

    fn notice(&mut self, text: String) {
        self.notices.push(text);
    }
}

/// The bytes of a label.
pub(super) fn label_bytes(label: &Label, drive: &Drive) -> Result<Vec<u8>> {
    label.to_bytes().map_err(|why| Error::invalid(format!("the label of drive {}", drive.path().display()), why))
}
