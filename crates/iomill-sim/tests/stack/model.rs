//! Random calls of every kind against byte vectors. The drives are slow, out of order, short and interrupted, but lose
//! nothing. Every result is exactly that of the vectors.

use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use fastrand::Rng;
use iomill::{Array, Draft, Error, File, PutOptions, When};
use iomill_sim::{Rates, World};

use super::harness::{
    Memory, Round, assert_same, assert_tidy, bytes, file_options, length, machine, offset, open, rounds,
};

/// Files stay below this length, to save time.
const LONGEST: usize = 3 << 20;

/// Seeds that once showed a bug.
const ONCE_FAILED: &[u64] = &[1585607345560382201, 16215405917962696955, 1262797369977649338, 11076348095598851521];

#[test]
fn every_call_does_what_a_vector_does() {
    rounds("every_call_does_what_a_vector_does", 100, ONCE_FAILED, run);
}

fn run(round: &mut Round) {
    let array = machine(round);
    let mut rates = Rates::default();
    if round.rng.bool() {
        rates = Rates { short_read: 100, short_write: 100, interrupted: 100, ..rates };
    }
    round.world.faults(|faults| faults.rates = rates);
    let (rng, world) = (&mut round.rng, &round.world);
    let mut model = Model { array: Some(array), files: Vec::new(), names: 0, draft: None };
    for _ in 0..rng.usize(20..80) {
        model.step(rng, world);
        assert_eq!(world.violations(), Vec::<String>::new());
    }
    model.assert_no_page_is_lost();
    model.reopen(rng, world);
    for index in 0..model.files.len() {
        model.compare(rng, index);
    }
    model.assert_no_page_is_lost();
    model.files.clear();
    model.array.take().unwrap().close().unwrap();
    assert_tidy(world);
}

/// One file and the bytes that it should hold.
pub struct Twin {
    pub name: String,
    pub bytes: Vec<u8>,
    /// `None` while the file is closed.
    pub file: Option<File>,
}

struct Model {
    array: Option<Array>,
    files: Vec<Twin>,
    names: u64,
    /// A draft, and its content.
    draft: Option<(Draft, Vec<u8>)>,
}

impl Model {
    fn array(&self) -> Array {
        self.array.clone().unwrap()
    }

    fn step(&mut self, rng: &mut Rng, world: &World) {
        if self.files.is_empty() || (self.files.len() < 4 && rng.u8(0..15) == 0) {
            return self.create(rng);
        }
        let index = rng.usize(0..self.files.len());
        match rng.u8(0..46) {
            40 => self.put(rng, index),
            41 => self.copy(rng, index),
            42..46 => self.draft(rng, index),
            0 => self.reopen(rng, world),
            1 => self.close(rng, index),
            2 => self.rename(rng, index),
            3 => self.delete(rng, index),
            4 => self.look(index),
            5 => self.compare(rng, index),
            _ => {
                let array = self.array();
                let twin = &mut self.files[index];
                let file = twin.file.get_or_insert_with(|| array.open_file(&twin.name).unwrap()).clone();
                let file = if rng.u8(0..8) == 0 { file.background() } else { file };
                call(rng, &array, &file, &mut twin.bytes);
                assert_eq!(file.len(), twin.bytes.len() as u64);
            }
        }
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("dir/file {}", self.names)
    }

    fn create(&mut self, rng: &mut Rng) {
        let (array, name) = (self.array(), self.new_name());
        let drives = array.info().unwrap().drives.len();
        let file = array.create_file(&name, &file_options(rng, drives)).unwrap();
        assert!(matches!(array.create_file(&name, &file_options(rng, drives)), Err(Error::Exists { .. })));
        self.files.push(Twin { name, bytes: Vec::new(), file: Some(file) });
    }

    fn close(&mut self, rng: &mut Rng, index: usize) {
        if let Some(file) = self.files[index].file.take()
            && rng.bool()
        {
            file.close().unwrap();
        }
    }

