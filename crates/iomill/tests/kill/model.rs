//! The test's model: the states in which a kill may leave each file. It has no parts, records or caches, only begun and
//! acknowledged operations.
//!
//! The promises under test:
//! 1. A change of the catalog takes effect wholly or not at all. An acknowledged change has taken effect.
//! 2. The length is that of the last acknowledged sync, `set_len` or close, or of one in progress.
//! 3. Writes that were acknowledged before an acknowledged sync are durable. Each page has its last synced content, or
//!    the result of a later write (acknowledged or not). One piece of a write reaches a page wholly or not at all. With
//!    the engine `mmap`, which copies to mapped parts, that holds for each byte.
//! 4. Bytes that no write has reached since the file grew over them are zero.
//! 5. A put gives a name its whole content, or leaves the name as it was.
//!
//! A file is in doubt if an operation on it was in progress while a file system failed: the file system may then
//! acknowledge data that it loses (`shutdown.rs`). The promises hold for its name, attribute and length; its bytes may
//! be any.
//!
//! A kill loses no data of the kernel. So acknowledged data survives in fact, also without a sync. That is not
//! promised, and not checked.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Op, PAGE, Shape, Write, stamp};

/// The state of a file after a kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub shape: Shape,
    pub attribute: Option<String>,
    /// Zeros if it is cut.
    pub bytes: Vec<u8>,
    /// Whether a part is missing, or too short for the length. Only a file in doubt may be cut.
    pub is_cut: bool,
}

/// The required content of pages in one of the allowed states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// The synced bytes, or any bytes written since.
    Any,
    /// Everything that was acknowledged.
    Acknowledged,
    /// Everything that was acknowledged, and the write in progress.
    Everything,
}

/// One page: never shorter than a page.
#[derive(Clone, Debug)]
struct PageModel {
    /// With all acknowledged writes.
    now: Vec<u8>,
    /// The other contents that it may have.
    or: Vec<Vec<u8>>,
}

/// One file.
#[derive(Clone, Debug)]
struct FileModel {
    shape: Shape,
    attribute: Option<String>,
    /// With all acknowledged writes.
    len: u64,
    /// The lengths that the last acknowledged syncs may have published.
    durable: Vec<u64>,
    /// Pages that may differ from zero.
    pages: BTreeMap<u64, PageModel>,
}

/// All files of one worker.
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: BTreeMap<String, FileModel>,
    /// Whether the writer's engine copies to mapped parts, so that a kill may end it within a page.
    pub tears: bool,
    in_progress: Option<Op>,
    /// Files in doubt.
    in_doubt: BTreeSet<String>,
    /// Operations that failed, so that they may have come about or not. Each name is in one at most.
    failed: Vec<Op>,
}

impl FileModel {
    fn new(shape: Shape) -> FileModel {
        FileModel { shape, attribute: None, len: 0, durable: vec![0], pages: BTreeMap::new() }
    }

    fn found(found: &Found) -> FileModel {
        let mut file = FileModel { attribute: found.attribute.clone(), ..FileModel::new(found.shape.clone()) };
        for (number, bytes) in (0..).zip(found.bytes.chunks(PAGE as usize)) {
            let mut now = bytes.to_vec();
            now.resize(PAGE as usize, 0);
            file.pages.insert(number, PageModel { now, or: Vec::new() });
        }
        file.len = found.bytes.len() as u64;
        file.durable = vec![file.len];
        file
    }

    /// Each of the write's ranges may have reached its pages or not. The pieces of one range within a page count as
    /// one.
    fn begin_write(&mut self, write: &Write) {
        for (number, ranges) in by_page(write) {
            let page = self.pages.entry(number).or_insert_with(PageModel::zero);
            for reached in 1..1u32 << ranges.len() {
                let mut bytes = page.now.clone();
                for (_, (offset, len)) in ranges.iter().enumerate().filter(|(index, _)| reached >> index & 1 == 1) {
                    put(&mut bytes, number, write.version, *offset, *len);
                }
                page.or.push(bytes);
            }
        }
    }

    fn end_write(&mut self, write: &Write) {
        for (number, ranges) in by_page(write) {
            let page = self.pages.get_mut(&number).unwrap();
            page.or.push(page.now.clone());
            for (offset, len) in ranges {
                put(&mut page.now, number, write.version, offset, len);
            }
        }
        self.len = self.len.max(write.end());
    }

    fn synced(&mut self) {
        self.durable = vec![self.len];
        self.pages.values_mut().for_each(|page| page.or.clear());
    }

