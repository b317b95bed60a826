//! The contents that a file may have after a crash.

use super::model::put;

/// A file's durable bytes, and the writes since. A granule is a page, or a sector if sectors tear. After a crash each
/// granule has the contents after none, some or all of those writes. The length is the durable one.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    durable: Vec<u8>,
    /// Offset and bytes, in the order of the calls.
    since: Vec<(usize, Vec<u8>)>,
    /// The bytes that a read returns.
    pub now: Vec<u8>,
}

impl Versions {
    /// A file of this content, which is durable.
    pub fn durable(content: Vec<u8>) -> Versions {
        Versions { durable: content.clone(), since: Vec::new(), now: content }
    }

    /// A write has begun: from now on it may be on the drives.
    pub fn begin(&mut self, at: usize, new: &[u8]) {
        self.since.push((at, new.to_vec()));
    }

    /// A write has succeeded: from now on reads return it.
    pub fn end(&mut self, at: usize, new: &[u8]) {
        put(&mut self.now, at, new);
    }

    /// Whether there were no writes since the last sync.
    pub fn is_synced(&self) -> bool {
        self.since.is_empty()
    }

    /// The same file after a sync.
    pub fn synced(&self) -> Versions {
        Versions::durable(self.now.clone())
    }

    /// The same file after a change of its length.
    pub fn resized(&self, len: usize) -> Versions {
        let mut after = self.clone();
        after.now.resize(len, 0);
        after.synced()
    }

    /// Whether a crash may leave `found`; if not, the reason.
    pub fn fits(&self, found: &[u8], granule: usize) -> Result<(), String> {
        if found.len() != self.durable.len() {
            return Err(format!("{} bytes, not {}", found.len(), self.durable.len()));
        }
        for start in (0..found.len()).step_by(granule) {
            let end = (start + granule).min(found.len());
            if !self.may_hold(start, &found[start..end]) {
                let wanted = &self.durable[start..end];
                let at = start + found[start..end].iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(0);
                let later = self.since.iter().filter(|(from, new)| *from < end && start < from + new.len()).count();
                return Err(format!(
                    "{start}..{end} of {} bytes is neither as synced nor as after one of {later} later writes; byte \
                     {at} is {}, was {}",
                    found.len(),
                    found[at],
                    self.durable[at]
                ));
            }
        }
        Ok(())
    }

    fn may_hold(&self, start: usize, found: &[u8]) -> bool {
        let mut held = self.durable[start..start + found.len()].to_vec();
        if held == found {
            return true;
        }
        let end = start + found.len();
        for (at, new) in &self.since {
            let (from, to) = (start.max(*at), end.min(at + new.len()));
            if from < to {
                held[from - start..to - start].copy_from_slice(&new[from - at..to - at]);
                if held == found {
                    return true;
                }
            }
        }
        false
    }
}
