//! States that a crash can leave on a drive: the target `log-writes` logs all writes under a writer, and an array is
//! opened on what parts of the log leave. These are prefixes that end at a flush, a FUA write or a mark, and prefixes
//! with half of the writes that a flush was to cover.
//!
//! [`Story`] is what the writer has done: after each step, which has been acknowledged, it marks the log. So after a
//! crash the array is as after the last mark, or as after the step behind it: names as a whole, records page by page.
//!
//! Non-goals: several drives, and threads; `shutdown` and the simulator have them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use iomill::{Array, ArrayOptions, File, FileOptions, PutOptions};

use super::dm::{self, Mapped};
use super::replay::{Images, Log};
use super::{MIB, PAGE, bytes_of};
use crate::memory::kernel::run;
use crate::{Random, Result, check};

/// A record crosses pages and ends within one.
const RECORD: u64 = 3072;
/// The files of records, the second one with sums.
const FILES: [&str; 2] = ["records", "records with sums"];
const NAMES: [&str; 5] = ["a", "b", "c", "deep/d", "deep/e"];

/// Steps of an opening.
const STEPS: u64 = 24;

/// Where the array is, and how much of the log is looked at.
struct Ground {
    kind: &'static str,
    bytes: u64,
    cache_bytes: u64,
    openings: u64,
    /// The most prefixes, and the most of those with half of their last writes.
    prefixes: usize,
    halves: usize,
}

/// The bytes of a file by these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    len: u64,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        Random::of(&[self.seed, self.len]).sectors(self.len)
    }
}

/// What the array has after a step.
#[derive(Clone, Debug, Default)]
struct Moment {
    names: BTreeMap<String, Content>,
    /// The versions of the records of each file.
    records: [Vec<u64>; 2],
}

struct Story {
    random: Random,
    /// By the number of marks: nothing at first, then the array without names and records.
    moments: Vec<Moment>,
}

/// What was looked at.
#[derive(Debug, Default)]
struct Tally {
    prefixes: usize,
    halves: usize,
    before_the_array: usize,
    /// Names as before the step without a mark, and as after it, where it changed some.
    names: [usize; 2],
    /// Pieces of records, likewise.
    pieces: [usize; 2],
}

pub fn checks() -> Result<()> {
    let ext4 = Ground { kind: "ext4", bytes: 64 * MIB, cache_bytes: 0, openings: 3, prefixes: 100, halves: 30 };
    let xfs = Ground { kind: "xfs", bytes: 320 * MIB, cache_bytes: MIB, openings: 2, prefixes: 20, halves: 10 };
    check_ground(&ext4)?;
    if Path::new("/bin/mkfs.xfs").exists() {
        check_ground(&xfs)?;
    }
    Ok(())
}

fn check_ground(ground: &Ground) -> Result<()> {
    let mapped = Mapped::new("logged", dm::drive("logged")?, ground.bytes)?;
    mapped.format(ground.kind)?;
    let images = Images::new(&mapped.device(), ground.bytes)?;
    let log = dm::drive("log")?;
    mapped.set(&mapped.logged(&log))?;
    mapped.mount(ground.kind, "rw")?;
    let mut story = Story { random: Random(5), moments: vec![Moment::default()] };
    for opening in 0..ground.openings {
        story.run(&mapped, ground, opening)?;
    }
    dm::unmount(&mapped.place())?;
    mapped.remove()?;
    replay(ground, &mut story, &Log::read(&log)?, &images)
}

impl Story {
    /// Opens the array, does steps, and closes it.
    fn run(&mut self, mapped: &Mapped, ground: &Ground, opening: u64) -> Result<()> {
        let options = ArrayOptions::new().cache_bytes(ground.cache_bytes);
        let array = if opening == 0 { options.create([mapped.place()])? } else { options.open(mapped.place())? };
        let mut files = Vec::new();
        for (name, has_sums) in FILES.into_iter().zip([false, true]) {
            let shape = FileOptions::new().block_bytes(PAGE as u32).checksums(has_sums);
            files.push(array.open_or_create_file(name, &shape)?);
        }
        if opening == 0 {
            self.mark(mapped, Moment::default())?;
        }
        for _ in 0..STEPS {
            let next = self.step(&array, &files)?;
            self.mark(mapped, next)?;
        }
        drop(files);
        Ok(array.close()?)
    }

    /// Says in the log that all of this is acknowledged.
    fn mark(&mut self, mapped: &Mapped, moment: Moment) -> Result<()> {
        let number = self.moments.len();
        self.moments.push(moment);
        run("dmsetup", &["message", mapped.name, "0", "mark", &number.to_string()])
    }

