//! A script of calls that may end at any moment, and every state that may be found afterwards.

use std::collections::BTreeMap;

use fastrand::Rng;
use iomill::{Array, ArrayOptions, File, Result, Writing};
use iomill_sim::World;

use crate::harness::{Memory, block_on, bytes, layout, open_with, options};
use crate::versions::Versions;

const PAGE: usize = 4096;

/// What the catalog and a reader know of a file.
#[derive(Clone, Debug, Default)]
pub struct Known {
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
    /// The states of which one is found if the machine stops now.
    pub outcomes: Vec<Files>,
    names: u32,
    flying: Option<String>,
    /// The options with which the array is opened again.
    pub options: fn(&mut Rng, &World) -> ArrayOptions,
}

impl Script {
    pub fn new(array: Array) -> Script {
        let (handles, files, outcomes) = (BTreeMap::new(), Files::new(), vec![Files::new()]);
        Script { array: Some(array), handles, files, outcomes, names: 0, flying: None, options }
    }

    /// Runs some calls. An error is the error of the call that failed.
    pub fn run(&mut self, rng: &mut Rng, world: &World, calls: usize) -> Result<()> {
        for _ in 0..calls {
            self.outcomes = vec![self.files.clone()];
            self.call(rng, world)?;
            self.outcomes = vec![self.files.clone()];
        }
        Ok(())
    }

    /// Begins a write to pages of the first file that nothing else uses, and does not wait for it.
    pub fn begin_writes(&mut self, rng: &mut Rng) -> Option<Writing> {
        let name = self.files.keys().next()?.clone();
        let file = self.file(&name).unwrap();
        let new = bytes(rng, 50_000);
        self.known(&name).versions.begin(0, &new);
        self.flying = Some(name);
        Some(file.write(new, 0))
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
        match rng.u8(0..24) {
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
        after.insert(name.clone(), Known::default());
        self.or(after.clone());
        let drives = world_drives(&self.array());
        let file = self.array().create_file(&name, layout(rng, drives))?;
        self.handles.insert(name, file);
        self.files = after;
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
        self.files = after;
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<()> {
        self.close_file(name)?;
        let mut after = self.files.clone();
        after.remove(name);
        self.or(after.clone());
        self.array().delete(name)?;
        self.files = after;
        Ok(())
    }

    fn set_attribute(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let (key, value) = (format!("k{}", rng.u8(0..3)), rng.u32(..).to_string());
        let mut after = self.files.clone();
        after.get_mut(name).unwrap().attributes.insert(key.clone(), value.clone());
        self.or(after.clone());
        self.array().set_attribute(name, &key, Some(&value))?;
        self.files = after;
        Ok(())
    }

    fn close_file(&mut self, name: &str) -> Result<()> {
        let Some(file) = self.handles.remove(name) else { return Ok(()) };
        let after = self.with(name, self.files[name].versions.synced());
        self.or(after.clone());
        file.close()?;
        self.files = after;
        self.outcomes = vec![self.files.clone()];
        Ok(())
    }

    /// Closes the array, which syncs the open files in any order. Then opens it again.
    fn reopen(&mut self, rng: &mut Rng, world: &World) -> Result<()> {
        let open_names: Vec<String> = self.handles.keys().cloned().collect();
        for name in &open_names {
            for mut files in self.outcomes.clone() {
                let known = files.get_mut(name).unwrap();
                known.versions = known.versions.synced();
                self.outcomes.push(files);
            }
        }
        let array = self.array.take().unwrap();
        let closed = array.close();
        self.handles.clear();
        closed?;
        for name in &open_names {
            let known = self.known(name);
            known.versions = known.versions.synced();
        }
        self.outcomes = vec![self.files.clone()];
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
        self.files = after;
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
        self.files = after;
        Ok(())
    }

    fn write(&mut self, rng: &mut Rng, name: &str) -> Result<()> {
        let file = self.file(name)?;
        let end = self.files[name].versions.now.len();
        let at = rng.usize(0..=end + 20_000);
        let count = [rng.usize(1..600), rng.usize(1..50_000), PAGE * rng.usize(1..40)][rng.usize(0..3)];
        let at = if rng.bool() { at - at % PAGE } else { at };
        let new = bytes(rng, count);
        self.known(name).versions.begin(at, &new);
        self.outcomes = vec![self.files.clone()];
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
            self.known(name).versions.begin(at, &new);
            writes.push((at, new));
            page += pages + rng.usize(0..6);
        }
        self.outcomes = vec![self.files.clone()];
        rng.shuffle(&mut writes);
        let begun: Vec<_> = writes.iter().map(|(at, new)| file.write(new.clone(), *at as u64)).collect();
        let ended: Vec<_> = begun.into_iter().map(|write| block_on(&array, write)).collect();
        for ((at, new), ended) in writes.iter().zip(ended) {
            ended?;
            self.known(name).versions.end(*at, new);
        }
        Ok(())
    }
}

fn world_drives(array: &Array) -> usize {
    array.info().map_or(1, |info| info.drives.len())
}
