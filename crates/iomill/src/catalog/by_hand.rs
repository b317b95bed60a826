//! The catalog by hand: all of it as text, and a text as the new catalog (`iomill catalog export` and `import`).
//!
//! Goals: a text is checked as a whole before anything changes, and takes effect at one moment. An array with a damaged
//! log takes a text, too. Non-goals: the bytes of files.
//!
//! Rules of the import:
//! 1. Labels of the next epoch leave one voter. What all voters together have of the log is first copied to that voter.
//!    The next writer makes the other copies anew (C15).
//! 2. On that voter the new segment and the new checkpoint have higher numbers than all existing ones. The checkpoint
//!    gets its name last. From then on it is the newest one, and earlier files of the log have no effect (C31). Before
//!    that nothing has changed.
//! 3. No number is given twice (C24): new files have numbers above those of the text, of the old catalog, and of all
//!    parts that lie on the drives.

use std::path::PathBuf;
use std::sync::Arc;

use super::journal::checkpoint::{CheckpointWriter, Start, checkpoint_header};
use super::journal::{NUMBERS_AFTER_CRASH, read_files};
use super::label::Signature;
use super::log::compare::Nothing;
use super::log::group::OpeningId;
use super::log::header::{BLOCK_BYTES, Features, FileHeader, FileKind, LogPosition};
use super::log::mend::{bring_up, make_first};
use super::log::merged::{Merged, Voter};
use super::log::place::LogFiles;
use super::log::writer::{Announce, first_group};
use super::open::{FIRST_SEGMENT_BYTES, Opening, beside_writer, lock_array};
use super::state::files::{Files, NUMBERS_END};
use super::text_form;
use super::{Catalog, Id, OpenMode};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};

/// All that the log of the array says, as text. It takes no lock, so it can run beside a writer.
pub fn export(platform: &Arc<dyn Platform>, starts: &[PathBuf]) -> Result<String> {
    beside_writer(|| {
        let (array, locks) = lock_array(&**platform, starts, OpenMode::Peek, Signature::Required)?;
        let opening = Opening::new(platform, OpenMode::Peek, array, locks, Signature::Required)?;
        Ok(text_form::export(opening.body().array, &opening.read_files()?))
    })
}

/// Replaces the catalog by the one in a text, and returns the number of its files. The array must not be open
/// elsewhere.
pub fn import(platform: &Arc<dyn Platform>, starts: &[PathBuf], text: &str) -> Result<usize> {
    let (array, locks) = lock_array(&**platform, starts, OpenMode::Writer, Signature::Required)?;
    let mut opening = Opening::new(platform, OpenMode::Writer, array, locks, Signature::Required)?;
    let body = opening.body();
    let imported = text_form::import(text, body.drives.len())?;
    if imported.array != body.array {
        let why = format!("it is of array {}, and the drives are of array {}", imported.array, body.array);
        return Err(Error::invalid("the catalog's text", why));
    }
    let keeps = ruling_copy(&opening, body.array)?;
    if body.voters != [keeps.drive as u16] {
        let failed = opening.labels.announce(body.epoch + 1, &[keeps.drive]);
        if !failed.is_empty() {
            let path = keeps.fs.location().to_owned();
            return Err(Error::drive(path, "its label could not be written, so nothing was imported"));
        }
    }
    let known = Known::of(&opening, &keeps)?;
    replace(&**platform, &keeps, body.array, &imported.files, &known)?;
    opening.close()?;
    // This writer makes the other copies.
    Catalog::open(platform, starts, OpenMode::Writer)?.close()?;
    Ok(imported.files.len())
}

/// The voter that keeps its copy: the one with the last group, brought up to what all voters have together (rule 1). If
/// they are no log together, one that can be read alone. If there is none, nothing is to be kept.
fn ruling_copy(opening: &Opening, array: Id) -> Result<Voter> {
    let voters = opening.voters();
    let none = || Error::drive(opening.drives()[0].path(), "its label names no voter");
    let first = voters.first().ok_or_else(none)?;
    let mut merged = Merged::list(&voters, array, true)?;
    if let Ok(end) = merged.read(&mut Nothing) {
        // A copy that can be read may have lost its last group.
        let keeps = merged.preferred_voter().clone();
        bring_up(&mut merged, &end, &keeps, false)?;
        return Ok(keeps);
    }
    let is_good = |voter: &&Voter| read_files(std::slice::from_ref(*voter), array).is_ok();
    Ok(voters.iter().find(is_good).unwrap_or(first).clone())
}