    fn step(&mut self, array: &Array, files: &[File]) -> Result<Moment> {
        let mut next = self.moments.last().cloned().unwrap_or_default();
        let random = &mut self.random;
        let name = NAMES[random.below(NAMES.len() as u64) as usize];
        let other = NAMES.into_iter().find(|other| *other != name && next.names.contains_key(*other));
        match (random.below(8), next.names.contains_key(name), other) {
            (0, false, _) => {
                array.create_file(name, &FileOptions::new())?.close()?;
                next.names.insert(name.to_owned(), Content { seed: 0, len: 0 });
            }
            (0, true, _) => {
                array.delete(name)?;
                next.names.remove(name);
            }
            (1, _, Some(other)) => {
                array.rename(other, name)?;
                let content = next.names.remove(other).ok_or("a name without content")?;
                next.names.insert(name.to_owned(), content);
            }
            (1..=3, ..) => {
                let len = if random.below(3) == 0 { 70_000 + random.below(90_000) } else { random.below(4 * PAGE) };
                let content = Content { seed: self.moments.len() as u64, len };
                let shape = FileOptions::new().checksums(random.below(2) == 0);
                array.put(name, &content.bytes(), &PutOptions::new().file(shape))?;
                next.names.insert(name.to_owned(), content);
            }
            _ => write_records(random, files, &mut next, self.moments.len() as u64)?,
        }
        Ok(next)
    }

    /// Looks at the array after a crash. The two moments are those before and after the step without a mark. Returns
    /// all that it has seen.
    fn look(&self, array: &Array, marks: usize, tally: &mut Tally) -> Result<Vec<u8>> {
        let old = &self.moments[marks];
        let new = self.moments.get(marks + 1).unwrap_or(old);
        let mut seen = Vec::new();
        for (index, name) in FILES.into_iter().enumerate() {
            let bytes = bytes_of(array, name)?;
            look_at_records(index as u64, &bytes, [&old.records[index], &new.records[index]], tally)
                .map_err(|error| format!("{name}: {error}"))?;
            seen.extend(bytes);
        }
        let mut found = BTreeMap::new();
        for name in array.list("").names()? {
            if !FILES.contains(&name.as_str()) {
                found.insert(name.clone(), bytes_of(array, &name)?);
            }
        }
        let is = |moment: &Moment| {
            let same = |((name, bytes), (known, content)): ((&String, &Vec<u8>), (&String, &Content))| {
                name == known && bytes.len() as u64 == content.len && *bytes == content.bytes()
            };
            found.len() == moment.names.len() && found.iter().zip(&moment.names).all(same)
        };
        let is_old = is(old);
        check(is_old || is(new), {
            let lens: Vec<_> = found.iter().map(|(name, bytes)| (name, bytes.len())).collect();
            format!("the names are {lens:?}, and should be {:?} or {:?}", old.names, new.names)
        })?;
        if old.names != new.names {
            tally.names[usize::from(!is_old)] += 1;
        }
        seen.push(u8::from(is_old));
        Ok(seen)
    }
}

/// Writes records of both files, at most once each, appends some, and syncs.
fn write_records(random: &mut Random, files: &[File], next: &mut Moment, version: u64) -> Result<()> {
    for (index, file) in files.iter().enumerate() {
        for _ in 0..1 + random.below(6) {
            let versions = &mut next.records[index];
            let record = random.below(versions.len() as u64 + 2).min(versions.len() as u64);
            if record == versions.len() as u64 {
                versions.push(0);
            }
            if std::mem::replace(&mut versions[record as usize], version) != version {
                file.write_at(&record_bytes(index as u64, record, version), record * RECORD)?;
            }
        }
        file.sync()?;
    }
    Ok(())
}

fn record_bytes(file: u64, record: u64, version: u64) -> Vec<u8> {
    Random::of(&[file, record, version]).sectors(RECORD)
}

/// Compares what each page has of each record. A record without an old version may have zeros, or may not be there.
fn look_at_records(file: u64, bytes: &[u8], versions: [&Vec<u64>; 2], tally: &mut Tally) -> Result<()> {
    let lens = versions.map(|versions| versions.len() as u64 * RECORD);
    let len = bytes.len() as u64;
    check(lens[0] <= len && len <= lens[1], format!("{len} bytes, and there should be {} to {}", lens[0], lens[1]))?;
    let (mut at, mut record) = (0, u64::MAX);
    let (mut old, mut new) = (Vec::new(), Vec::new());
    while at < len {
        let index = at / RECORD;
        if index != record {
            record = index;
            old = versions[0]
                .get(index as usize)
                .map_or_else(|| vec![0; RECORD as usize], |v| record_bytes(file, index, *v));
            new = record_bytes(file, index, versions[1][index as usize]);
        }
        let end = (at / PAGE + 1).saturating_mul(PAGE).min((index + 1) * RECORD).min(len);
        let (piece, within) = (&bytes[at as usize..end as usize], (at % RECORD) as usize);
        let is = |known: &[u8]| piece == &known[within..within + piece.len()];
        check(is(&old) || is(&new), {
            let versions = versions.map(|versions| versions.get(index as usize));
            format!("record {index} has other bytes at {at} than those of {versions:?}")
        })?;
        if old != new {
            tally.pieces[usize::from(!is(&old))] += 1;
        }
        at = end;
    }
    Ok(())
}

