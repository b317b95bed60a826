//! A script of calls that may end at any moment, and every state that may be found afterwards.

use std::collections::BTreeMap;

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Draft, Error, File, PutOptions, Result, Transfer, When};
use iomill_sim::World;

use super::harness::{Memory, block_on, bytes, file_options, open_with, options};
use super::versions::Versions;

const PAGE: usize = 4096;

/// The state of a file for the catalog and a reader.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The file's number, whatever its name.
    id: u32,
    pub versions: Versions,
    pub attributes: BTreeMap<String, String>,
}

/// All files by name.
pub type Files = BTreeMap<String, Known>;

/// The state of a script between two calls, and the states that the running call may leave.
pub struct Script {
    pub array: Option<Array>,
    handles: BTreeMap<String, File>,
    pub files: Files,
    /// States since the last sync of anything, without changes that wait for no sync. A crash may leave each of them.
    past: Vec<Files>,
    /// Whether changes of names wait until they are durable.
    syncs_changes: bool,
    /// The possible states if the machine stops now.
    pub outcomes: Vec<Files>,
    names: u32,
    flying: Option<String>,
    /// A draft, and its content.
    draft: Option<(Draft, Vec<u8>)>,
    /// The options with which the array is opened again.
    pub options: fn(&mut Rng, &World) -> ArrayOptions,
}

impl Script {
    pub fn new(array: Array) -> Script {
        let (handles, files, outcomes) = (BTreeMap::new(), Files::new(), vec![Files::new()]);
        let (past, syncs_changes) = (Vec::new(), true);
        Script {
            past,
            syncs_changes,
            array: Some(array),
            handles,
            files,
            outcomes,
            names: 0,
            flying: None,
            draft: None,
            options,
        }
    }

    /// A script on an array with changes of names that wait for no sync.
    pub fn without_syncs(array: Array, options: fn(&mut Rng, &World) -> ArrayOptions) -> Script {
        Script { syncs_changes: false, options, ..Script::new(array) }
    }

    /// Runs some calls. An error is the error of the call that failed.
    pub fn run(&mut self, rng: &mut Rng, world: &World, calls: usize) -> Result<()> {
        for _ in 0..calls {
            self.settle();
            self.call(rng, world)?;
            self.settle();
        }
        Ok(())
    }

    /// Begins a write to pages of the first file that nothing else uses, and does not wait for it.
    pub fn begin_writes(&mut self, rng: &mut Rng) -> Option<Transfer<Vec<u8>>> {
        let name = self.files.keys().next()?.clone();
        let file = self.file(&name).unwrap();
        let new = bytes(rng, 50_000);
        self.begin(&name, 0, &new);
        self.flying = Some(name);
        Some(file.write_at_async(new, 0))
    }

    /// Whether that write goes to this file.
    pub fn in_flight_on(&self, name: &str) -> bool {
        self.flying.as_deref() == Some(name)
    }

    fn call(&mut self, rng: &mut Rng, world: &World) -> Result<()> {
        if self.files.is_empty() || (self.files.len() < 4 && rng.u8(0..8) == 0) {
            return self.create(rng);
        }
        let name = self.files.keys().nth(rng.usize(0..self.files.len())).unwrap().clone();
        match rng.u8(0..31) {
            30 => self.sync_changes(),
            24..26 => self.put(rng, &name),
            26 => self.copy(rng, &name),
            27..30 => self.draft(rng, &name),
            0 => self.rename(rng, &name),
            1 => self.delete(&name),
            2 => self.set_attribute(rng, &name),
            3 => self.close_file(&name),
            4 => self.reopen(rng, world),
            5..8 => self.sync(rng, &name),
            8..12 => self.set_len(rng, &name),
            12..15 => self.write_futures(rng, &name),
            _ => self.write(rng, &name),
        }
    }

    fn array(&self) -> Array {
        self.array.clone().unwrap()
    }