    fn reopen(&mut self, rng: &mut Rng, world: &World) {
        let array = self.array.take().unwrap();
        for twin in &mut self.files {
            if rng.bool() {
                twin.file = None;
            }
        }
        self.draft = None;
        array.close().unwrap();
        for twin in &mut self.files {
            if let Some(file) = twin.file.take() {
                assert!(matches!(file.read_at(&mut [0], 0), Err(Error::Closed)));
                assert!(matches!(file.set_len(0), Err(Error::Closed)));
                assert!(matches!(file.sync(), Err(Error::Closed)));
            }
        }
        assert_tidy(world);
        self.array = Some(open(rng, world).unwrap());
    }

    fn rename(&mut self, rng: &mut Rng, index: usize) {
        let (array, to) = (self.array(), self.new_name());
        let victim = rng.usize(0..self.files.len());
        let over = victim != index && rng.bool();
        let to = if over { self.files[victim].name.clone() } else { to };
        array.rename(&self.files[index].name, &to).unwrap();
        self.files[index].name = to;
        if over {
            leave(rng, self.files.remove(victim));
        }
    }

    fn delete(&mut self, rng: &mut Rng, index: usize) {
        let (array, twin) = (self.array(), self.files.swap_remove(index));
        array.delete(&twin.name).unwrap();
        assert!(matches!(array.open_file(&twin.name), Err(Error::NotFound { .. })));
        leave(rng, twin);
    }

    /// A name for a new content, on a condition that holds. Before, conditions that do not hold are refused.
    fn place(&mut self, rng: &mut Rng, index: usize, refused: impl Fn(&Array, &str, When) -> Error) -> (String, When) {
        let (array, new) = (self.array(), self.new_name());
        let name = if rng.bool() { self.files[index].name.clone() } else { new.clone() };
        let is_taken = name != new;
        if is_taken {
            assert!(matches!(refused(&array, &name, When::Absent), Error::Exists { .. }));
        }
        let version = is_taken.then(|| array.stat(&name).unwrap().version);
        let wrong = version.unwrap_or(0) + 1;
        let Error::Conflict { expected, found, .. } = refused(&array, &name, When::Version(wrong)) else {
            panic!("a wrong version was replaced");
        };
        assert_eq!((expected, found), (wrong, version));
        let holds = version.map_or(When::Absent, When::Version);
        (name, if rng.bool() { When::Always } else { holds })
    }

    /// A file has got a name with all its content. One that had the name lives on in its handle.
    fn has_name(&mut self, rng: &mut Rng, name: &str, bytes: Vec<u8>, file: Option<File>) {
        let taken = self.files.iter().position(|twin| twin.name == name);
        self.files.push(Twin { name: name.to_owned(), bytes, file });
        if let Some(taken) = taken {
            leave(rng, self.files.swap_remove(taken));
        }
    }

    fn put(&mut self, rng: &mut Rng, index: usize) {
        let len = length(rng);
        let (array, content) = (self.array(), bytes(rng, len));
        let options = PutOptions::new().file(file_options(rng, array.info().unwrap().drives.len())).attribute("a", "b");
        let (name, when) = self.place(rng, index, |array, name, when| {
            array.put(name, b"refused", &options.clone().when(when)).unwrap_err()
        });
        let stat = array.put(&name, &content, &options.when(when)).unwrap();
        assert_eq!((stat.len_bytes, stat.attributes["a"].as_str()), (len as u64, "b"));
        assert_eq!(array.stat(&name).unwrap().version, stat.version);
        self.has_name(rng, &name, content, None);
    }

    fn copy(&mut self, rng: &mut Rng, index: usize) {
        let (array, from) = (self.array(), rng.usize(0..self.files.len()));
        let (from, content) = (self.files[from].name.clone(), self.files[from].bytes.clone());
        let (to, when) = self.place(rng, index, |array, name, when| array.copy(&from, name, when).unwrap_err());
        let attributes = array.stat(&from).unwrap().attributes;
        let stat = array.copy(&from, &to, when).unwrap();
        assert_eq!((stat.len_bytes, stat.attributes), (content.len() as u64, attributes));
        self.has_name(rng, &to, content, None);
    }