/// Opens the array on what parts of the log leave.
fn replay(ground: &Ground, story: &mut Story, log: &Log, images: &Images) -> Result<()> {
    let ends = log.entries.iter().filter(|entry| entry.is_end()).count();
    let flushes = log.entries.iter().filter(|entry| entry.is_flush()).count();
    let each = [ends.div_ceil(ground.prefixes), flushes.div_ceil(ground.halves)];
    let (mut marks, mut counts, mut tally, mut on_their_way) = (0, [0, 0], Tally::default(), Vec::new());
    let mut random = Random(9);
    let is_due = |count: &mut usize, each: usize| {
        *count += 1;
        count.is_multiple_of(each)
    };
    for (index, entry) in log.entries.iter().enumerate() {
        if !entry.is_end() {
            on_their_way.push(entry);
            continue;
        }
        if entry.is_flush() && !on_their_way.is_empty() && is_due(&mut counts[1], each[1]) {
            let image = images.copy(log, &on_their_way, &mut random)?;
            let what = format!("the first {} entries and half of {}", index - on_their_way.len(), on_their_way.len());
            check_image(ground, story, marks, image, &mut tally)
                .map_err(|error| told(ground, &what, marks, &*error))?;
            tally.halves += 1;
        }
        images.apply(log, on_their_way.drain(..).chain([entry]))?;
        if let Some(number) = entry.mark.as_deref().and_then(|mark| mark.parse().ok()) {
            marks = number;
        }
        if is_due(&mut counts[0], each[0]) {
            let image = images.copy(log, &[], &mut random)?;
            let what = format!("the first {} entries", index + 1);
            check_image(ground, story, marks, image, &mut tally)
                .map_err(|error| told(ground, &what, marks, &*error))?;
            tally.prefixes += 1;
        }
    }
    println!(
        "ok: log-writes, {}, cache of {} bytes: {} steps, {} entries with {} MiB; {} prefixes (each {}. of {ends} \
         flushes, FUA writes and marks) and {} with half of the writes before each {}. flush; {} before the array was \
         there; names before and after a step {:?}, pieces of records {:?}",
        ground.kind,
        ground.cache_bytes,
        story.moments.len() - 1,
        log.entries.len(),
        log.bytes / MIB,
        tally.prefixes,
        each[0],
        tally.halves,
        each[1],
        tally.before_the_array,
        tally.names,
        tally.pieces
    );
    let is_seen = tally.names.iter().chain(&tally.pieces).all(|count| *count > 0);
    check(is_seen, "no prefix has a step in the middle, so the log proves little")
}

fn told(ground: &Ground, what: &str, marks: usize, error: &dyn std::error::Error) -> String {
    format!("log-writes, {}: {what}, after mark {marks}: {error}", ground.kind)
}

/// Mounts an image, which the file system repairs, and checks the array there.
fn check_image(ground: &Ground, story: &Story, marks: usize, image: &Path, tally: &mut Tally) -> Result<()> {
    let place = Path::new("/mnt/image");
    fs::create_dir_all(place)?;
    run("mount", &["-t", ground.kind, "-o", "loop", &image.to_string_lossy(), &place.to_string_lossy()])?;
    let checked = match marks {
        // The array was not there yet: its drive is free, or has it without files.
        0 => ArrayOptions::new().cache_bytes(0).open_or_create([place]).and_then(Array::close).map_err(Into::into),
        _ => check_array(story, marks, place, tally),
    };
    tally.before_the_array += usize::from(marks == 0);
    dm::unmount(place)?;
    checked
}

/// A reader sees an allowed state, and so do a repair and a writer after it. The array takes changes, and is well then.
fn check_array(story: &Story, marks: usize, place: &Path, tally: &mut Tally) -> Result<()> {
    let open = |read_only| ArrayOptions::new().cache_bytes(0).read_only(read_only).open(place);
    let reader = open(true).map_err(|error| format!("as a reader: {error}"))?;
    let seen = story.look(&reader, marks, tally).map_err(|error| format!("as a reader: {error}"))?;
    reader.close()?;
    if story.moments.len() % 2 == marks % 2 {
        let report = Array::repair([place])?;
        check(report.is_clean(), format!("a repair leaves {:?}", report.problems))?;
    }
    let writer = open(false).map_err(|error| format!("as a writer: {error}"))?;
    let again = story.look(&writer, marks, &mut Tally::default()).map_err(|error| format!("as a writer: {error}"))?;
    check(seen == again, "a writer sees other bytes than the reader before it")?;
    for name in FILES {
        let file = writer.open_file(name)?;
        file.write_at(b"later", 0)?;
        file.sync()?;
    }
    writer.put("later", &[7; 9000], &PutOptions::new())?;
    writer.close()?;
    let report = Array::check([place])?;
    check(report.is_clean(), format!("after a writer there are problems: {:?}", report.problems))?;
    let reader = open(true)?;
    check(bytes_of(&reader, "later")? == [7; 9000], "what was put after the crash is lost")?;
    for scrubbed in reader.scrub("") {
        let scrubbed = scrubbed?;
        check(scrubbed.damage.is_empty(), format!("a scrub finds {:?}", scrubbed.damage))?;
    }
    Ok(reader.close()?)
}