    fn file(&mut self, name: &str) -> Result<File> {
        if let Some(file) = self.handles.get(name) {
            return Ok(file.clone());
        }
        let file = self.array().open_file(name)?;
        self.handles.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn known(&mut self, name: &str) -> &mut Known {
        self.files.get_mut(name).unwrap()
    }

    /// No call runs.
    fn settle(&mut self) {
        self.outcomes = self.past.clone();
        self.outcomes.push(self.files.clone());
    }

    /// A change of names has ended.
    fn named(&mut self, after: Files) {
        let before = std::mem::replace(&mut self.files, after);
        if !self.syncs_changes {
            self.past.push(before);
        }
    }

    /// A sync has ended.
    fn synced(&mut self, after: Files) {
        self.files = after;
        self.past.clear();
    }

    /// A write to a file begins, which may have other names in the past.
    fn begin(&mut self, name: &str, at: usize, new: &[u8]) {
        let id = self.files[name].id;
        let states = self.past.iter_mut().chain([&mut self.files]);
        let twins = states.flat_map(|files| files.values_mut()).filter(|known| known.id == id);
        twins.for_each(|known| known.versions.begin(at, new));
    }

    /// From now on `after` may be found, as well as the earlier outcomes.
    fn or(&mut self, after: Files) {
        self.outcomes.push(after);
    }

    fn with(&self, name: &str, versions: Versions) -> Files {
        let mut files = self.files.clone();
        files.get_mut(name).unwrap().versions = versions;
        files
    }

    fn create(&mut self, rng: &mut Rng) -> Result<()> {
        self.names += 1;
        let name = format!("f{}", self.names);
        let mut after = self.files.clone();
        after.insert(name.clone(), Known { id: self.names, ..Known::default() });
        self.or(after.clone());
        let drives = world_drives(&self.array());
        let file = self.array().create_file(&name, &file_options(rng, drives))?;
        self.handles.insert(name, file);
        self.named(after);
        Ok(())
    }

    fn rename(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        self.close_file(name)?;
        self.names += 1;
        let mut to = format!("f{}", self.names);
        let victim = self.files.keys().nth(rng.usize(0..self.files.len())).unwrap().clone();
        if victim != name && rng.bool() {
            self.close_file(&victim)?;
            to = victim;
        }
        let mut after = self.files.clone();
        let known = after.remove(name).unwrap();
        after.insert(to.clone(), known);
        self.or(after.clone());
        self.array().rename(name, &to)?;
        self.named(after);
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<()> {
        self.close_file(name)?;
        let mut after = self.files.clone();
        after.remove(name);
        self.or(after.clone());
        self.array().delete(name)?;
        self.named(after);
        Ok(())
    }

    fn set_attribute(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let (key, value) = (format!("k{}", rng.u8(0..3)), rng.u32(..).to_string());
        let mut after = self.files.clone();
        after.get_mut(name).unwrap().attributes.insert(key.clone(), value.clone());
        self.or(after.clone());
        self.array().set_attribute(name, &key, Some(&value))?;
        self.named(after);
        Ok(())
    }

    fn sync_changes(&mut self) -> Result<()> {
        self.array().sync()?;
        self.past.clear();
        Ok(())
    }

    /// A name for a new content: that of a file, or a new one. A condition for it, and whether that holds.
    fn place(&mut self, rng: &mut Rng, name: &str) -> Result<(String, When, bool)> {
        self.names += 1;
        let name = if rng.bool() { name.to_owned() } else { format!("f{}", self.names) };
        let is_there = self.files.contains_key(&name);
        let when = [When::Always, When::Absent, When::Version(1 << 60)][rng.usize(0..3)];
        let (when, holds) = match when {
            When::Version(_) if is_there && rng.u8(0..4) > 0 => {
                (When::Version(self.array().stat(&name)?.version), true)
            }
            When::Version(_) => (when, false),
            When::Absent => (when, !is_there),
            _ => (when, true),
        };
        Ok((name, when, holds))
    }

    /// A call that gives a name to a whole content, on a condition.
    fn give_name(
        &mut self,
        (name, holds): (&str, bool),
        content: Vec<u8>,
        attributes: BTreeMap<String, String>,
        call: impl FnOnce(&Array) -> Result<iomill::FileStat>,
    ) -> Result<()> {
        self.close_file(name)?;
        let mut after = self.files.clone();
        let len = content.len() as u64;
        // Each call of `place` takes a number.
        after.insert(name.to_owned(), Known { id: self.names, versions: Versions::durable(content), attributes });
        if holds {
            self.or(after.clone());
        }
        match call(&self.array()) {
            Ok(stat) => {
                assert!(holds, "a name was given against its condition");
                assert_eq!((stat.name.as_str(), stat.len_bytes), (name, len));
                self.named(after);
                Ok(())
            }
            Err(Error::Exists { .. } | Error::Conflict { .. }) if !holds => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn put(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let (name, when, holds) = self.place(rng, name)?;
        let (content, attributes) = (some_content(rng), BTreeMap::from([("k0".to_owned(), rng.u32(..).to_string())]));
        let options = PutOptions::new().file(file_options(rng, world_drives(&self.array()))).when(when);
        let options = attributes.iter().fold(options, |options, (key, value)| options.attribute(key, value));
        let new = content.clone();
        self.give_name((&name, holds), content, attributes, |array| array.put(&name, &new, &options))
    }

    fn copy(&mut self, rng: &mut Rng, from: &str) -> Result<()> {
        let (to, when, holds) = self.place(rng, from)?;
        // The file that is closed with `to` must not be the copied one.
        let (to, when, holds) =
            if to == from { (format!("f{}", self.names), When::Absent, true) } else { (to, when, holds) };
        let Known { versions, attributes, .. } = self.files[from].clone();
        self.give_name((&to, holds), versions.now, attributes, |array| array.copy(from, &to, when))
    }

    /// Makes a draft, writes to it, publishes it, or drops it.
    fn draft(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let Some((draft, mut content)) = self.draft.take() else {
            let (array, options) = (self.array(), file_options(rng, world_drives(&self.array())));
            self.draft = Some((array.draft(&options)?, Vec::new()));
            return Ok(());
        };
        match rng.u8(0..6) {
            0 => {}
            1 | 2 => {
                let (name, when, holds) = self.place(rng, name)?;
                let published =
                    self.give_name((&name, holds), content, BTreeMap::new(), |_| draft.publish(&name, when));
                if rng.bool() {
                    drop(draft);
                }
                published?;
            }
            3 => {
                draft.file().sync()?;
                self.draft = Some((draft, content));
            }
            _ => {
                let new = some_content(rng);
                let at = rng.usize(0..=content.len() + 5000);
                draft.file().write_at(&new, at as u64)?;
                super::model::put(&mut content, at, &new);
                self.draft = Some((draft, content));
            }
        }
        Ok(())
    }

    fn close_file(&mut self, name: &str) -> Result<()> {
        let Some(file) = self.handles.remove(name) else { return Ok(()) };
        if !self.syncs_changes && self.files[name].versions.is_synced() {
            // The close makes nothing durable.
            drop(file);
            return Ok(());
        }
        let after = self.with(name, self.files[name].versions.synced());
        self.or(after.clone());
        file.close()?;
        self.synced(after);
        self.settle();
        Ok(())
    }

    /// Closes the array, which syncs the open files in any order. Then opens it again.
    fn reopen(&mut self, rng: &mut Rng, world: &World) -> Result<()> {
        let open_names: Vec<String> = self.handles.keys().cloned().collect();
        let mut closing = vec![self.files.clone()];
        for name in &open_names {
            for mut files in closing.clone() {
                let known = files.get_mut(name).unwrap();
                known.versions = known.versions.synced();
                closing.push(files);
            }
        }
        self.outcomes.extend(closing);
        let array = self.array.take().unwrap();
        let closed = array.close();
        self.handles.clear();
        self.draft = None;
        closed?;
        for name in &open_names {
            let known = self.known(name);
            known.versions = known.versions.synced();
        }
        self.past.clear();
        self.settle();
        self.array = Some(open_with(rng, world, self.options)?);
        Ok(())
    }

    fn sync(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let file = self.file(name)?;
        let after = self.with(name, self.files[name].versions.synced());
        self.or(after.clone());
        if rng.bool() {
            file.sync()?
        } else {
            block_on(&self.array(), file.sync_async())?
        }
        self.synced(after);
        Ok(())
    }

    fn set_len(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let file = self.file(name)?;
        let versions = self.files[name].versions.clone();
        let old = versions.now.len();
        let len = match rng.u8(0..4) {
            0 => 0,
            1 => old + rng.usize(0..300_000),
            _ => rng.usize(0..=old),
        };
        let after = self.with(name, versions.resized(len));
        // Before it shrinks, a file becomes durable as it is.
        self.or(self.with(name, versions.synced()));
        self.or(after.clone());
        file.set_len(len as u64)?;
        self.synced(after);
        Ok(())
    }

    fn write(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let file = self.file(name)?;
        let end = self.files[name].versions.now.len();
        let at = rng.usize(0..=end + 20_000);
        let count = [rng.usize(1..600), rng.usize(1..50_000), PAGE * rng.usize(1..40)][rng.usize(0..3)];
        let at = if rng.bool() { at - at % PAGE } else { at };
        let new = bytes(rng, count);
        self.begin(name, at, &new);
        self.settle();
        file.write_at(Memory::holding(rng, &new).get(), at as u64)?;
        self.known(name).versions.end(at, &new);
        Ok(())
    }

    /// Several writes at a time, each to different pages.
    fn write_futures(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let (file, array) = (self.file(name)?, self.array());
        let end = self.files[name].versions.now.len() + 40_000;
        let mut writes = Vec::new();
        let mut page = 0;
        while page * PAGE < end && writes.len() < 12 {
            let pages = rng.usize(1..6);
            let at = page * PAGE + rng.usize(0..PAGE);
            let count = rng.usize(1..=(page + pages) * PAGE - at);
            let new = bytes(rng, count);
            self.begin(name, at, &new);
            writes.push((at, new));
            page += pages + rng.usize(0..6);
        }
        self.settle();
        rng.shuffle(&mut writes);
        let begun: Vec<_> = writes.iter().map(|(at, new)| file.write_at_async(new.clone(), *at as u64)).collect();
        let ended: Vec<_> = begun.into_iter().map(|write| block_on(&array, write)).collect();
        for ((at, new), ended) in writes.iter().zip(ended) {
            ended?;
            self.known(name).versions.end(*at, new);
        }
        Ok(())
    }
}

/// A content for a put: nothing, less than a block, or more.
fn some_content(rng: &mut Rng) -> Vec<u8> {
    let len = [0, rng.usize(1..9000), rng.usize(1..70_000), rng.usize(1..300_000)][rng.usize(0..4)];
    bytes(rng, len)
}

fn world_drives(array: &Array) -> usize {
    array.info().map_or(1, |info| info.drives.len())
}