    /// Makes a draft, calls it, publishes it, or drops it.
    fn draft(&mut self, rng: &mut Rng, index: usize) {
        let array = self.array();
        let drives = array.info().unwrap().drives.len();
        let (draft, mut content) =
            self.draft.take().unwrap_or_else(|| (array.draft(&file_options(rng, drives)).unwrap(), Vec::new()));
        if rng.bool() {
            call(rng, &array, draft.file(), &mut content);
            assert_eq!(draft.file().len(), content.len() as u64);
            if rng.u8(0..4) > 0 {
                self.draft = Some((draft, content));
            }
            return;
        }
        let (name, when) = self.place(rng, index, |_, name, when| draft.publish(name, when).unwrap_err());
        let stat = draft.publish(&name, when).unwrap();
        assert_eq!((stat.len_bytes, stat.version), (content.len() as u64, draft.version()));
        assert_eq!(draft.file().name(), name);
        assert!(matches!(draft.publish("again", When::Always), Err(Error::Invalid { .. })));
        let file = rng.bool().then(|| draft.file().clone());
        self.has_name(rng, &name, content, file);
    }

    /// Every page is free, or a record names it, or an open file has it.
    fn assert_no_page_is_lost(&mut self) {
        self.files.iter_mut().for_each(|twin| twin.file = None);
        self.draft = None;
        assert_eq!(self.array().unnamed_pages(), 0);
    }

    fn look(&mut self, index: usize) {
        let array = self.array();
        let mut names: Vec<String> = self.files.iter().map(|twin| twin.name.clone()).collect();
        names.sort();
        assert_eq!(array.list("").names().unwrap(), names);
        let twin = &self.files[index];
        assert_eq!(array.stat(&twin.name).unwrap().len_bytes, twin.bytes.len() as u64);
        let value = twin.bytes.len().to_string();
        array.set_attribute(&twin.name, "length", Some(&value)).unwrap();
        assert_eq!(array.stat(&twin.name).unwrap().attributes["length"], value);
    }

    /// Reads a whole file.
    fn compare(&mut self, rng: &mut Rng, index: usize) {
        let array = self.array();
        let twin = &mut self.files[index];
        let file = twin.file.get_or_insert_with(|| array.open_file(&twin.name).unwrap());
        let mut memory = Memory::new(rng, twin.bytes.len() + 10);
        let read = file.read_at(memory.get_mut(), 0).unwrap();
        assert_same(&memory.get()[..read], &twin.bytes, || format!("{:?}", twin.name));
    }
}

/// A file that lost its name: its handle keeps the whole content until it is closed.
fn leave(rng: &mut Rng, mut twin: Twin) {
    let Some(file) = twin.file.take() else { return };
    write_at(rng, &file, &mut twin.bytes);
    let mut memory = Memory::new(rng, twin.bytes.len() + 10);
    let read = file.read_at(memory.get_mut(), 0).unwrap();
    assert_same(&memory.get()[..read], &twin.bytes, || format!("{:?} without its name", twin.name));
    if rng.bool() {
        file.close().unwrap();
    }
}

/// Puts `new` at `offset` of a vector, like a write to a file.
pub fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if new.is_empty() {
        return;
    }
    bytes.resize(bytes.len().max(offset + new.len()), 0);
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

fn call(rng: &mut Rng, array: &Array, file: &File, model: &mut Vec<u8>) {
    match rng.u8(0..16) {
        0 | 1 => read_at(rng, file, model),
        2 | 3 => write_at(rng, file, model),
        4 => read_vectored(rng, file, model),
        5 => write_vectored(rng, file, model),
        6 => read_many(rng, file, model),
        7 => write_many(rng, file, model),
        8 => read_ranges(rng, file, model),
        9 => write_ranges(rng, file, model),
        10 => set_len(rng, file, model),
        11 => file.sync().unwrap(),
        12 => cursor(rng, file, model),
        13 => file.preallocate(rng.u64(0..LONGEST as u64)).unwrap(),
        14 => registered(rng, array, file, model),
        _ => super::futures::mixed(rng, array, file, model),
    }
}

/// An offset for a write of `len` bytes.
fn place(rng: &mut Rng, model: &[u8], len: usize) -> usize {
    let end = if rng.u8(0..4) == 0 { model.len() + 200_000 } else { model.len() };
    offset(rng, end.min(LONGEST - len))
}

