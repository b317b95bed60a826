//! Steps that change names, and the names that the array shows (rule 1 of lives).

use std::collections::BTreeMap;

use iomill::{Array, Error, PutOptions, When};

use super::life::{Handle, Life, Named, Names, Said, Wrong, nothing};
use super::model::Contents;
use super::program::{Step, bytes, length};
use crate::testing::block_on;

/// The largest number of names.
const FILES_MAX: usize = 6;

impl Life<'_> {
    /// Makes a call that changes names (rule 1 of lives). Returns its result if it succeeded.
    fn change<R>(
        &mut self,
        after: Names,
        may_happen_with_error: bool,
        call: impl FnOnce(&Array) -> iomill::Result<R>,
    ) -> Result<Result<R, String>, Wrong> {
        self.outcomes = vec![self.names.clone(), after.clone()];
        match call(&self.array()) {
            Ok(result) => {
                self.names = after;
                self.outcomes = vec![self.names.clone()];
                Ok(Ok(result))
            }
            Err(error) => {
                self.excuse(&error)?;
                let text = format!("failed: {error}");
                if self.world.crashed() || self.is_unknown {
                    return Ok(Err(text));
                }
                match self.shows(&after)? {
                    // The array no longer knows its names.
                    None => return Ok(Err(text)),
                    Some(true) if !may_happen_with_error => {
                        return Err(format!("a change happened that is said to have failed: {error}"));
                    }
                    Some(true) => self.names = after,
                    Some(false) => {}
                }
                self.outcomes = vec![self.names.clone()];
                Ok(Err(text))
            }
        }
    }

    /// Whether the array shows these names, or else the earlier ones. `None` if it does not know its names.
    fn shows(&mut self, after: &Names) -> Result<Option<bool>, Wrong> {
        let array = self.array();
        let there = match array.list("").names() {
            Ok(there) => there,
            Err(error) => return self.not_known(&error, "the names").map(|()| None),
        };
        let same = |names: &Names| there.iter().eq(names.keys());
        match (same(&self.names), same(after)) {
            (true, false) => return Ok(Some(false)),
            (false, true) => return Ok(Some(true)),
            (false, false) => return Err(format!("names {there:?} are neither those before nor those after")),
            (true, true) => {}
        }
        for (name, before) in &self.names.clone() {
            if after[name] == *before {
                continue;
            }
            let stat = match array.stat(name) {
                Ok(stat) => stat,
                Err(error) => return self.not_known(&error, name).map(|()| None),
            };
            let is_as_before = before.version == Some(stat.version) && before.attributes == stat.attributes;
            return Ok(Some(!is_as_before));
        }
        Ok(Some(false))
    }

    /// After an error of a call that only reads: the array must no longer know its names.
    fn not_known(&mut self, error: &Error, what: &str) -> Result<(), Wrong> {
        self.excuse(error)?;
        if self.is_unknown { Ok(()) } else { Err(format!("{what} cannot be looked up: {error}")) }
    }

    /// An existing name.
    pub fn name(&self, draw: u32) -> Option<String> {
        self.names.keys().nth(draw as usize % self.names.len().max(1)).cloned()
    }

    /// A name that may exist or not.
    fn any_name(&self, draw: u32) -> String {
        match self.name(draw / 2) {
            Some(name) if draw.is_multiple_of(2) || self.names.len() >= FILES_MAX => name,
            _ => format!("f{}", draw / 2 % 20),
        }
    }

    /// New contents with these bytes.
    fn make(&mut self, bytes: &[u8]) -> u32 {
        self.made += 1;
        self.contents.insert(self.made, Contents::durable(bytes));
        self.made
    }

    pub fn create(&mut self, step: &Step) -> Said {
        if self.names.len() >= FILES_MAX {
            return nothing();
        }
        let name = format!("f{}", step.which % 20);
        let options = self.program.file_options(step.first);
        if self.names.contains_key(&name) {
            return match self.array().create_file(&name, &options) {
                Err(Error::Exists { .. }) => Ok("refused".to_owned()),
                Err(error) => self.failed(&error),
                Ok(_) => Err(format!("{name} was made twice")),
            };
        }
        let id = self.make(&[]);
        let mut after = self.names.clone();
        after.insert(name.clone(), Named { id, version: None, attributes: BTreeMap::new() });
        match self.change(after, true, |array| array.create_file(&name, &options))? {
            Ok(file) => {
                self.handles.push(Handle { id, file });
                self.trim_handles()?;
                self.see_version(&name)
            }
            Err(failed) => {
                if self.names.contains_key(&name) && !self.is_unknown {
                    self.see_version(&name)?;
                }
                Ok(failed)
            }
        }
    }

    /// Learns the version of a name that was just given.
    fn see_version(&mut self, name: &str) -> Said {
        match self.array().stat(name) {
            Ok(stat) => {
                if let Some(named) = self.names.get_mut(name) {
                    named.version = Some(stat.version);
                }
                self.outcomes = vec![self.names.clone()];
                Ok(format!("{name} has version {}", stat.version))
            }
            Err(error) => self.failed(&error),
        }
    }

    pub fn rename(&mut self, step: &Step) -> Said {
        let Some(from) = self.name(step.which) else { return nothing() };
        let to = self.any_name(step.first);
        if from == to {
            return nothing();
        }
        let mut after = self.names.clone();
        let named = after.remove(&from).ok_or("a name that is there")?;
        after.insert(to.clone(), named);
        let renamed = self.change(after, true, |array| array.rename(&from, &to))?;
        Ok(renamed.map_or_else(|failed| failed, |()| format!("{from} is {to}")))
    }

    pub fn delete(&mut self, step: &Step) -> Said {
        let Some(name) = self.name(step.which) else { return nothing() };
        let mut after = self.names.clone();
        after.remove(&name);
        let deleted = self.change(after, true, |array| array.delete(&name))?;
        Ok(deleted.map_or_else(|failed| failed, |()| name))
    }

    pub fn attribute(&mut self, step: &Step) -> Said {
        let Some(name) = self.name(step.which) else { return nothing() };
        let (key, value) = (format!("k{}", step.first % 3), step.second.to_string());
        let mut after = self.names.clone();
        if let Some(named) = after.get_mut(&name) {
            named.attributes.insert(key.clone(), value.clone());
        }
        let set = self.change(after, true, |array| array.set_attribute(&name, &key, Some(&value)))?;
        Ok(set.map_or_else(|failed| failed, |()| name))
    }

    /// A name gets whole contents, on a condition that a draw chooses.
    fn give(
        &mut self,
        name: &str,
        draw: u32,
        named: Named,
        call: impl FnOnce(&Array, When) -> iomill::Result<iomill::FileStat>,
    ) -> Said {
        let there = self.names.get(name).and_then(|named| named.version);
        let (when, holds) = match (draw % 4, there) {
            (0, _) => (When::Absent, !self.names.contains_key(name)),
            (1, Some(version)) => (When::Version(version), true),
            (2, _) => (When::Version(u64::from(draw) << 20 | 1 << 60), false),
            _ => (When::Always, true),
        };
        if !holds {
            return match call(&self.array(), when) {
                Err(Error::Exists { .. } | Error::Conflict { .. }) => Ok("refused".to_owned()),
                Err(error) => self.failed(&error),
                Ok(_) => Err(format!("{name} was given on a condition that does not hold")),
            };
        }
        let mut after = self.names.clone();
        after.insert(name.to_owned(), named);
        match self.change(after, false, |array| call(array, when))? {
            Ok(stat) => {
                let id = self.names[name].id;
                if stat.name != name || !self.contents(id).shows(stat.len_bytes as usize) {
                    let (len, wanted) = (stat.len_bytes, self.contents(id).len());
                    return Err(format!("{name} was given {wanted} bytes, and it says {} has {len}", stat.name));
                }
                self.contents(id).synced();
                self.names.get_mut(name).ok_or("a name that was given")?.version = Some(stat.version);
                self.outcomes = vec![self.names.clone()];
                Ok(format!("{name} has version {}", stat.version))
            }
            Err(failed) => Ok(failed),
        }
    }

    pub fn put(&mut self, step: &Step) -> Said {
        let name = self.any_name(step.which);
        let content = bytes(step.first, length(step.second).min(self.program.longest));
        let id = self.make(&content);
        let attributes = BTreeMap::from([("k0".to_owned(), step.first.to_string())]);
        let options =
            PutOptions::new().file(self.program.file_options(step.first)).attribute("k0", step.first.to_string());
        let is_future = step.first.is_multiple_of(3);
        self.give(&name, step.first, Named { id, version: None, attributes }, |array, when| {
            let options = options.when(when);
            if is_future {
                let putting = array.put_async(&name, content, &options);
                block_on(array, putting).unwrap_or_else(|hung| panic!("{hung}"))
            } else {
                array.put(&name, &content, &options)
            }
        })
    }

    pub fn copy(&mut self, step: &Step) -> Said {
        let Some(from) = self.name(step.which) else { return nothing() };
        let to = self.any_name(step.first);
        let source = self.names[&from].clone();
        if from == to {
            return nothing();
        }
        self.finish_calls(Some(source.id))?;
        // A failed write leaves one of several contents, and the copy has one of them.
        let mut contents = self.contents(source.id).clone();
        contents.may_be_synced();
        self.made += 1;
        let id = self.made;
        self.contents.insert(id, contents);
        let named = Named { id, version: None, attributes: source.attributes };
        self.give(&to, step.second, named, |array, when| array.copy(&from, &to, when))
    }

    pub fn draft(&mut self, step: &Step) -> Said {
        if self.drafts.len() >= 2 {
            let (draft, id) = self.drafts.swap_remove(0);
            self.handles.retain(|handle| handle.id != id);
            self.finish_calls(Some(id))?;
            drop(draft);
        }
        match self.array().draft(&self.program.file_options(step.first)) {
            Ok(draft) => {
                let id = self.make(&[]);
                self.handles.push(Handle { id, file: draft.file().clone() });
                self.drafts.push((draft, id));
                self.trim_handles()?;
                Ok(format!("contents {id}"))
            }
            Err(error) => self.failed(&error),
        }
    }

    pub fn publish(&mut self, step: &Step) -> Said {
        if self.drafts.is_empty() {
            return nothing();
        }
        let index = step.which as usize % self.drafts.len();
        let id = self.drafts[index].1;
        self.finish_calls(Some(id))?;
        let (draft, id) = self.drafts.swap_remove(index);
        let name = self.any_name(step.first);
        self.contents(id).may_be_synced();
        let named = Named { id, version: None, attributes: BTreeMap::new() };
        let published = self.give(&name, step.second, named, |_, when| draft.publish(&name, when))?;
        if !self.names.values().any(|named| named.id == id) {
            self.drafts.push((draft, id));
        }
        Ok(published)
    }
}