    fn set_len(&mut self, len: u64) {
        self.pages.retain(|number, _| number * PAGE < len);
        if let Some(page) = self.pages.get_mut(&(len / PAGE)) {
            page.now[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
        self.synced();
    }

    /// The lengths that may be found, each with the contents that its pages must have.
    fn states(&self, op: Option<&Op>) -> Vec<(u64, Expect)> {
        let mut states: Vec<_> = self.durable.iter().map(|len| (*len, Expect::Any)).collect();
        match op {
            Some(Op::Sync { .. } | Op::Close { .. }) => states.push((self.len, Expect::Acknowledged)),
            Some(Op::SetLen { to, .. }) => {
                if *to <= self.len {
                    states.push((self.len, Expect::Acknowledged));
                }
                states.push((*to, Expect::Acknowledged));
            }
            Some(Op::Race { write, .. }) => {
                states.push((self.len, Expect::Any));
                states.push((write.end().max(self.len), Expect::Everything));
            }
            _ => {}
        }
        states
    }

    fn check(&self, op: Option<&Op>, found: &Found, (tears, is_in_doubt): (bool, bool)) -> Result<(), String> {
        let attribute_in_progress = match op {
            Some(Op::Attribute { value, .. }) => Some(value.to_string()),
            _ => None,
        };
        if found.shape != self.shape {
            return Err(format!("layout {:?}, not {:?}", found.shape, self.shape));
        }
        if found.attribute != self.attribute
            && (attribute_in_progress.is_none() || found.attribute != attribute_in_progress)
        {
            return Err(format!("attribute {:?}, not {:?}", found.attribute, self.attribute));
        }
        let len = found.bytes.len() as u64;
        let states = self.states(op);
        let of_len: Vec<Expect> = states.iter().filter(|state| state.0 == len).map(|state| state.1).collect();
        if of_len.is_empty() {
            return Err(format!("length {len}, which is none of {states:?}"));
        }
        if is_in_doubt {
            return Ok(());
        }
        let mut first = Ok(());
        for expect in of_len {
            let result = self.check_pages(op, (expect, tears), &found.bytes);
            if result.is_ok() {
                return result;
            }
            first = first.and(result);
        }
        first
    }

    fn check_pages(&self, op: Option<&Op>, (expect, tears): (Expect, bool), found: &[u8]) -> Result<(), String> {
        let zero = PageModel::zero();
        let mut whole = None;
        if let (Expect::Everything, Some(Op::Race { write, .. })) = (expect, op) {
            let mut file = self.clone();
            file.end_write(write);
            whole = Some(file);
        }
        let pages = whole.as_ref().map_or(&self.pages, |file| &file.pages);
        for (number, bytes) in (0..).zip(found.chunks(PAGE as usize)) {
            let page = pages.get(&number).unwrap_or(&zero);
            let is = |allowed: &Vec<u8>| allowed[..bytes.len()] == *bytes;
            if is(&page.now) || (expect == Expect::Any && page.or.iter().any(is)) {
                continue;
            }
            let holds = |at: usize| page.now[at] == bytes[at] || page.or.iter().any(|or| or[at] == bytes[at]);
            if expect == Expect::Any && tears && (0..bytes.len()).all(holds) {
                continue;
            }
            let mut why = format!("page {number} of {} bytes ({expect:?}) is\n      {}", found.len(), tell(bytes));
            why += &format!("\n    and should be\n      {}", tell(&page.now));
            if expect == Expect::Any {
                page.or.iter().for_each(|or| why += &format!("\n    or\n      {}", tell(or)));
            }
            return Err(why);
        }
        Ok(())
    }
}

impl PageModel {
    fn zero() -> PageModel {
        PageModel { now: vec![0; PAGE as usize], or: Vec::new() }
    }
}

/// A write's ranges cut at pages: for each page the ranges as (offset in the file, length) in bytes.
fn by_page(write: &Write) -> BTreeMap<u64, Vec<(u64, u64)>> {
    let mut pages: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for &(start, len) in &write.ranges {
        let mut at = start;
        while at < start + len {
            let end = (at / PAGE * PAGE + PAGE).min(start + len);
            pages.entry(at / PAGE).or_default().push((at, end - at));
            at = end;
        }
    }
    pages
}

fn put(page: &mut [u8], number: u64, version: u64, offset: u64, len: u64) {
    page[(offset - number * PAGE) as usize..][..len as usize].copy_from_slice(&stamp(version, offset, len));
}

/// A page in words: from which byte on it holds which version.
fn tell(bytes: &[u8]) -> String {
    let mut runs: Vec<(usize, String)> = Vec::new();
    for (index, cell) in bytes.chunks(16).enumerate() {
        let text = match cell.first_chunk::<8>() {
            _ if cell.iter().all(|byte| *byte == 0) => "zero".to_owned(),
            Some(version) if cell.len() == 16 => {
                let page = u64::from_le_bytes(cell[8..].try_into().unwrap()) / PAGE;
                format!("{:#x} of page {page}", u64::from_le_bytes(*version))
            }
            _ => "cut".to_owned(),
        };
        if runs.last().is_none_or(|run| run.1 != text) {
            runs.push((index * 16, text));
        }
    }
    runs.iter().map(|(at, text)| format!("{at}: {text}")).collect::<Vec<_>>().join(", ")
}

impl Model {
    /// The writer reports that it begins an operation.
    pub fn begin(&mut self, op: &Op) {
        assert_eq!(self.in_progress, None);
        match op {
            Op::Write { name, write } | Op::Race { name, write } => {
                self.files.get_mut(name).unwrap().begin_write(write);
            }
            Op::Rename { from, to, .. } if self.in_doubt.contains(from) => drop(self.in_doubt.insert(to.clone())),
            _ => {}
        }
        self.in_progress = Some(op.clone());
    }

    /// The file systems fail during the operation in progress.
    pub fn doubt(&mut self) {
        self.in_doubt.extend(self.in_progress.iter().flat_map(Op::names).cloned());
    }

    /// The files in doubt.
    pub fn in_doubt(&self) -> &BTreeSet<String> {
        &self.in_doubt
    }

    /// A file that was found has been deleted since.
    pub fn forget(&mut self, name: &str) {
        self.files.remove(name);
    }

    /// The writer reports that the operation in progress has failed.
    pub fn failed(&mut self) -> Op {
        let op = self.in_progress.take().unwrap();
        self.failed.push(op.clone());
        op
    }

    /// The writer reports that the operation in progress is done.
    pub fn done(&mut self) {
        let op = self.in_progress.take().unwrap();
        let files = &mut self.files;
        match &op {
            Op::Create { .. } | Op::Put { .. } | Op::Delete { .. } | Op::Rename { .. } => change(files, &op),
            Op::Attribute { name, value } => files.get_mut(name).unwrap().attribute = Some(value.to_string()),
            Op::SetLen { name, to, .. } => files.get_mut(name).unwrap().set_len(*to),
            Op::Sync { name } | Op::Close { name } => files.get_mut(name).unwrap().synced(),
            Op::Write { name, write } => files.get_mut(name).unwrap().end_write(write),
            Op::Race { name, write } => {
                let file = files.get_mut(name).unwrap();
                let before = file.len;
                // The sync covers writes that were acknowledged before it began, and perhaps the write beside it.
                file.synced();
                file.begin_write(write);
                file.end_write(write);
                file.durable = vec![before, file.len];
            }
            Op::Open { .. } => {}
        }
    }

    /// Checks what a kill has left, and continues from there. Returns for each interrupted change of the catalog
    /// whether it has come about.
    pub fn check(&mut self, found: &BTreeMap<String, Found>) -> Result<Vec<bool>, String> {
        let ops: Vec<Op> = self.failed.drain(..).chain(self.in_progress.take()).collect();
        let mut outcomes = Vec::new();
        for op in &ops {
            if !matches!(op, Op::Create { .. } | Op::Put { .. } | Op::Delete { .. } | Op::Rename { .. }) {
                continue;
            }
            let mut after = self.files.clone();
            change(&mut after, op);
            let has_come_about = match op {
                // The names may be the same before and after it.
                Op::Put { name, .. } => found.get(name).is_some_and(|found| found.attribute == after[name].attribute),
                _ => op.names().iter().all(|name| found.contains_key(*name) == after.contains_key(*name)),
            };
            outcomes.push(has_come_about);
            if has_come_about {
                self.files = after;
            }
        }
        if !found.keys().eq(self.files.keys()) {
            let (there, names) = (found.keys(), self.files.keys());
            return Err(format!("the files are {there:?}, not {names:?}; interrupted were {ops:?}"));
        }
        for (name, file) in &self.files {
            let of_file = ops.iter().find(|op| touches(op, name));
            let leniency = (self.tears, self.in_doubt.contains(name));
            file.check(of_file, &found[name], leniency).map_err(|why| format!("{name:?} has {why}"))?;
        }
        self.files = found.iter().map(|(name, found)| (name.clone(), FileModel::found(found))).collect();
        self.tears = false;
        self.in_doubt.clear();
        Ok(outcomes)
    }

    /// Names and lengths.
    pub fn lengths(&self) -> BTreeMap<String, u64> {
        self.files.iter().map(|(name, file)| (name.clone(), file.len)).collect()
    }
}

/// Applies a change of the catalog.
fn change(files: &mut BTreeMap<String, FileModel>, op: &Op) {
    match op {
        Op::Create { name, shape } => {
            files.insert(name.clone(), FileModel::new(shape.clone()));
        }
        Op::Put { name, shape, version, len, .. } => {
            let (attribute, bytes) = (Some(version.to_string()), stamp(*version, 0, *len));
            files.insert(
                name.clone(),
                FileModel::found(&Found { shape: shape.clone(), attribute, bytes, is_cut: false }),
            );
        }
        Op::Delete { name } => {
            files.remove(name);
        }
        Op::Rename { from, to, .. } => {
            let file = files.remove(from).unwrap();
            files.insert(to.clone(), file);
        }
        _ => unreachable!("{op:?} changes no names"),
    }
}

/// Whether an operation changes the length, the content or the attribute of a file.
fn touches(op: &Op, of: &str) -> bool {
    match op {
        Op::Attribute { name, .. }
        | Op::SetLen { name, .. }
        | Op::Write { name, .. }
        | Op::Race { name, .. }
        | Op::Sync { name }
        | Op::Close { name } => name == of,
        _ => false,
    }
}