fn read_at(rng: &mut Rng, file: &File, model: &[u8]) {
    let (at, len) = (offset(rng, model.len() + 5000), length(rng));
    let mut memory = Memory::new(rng, len);
    let read = file.read_at(memory.get_mut(), at as u64).unwrap();
    let wanted = &model[at.min(model.len())..(at + len).min(model.len()).max(at.min(model.len()))];
    assert_same(&memory.get()[..read], wanted, || format!("read_at {at}, {len}"));
    memory.check();
}

fn write_at(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let len = length(rng);
    let (at, new) = (place(rng, model, len), bytes(rng, len));
    let memory = Memory::holding(rng, &new);
    file.write_at(memory.get(), at as u64).unwrap();
    memory.check();
    put(model, at, &new);
}

fn memories(rng: &mut Rng) -> Vec<Memory> {
    (0..rng.usize(0..6))
        .map(|_| {
            let len = length(rng).min(50_000);
            Memory::new(rng, len)
        })
        .collect()
}

fn read_vectored(rng: &mut Rng, file: &File, model: &[u8]) {
    let mut memories = memories(rng);
    let at = offset(rng, model.len());
    let mut slices: Vec<IoSliceMut> = memories.iter_mut().map(|memory| IoSliceMut::new(memory.get_mut())).collect();
    let read = file.read_vectored_at(&mut slices, at as u64).unwrap();
    let all: Vec<u8> = memories.iter().flat_map(|memory| memory.get().to_vec()).collect();
    let end = (at + all.len()).min(model.len());
    assert_same(&all[..read], &model[at..end], || format!("read_vectored_at {at}"));
    memories.iter().for_each(Memory::check);
}

fn write_vectored(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let mut memories = memories(rng);
    memories.iter_mut().for_each(|memory| rng.fill(memory.get_mut()));
    let all: Vec<u8> = memories.iter().flat_map(|memory| memory.get().to_vec()).collect();
    let at = place(rng, model, all.len());
    let slices: Vec<IoSlice> = memories.iter().map(|memory| IoSlice::new(memory.get())).collect();
    file.write_vectored_at(&slices, at as u64).unwrap();
    put(model, at, &all);
}

/// Offsets of records, and their length. With `apart` the records do not overlap.
fn records(rng: &mut Rng, end: usize, apart: bool) -> (Vec<u64>, usize) {
    let len = [1, 37, 512, 768, 4096, 5000, 16384, 40_000][rng.usize(0..8)];
    if end < len {
        return (Vec::new(), len);
    }
    let shift = if rng.bool() { 0 } else { rng.usize(0..=(end - len).min(len)) };
    let slots = (end - shift) / len;
    let mut offsets: Vec<u64> = if apart {
        let step = slots.div_ceil(80).max(1);
        (0..slots).step_by(step).map(|slot| (shift + slot * len) as u64).collect()
    } else {
        (0..rng.usize(0..80)).map(|_| offset(rng, end - len) as u64).collect()
    };
    rng.shuffle(&mut offsets);
    offsets.truncate(rng.usize(0..=offsets.len()));
    (offsets, len)
}

fn read_many(rng: &mut Rng, file: &File, model: &[u8]) {
    let (offsets, len) = records(rng, model.len(), false);
    let mut memory = Memory::new(rng, offsets.len() * len);
    file.read_many(memory.get_mut(), &offsets, len).unwrap();
    let wanted: Vec<u8> = offsets.iter().flat_map(|&at| model[at as usize..][..len].to_vec()).collect();
    assert_same(memory.get(), &wanted, || format!("read_many of {len} bytes"));
    memory.check();
    let beyond = file.read_many(&mut [0], &[model.len() as u64], 1);
    assert!(matches!(beyond, Err(Error::Invalid { .. })));
}

fn write_many(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let end = model.len() + rng.usize(0..100_000);
    let (offsets, len) = records(rng, end.min(LONGEST), true);
    let new = bytes(rng, offsets.len() * len);
    let memory = Memory::holding(rng, &new);
    file.write_many(memory.get(), &offsets, len).unwrap();
    offsets.iter().zip(new.chunks(len)).for_each(|(&at, record)| put(model, at as usize, record));
}