/// The numbers of the catalog that a text replaces.
struct Known {
    /// The epoch of the labels, and the opening in use. The new log has them.
    writer: (u64, OpeningId),
    /// No group that the drives know of has a higher number.
    sequence: u64,
    /// No file has had this number, as far as that is known (rule 3).
    next_number: u64,
}

impl Known {
    fn of(opening: &Opening, voter: &Voter) -> Result<Known> {
        let body = opening.body();
        let old = read_files(std::slice::from_ref(voter), body.array).ok();
        let (in_use, proven) = opening.in_use()?;
        let sequence = old.as_ref().map_or(0, |(_, end)| end.sequence).max(proven);
        let next_number = old.map_or(0, |(files, end)| {
            let after_crash = if end.is_closed { 0 } else { NUMBERS_AFTER_CRASH };
            // An impossible number is as good as none.
            let next = files.next_number();
            if next < NUMBERS_END { next + after_crash } else { 0 }
        });
        Ok(Known { writer: (body.epoch, in_use), sequence, next_number })
    }
}

/// Rule 2.
fn replace(platform: &dyn Platform, voter: &Voter, array: Id, files: &Files, known: &Known) -> Result<()> {
    let there = LogFiles::list(&*voter.fs)?;
    let sequence = known.sequence.max(there.checkpoints.last().copied().unwrap_or(0)) + 1;
    let segment = there.segments.last().copied().unwrap_or(0) + 1;
    let mut salts = [0; 16];
    super::id::fill_random(platform, &mut salts)?;
    let salt = |at: usize| u64::from_le_bytes(salts[at..at + 8].try_into().unwrap_or_default());
    let kind = FileKind::Segment { bytes: FIRST_SEGMENT_BYTES };
    let header = FileHeader { kind, array, number: segment, salt: salt(0), features: Features::default() };
    // The log is closed, as that of a new array.
    let (epoch, in_use) = known.writer;
    make_first(&voter.fs, &header, &first_group(&header, sequence + 1, epoch, in_use).0)?;
    let position = LogPosition { segment, offset: BLOCK_BYTES };
    let start = Start { sequence, checksum: 0, position };
    let checkpoint = checkpoint_header(array, sequence, salt(8));
    let (mut writer, mut failures) =
        CheckpointWriter::begin(checkpoint, std::iter::once(voter.clone()), start, known.writer);
    let mut is_last = false;
    while failures.is_empty() && !is_last {
        is_last = writer.copy(files, 1 << 20);
        failures = writer.write();
    }
    if failures.is_empty() {
        // Without the old catalog it is not known which numbers it has given.
        let unknown = if known.next_number == 0 { NUMBERS_AFTER_CRASH } else { 0 };
        let next = files.next_number().saturating_add(unknown).max(known.next_number);
        failures = writer.finish(next, sequence);
    }
    match failures.pop() {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::FileSpec;
    use crate::catalog::store::LOG;
    use crate::catalog::tests::world::{Fault, Loss, World};
    use crate::layout::Layout;

    fn starts() -> Vec<PathBuf> {
        vec!["/d0".into()]
    }

    fn spec() -> FileSpec {
        FileSpec { layout: Layout::Striping, block_bytes: 4096, drives: vec![0], key: 7, weights: None, sums: false }
    }

    fn names(world: &World) -> Vec<String> {
        let catalog = Catalog::open(&world.platform(), &starts(), OpenMode::Reader).unwrap();
        let names = catalog.list("");
        catalog.close().unwrap();
        names
    }

    /// An array with the files `old`, and the text of one with `old` and `new`.
    fn prepared(drives: usize) -> (World, String) {
        let world = World::new(drives);
        let paths: Vec<PathBuf> = (0..drives).map(|drive| format!("/d{drive}").into()).collect();
        let catalog = Catalog::create(&world.platform(), &paths, &[], None).unwrap();
        catalog.create_file("old", &spec()).unwrap();
        catalog.close().unwrap();
        drop(catalog);
        let text = export(&world.platform(), &starts()).unwrap();
        let line = text.lines().find(|line| line.starts_with("file ")).unwrap();
        let both = format!("{line}\n{}", line.replace("file 1 ", "file 77 ").replace(" old", " new"));
        (world, text.replace(line, &both).replace("end 1", "end 2"))
    }

    #[test]
    fn a_text_takes_effect_as_a_whole_at_any_crash() {
        for drives in [1, 3] {
            let (mut olds, mut news) = (0, 0);
            for at in 1.. {
                let (world, text) = prepared(drives);
                world.arm(|at| Fault::Crash { at }, at);
                let imported = import(&world.platform(), &starts(), &text);
                let struck = world.disarm();
                world.crash(if at % 3 == 0 { Loss::Kill } else { Loss::Mix(at) });
                let found = names(&world);
                let is_new = found == ["new", "old"];
                assert!(is_new || found == ["old"], "operation {at}: {found:?}");
                assert!(is_new || imported.is_err(), "operation {at}");
                *(if is_new { &mut news } else { &mut olds }) += 1;
                // The next writer has all copies again, and gives no number twice.
                let catalog = Catalog::open(&world.platform(), &starts(), OpenMode::Writer).unwrap();
                assert_eq!((catalog.list(""), catalog.voters().len()), (found, drives), "operation {at}");
                catalog.create_file("another", &spec()).unwrap();
                let least = if is_new { 78 } else { 2 };
                assert!(catalog.record("another").unwrap().number >= least, "operation {at}");
                catalog.close().unwrap();
                if !struck {
                    assert_eq!(imported.unwrap(), 2);
                    break;
                }
            }
            assert!(olds > 10 && news > 1, "{olds} {news}");
        }
    }

    /// An import that was interrupted has changed nothing, even if a copy had lost the last change by rot.
    #[test]
    fn an_interrupted_import_keeps_what_only_one_copy_has() {
        for rotten in 0..2 {
            let (world, text) = prepared(2);
            let catalog = Catalog::open(&world.platform(), &starts(), OpenMode::Writer).unwrap();
            catalog.create_file("late", &spec()).unwrap();
            world.crash(Loss::Power);
            drop(catalog);
            let path =
                format!("{LOG}/{}", world.names(rotten, LOG).iter().find(|name| name.ends_with(".segment")).unwrap());
            let mut segment = world.read(rotten, &path).unwrap();
            let last = segment.iter().rposition(|byte| *byte != 0).unwrap();
            segment[last] ^= 1;
            world.put(rotten, &path, Some(&segment));
            assert_eq!(names(&world), ["late", "old"]);
            for at in 1.. {
                let world = world.fork();
                world.arm(|at| Fault::Crash { at }, at);
                let imported = import(&world.platform(), &starts(), &text);
                let struck = world.disarm();
                world.crash(Loss::Power);
                let found = names(&world);
                assert!(found == ["new", "old"] || found == ["late", "old"], "{rotten}, operation {at}: {found:?}");
                if !struck {
                    assert_eq!(imported.unwrap(), 2);
                    break;
                }
            }
        }
    }

    /// One operation fails, in the import or in the opening after it. No read that failed brings the old catalog back.
    #[test]
    fn no_failed_operation_takes_an_import_back() {
        for (drives, done) in [(1, false), (1, true), (3, false)] {
            for at in 1.. {
                let (world, text) = prepared(drives);
                world.arm(|at| Fault::Once { at, done }, at);
                let imported = import(&world.platform(), &starts(), &text);
                let struck = world.disarm();
                let found = names(&world);
                assert!(imported.is_err() || found == ["new", "old"], "operation {at}: {found:?}");
                assert!(found == ["new", "old"] || found == ["old"], "operation {at}: {found:?}");
                if !struck {
                    break;
                }
            }
        }
    }

    /// The error names the checkpoint, and not the log that it replaced.
    #[test]
    fn a_lost_checkpoint_is_named() {
        let (world, text) = prepared(1);
        import(&world.platform(), &starts(), &text).unwrap();
        let name = world.names(0, LOG).into_iter().find(|name| name.ends_with(".checkpoint")).unwrap();
        let path = format!("{LOG}/{name}");
        let good = world.read(0, &path).unwrap();
        for at in [20, 4096 + 66] {
            let mut rotten = good.clone();
            rotten[at] ^= 1;
            world.put(0, &path, Some(&rotten));
            let before = world.everything(0);
            for mode in [OpenMode::Writer, OpenMode::Reader] {
                let told = Catalog::open(&world.platform(), &starts(), mode).unwrap_err().to_string();
                assert!(told.contains(&name) && told.contains("damaged"), "{told}");
            }
            assert!(world.everything(0) == before, "something was changed");
        }
    }

    /// One file with more attributes than fit into a group, and more layouts than that.
    #[test]
    fn a_text_of_any_size_is_taken() {
        let world = World::new(1);
        let mut catalog = Catalog::create(&world.platform(), &starts(), &[], None).unwrap();
        catalog.set_syncs_changes(false);
        catalog.create_file("old", &spec()).unwrap();
        for at in 0..7000 {
            catalog.set_attribute("old", &format!("k{at}"), Some("")).unwrap();
        }
        for at in 1..5000 {
            catalog.create_file(&format!("f{at}"), &FileSpec { block_bytes: at * 4096, ..spec() }).unwrap();
        }
        let record = catalog.record("old").unwrap();
        catalog.close().unwrap();
        drop(catalog);
        let text = export(&world.platform(), &starts()).unwrap();
        assert_eq!(import(&world.platform(), &starts(), &text).unwrap(), 5000);
        let catalog = Catalog::open(&world.platform(), &starts(), OpenMode::Reader).unwrap();
        assert_eq!(catalog.record("old").unwrap().attributes, record.attributes);
        assert_eq!(export(&world.platform(), &starts()).unwrap(), text);
    }

    /// A text that would make a catalog that no program can read is refused, and changes nothing.
    #[test]
    fn a_text_that_no_log_can_hold_is_refused() {
        let (world, text) = prepared(1);
        let long = |bytes: usize| format!("\nattribute 1 key {}\nend 2", "x".repeat(bytes));
        let many: String = (0..3).map(|at| format!("\nattribute 1 k{at} {}", "x".repeat(30_000))).collect();
        for (bad, why) in [
            (text.replace("layout 1 ", "layout 0 ").replace("0000000000000007 1 ", "0000000000000007 0 "), "line 4"),
            (text.replace("\nend 2", &long(70_000)), "at most 65536 bytes"),
            (text.replace("\nend 2", &long(140_000)), "at most 65536 bytes"),
            (text.replace("\nend 2", &format!("{many}\nend 2")), "at most 65536 bytes"),
        ] {
            assert_ne!(bad, text);
            let refused = import(&world.platform(), &starts(), &bad).unwrap_err().to_string();
            assert_eq!(names(&world), ["old"], "{refused}");
            assert!(refused.contains(why), "{refused}");
        }
    }

    /// After the highest number of a layout no new layout gets a number that is in use, and known ones still serve.
    #[test]
    fn numbers_of_layouts_end() {
        let (world, text) = prepared(1);
        let text = text.replace("layout 1 ", "layout 4294967295 ").replace("007 1 ", "007 4294967295 ");
        import(&world.platform(), &starts(), &text).unwrap();
        let catalog = Catalog::open(&world.platform(), &starts(), OpenMode::Writer).unwrap();
        catalog.create_file("like the others", &spec()).unwrap();
        let other = FileSpec { block_bytes: 8192, ..spec() };
        let refused = catalog.create_file("of another layout", &other).unwrap_err().to_string();
        assert!(refused.contains("4294967295"), "{refused}");
        catalog.close().unwrap();
        assert_eq!(names(&world), ["like the others", "new", "old"]);
    }

    #[test]
    fn a_damaged_log_is_replaced() {
        let (world, text) = prepared(3);
        for drive in 0..3 {
            for name in world.names(drive, LOG) {
                world.put(drive, &format!("{LOG}/{name}"), Some(&[7; 9000]));
            }
        }
        assert!(Catalog::open(&world.platform(), &starts(), OpenMode::Writer).is_err());
        assert!(export(&world.platform(), &starts()).is_err());
        assert_eq!(import(&world.platform(), &starts(), &text).unwrap(), 2);
        assert_eq!(names(&world), ["new", "old"]);
    }

    #[test]
    fn a_text_of_another_array_changes_nothing() {
        let (world, text) = prepared(1);
        let array = text.lines().nth(1).unwrap();
        let other = text.replace(array, "array 00000000000000000000000000000001");
        let refused = import(&world.platform(), &starts(), &other).unwrap_err().to_string();
        assert!(refused.contains("is of array 00000000000000000000000000000001"), "{refused}");
        assert!(import(&world.platform(), &starts(), &text.replace("end 2", "end 3")).is_err());
        assert_eq!(names(&world), ["old"]);
    }
}