fn read_ranges(rng: &mut Rng, file: &File, model: &[u8]) {
    let ranges: Vec<(u64, usize)> = (0..rng.usize(0..20))
        .map(|_| {
            let at = offset(rng, model.len());
            (at as u64, length(rng).min(50_000).min(model.len() - at))
        })
        .collect();
    let mut memory = Memory::new(rng, ranges.iter().map(|range| range.1).sum());
    file.read_ranges(memory.get_mut(), &ranges).unwrap();
    let wanted: Vec<u8> = ranges.iter().flat_map(|&(at, len)| model[at as usize..][..len].to_vec()).collect();
    assert_same(memory.get(), &wanted, || format!("read_ranges {ranges:?}"));
    memory.check();
}

/// Ranges one after the other, with gaps between some of them, in random order.
pub fn apart(rng: &mut Rng, end: usize) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..rng.usize(2..16)).map(|_| offset(rng, end)).collect();
    cuts.sort_unstable();
    let mut ranges: Vec<(usize, usize)> = cuts.windows(2).map(|cut| (cut[0], (cut[1] - cut[0]).min(60_000))).collect();
    rng.shuffle(&mut ranges);
    ranges.truncate(rng.usize(1..=ranges.len()));
    ranges
}

fn write_ranges(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let ranges = apart(rng, (model.len() + 100_000).min(LONGEST));
    let new = bytes(rng, ranges.iter().map(|range| range.1).sum());
    let given: Vec<(u64, usize)> = ranges.iter().map(|&(at, len)| (at as u64, len)).collect();
    let memory = Memory::holding(rng, &new);
    file.write_ranges(memory.get(), &given).unwrap();
    let mut rest = &new[..];
    for (at, len) in ranges {
        put(model, at, &rest[..len]);
        rest = &rest[len..];
    }
}

fn set_len(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let len = match rng.u8(0..6) {
        0 => 0,
        1 | 2 => (model.len() + rng.usize(0..300_000)).min(LONGEST),
        _ => offset(rng, model.len()),
    };
    file.set_len(len as u64).unwrap();
    model.resize(len, 0);
}

fn cursor(rng: &mut Rng, file: &File, model: &mut Vec<u8>) {
    let mut ours = file.cursor();
    let mut theirs = std::io::Cursor::new(std::mem::take(model));
    for _ in 0..rng.usize(1..6) {
        let end = theirs.get_ref().len();
        let to = match rng.u8(0..3) {
            0 => SeekFrom::Start(offset(rng, end) as u64),
            1 => SeekFrom::End(-(rng.usize(0..=end) as i64)),
            _ => SeekFrom::Current(rng.i64(-100..100)),
        };
        match theirs.seek(to) {
            Ok(position) => assert_eq!(ours.seek(to).unwrap(), position),
            Err(_) => assert!(ours.seek(to).is_err()),
        }
        if rng.bool() {
            let (mut got, mut wanted) = (vec![0; length(rng)], Vec::new());
            Read::by_ref(&mut theirs).take(got.len() as u64).read_to_end(&mut wanted).unwrap();
            let read = ours.read(&mut got).unwrap();
            assert_same(&got[..read], &wanted, || "cursor".to_owned());
        } else {
            let count = rng.usize(0..3000);
            let new = bytes(rng, count);
            ours.write_all(&new).unwrap();
            // An empty write past the end leaves a file as it is. The cursor of std would make the vector longer.
            if !new.is_empty() {
                theirs.write_all(&new).unwrap();
            }
        }
    }
    *model = theirs.into_inner();
}

/// Reads and writes in memory that is registered with the engines.
fn registered(rng: &mut Rng, array: &Array, file: &File, model: &mut Vec<u8>) {
    let mut buffer = array.buffer(64 << 10).unwrap();
    for _ in 0..rng.usize(1..4) {
        let from = offset(rng, buffer.len());
        let len = rng.usize(0..=buffer.len() - from);
        let at = place(rng, model, len);
        let slice = &mut buffer[from..from + len];
        if rng.bool() {
            rng.fill(slice);
            file.write_at(slice, at as u64).unwrap();
            put(model, at, slice);
        } else {
            let read = file.read_at(slice, at as u64).unwrap();
            let wanted = &model[at.min(model.len())..(at + len).min(model.len()).max(at.min(model.len()))];
            assert_same(&slice[..read], wanted, || format!("registered memory at {at}"));
        }
    }
}
