//! Notes of openings: states that crashes, restored notes and clones leave, and bytes.

use super::*;

/// Three notes and a log, with what each has truly taken part in.
#[derive(Clone, Debug)]
struct Model {
    notes: Vec<Note>,
    /// The last group of the log.
    log: OpeningId,
    /// The openings that made changes, of each note, and of the log.
    truth: Vec<Vec<OpeningId>>,
    ids: u8,
}

/// How an opening ends: how far it comes.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// Only these notes have begun it.
    Begun(u8),
    /// All have begun it, and the log has a group or not.
    Logged(bool),
    /// These have it in use. If all have, it makes changes.
    InUse(u8),
}

const NOTES: usize = 3;
const ALL: u8 = (1 << NOTES) - 1;

fn outcomes() -> impl Iterator<Item = Outcome> {
    let begun = (0..ALL).map(Outcome::Begun);
    begun.chain([false, true].map(Outcome::Logged)).chain((1..=ALL).map(Outcome::InUse))
}

impl Model {
    fn new() -> Model {
        let opening = OpeningId { number: 1, id: Id([0; 16]) };
        let note = Note {
            version: 0,
            in_use: opening,
            begun: opening,
            proof: Proof { sequence: 1, checksum: 1 },
            is_closed: false,
        };
        let truth = vec![vec![opening]; NOTES + 1];
        Model { notes: vec![note; NOTES], log: opening, truth, ids: 0 }
    }

    fn accepts(&self) -> bool {
        let newest = newest(self.notes.iter().copied()).unwrap();
        let late = |opening| behind(&self.notes, opening).chain(unclosed(&self.notes, opening)).next().is_some();
        !late(newest) && required(newest, self.log).is_some_and(|opening| !late(opening))
    }

    /// Opens the array as far as `outcome` says, in the way of `Openings`. `life` tells clones apart.
    fn open(&mut self, outcome: Outcome, life: u8) {
        self.ids += 1;
        let in_use = required(newest(self.notes.iter().copied()).unwrap(), self.log).unwrap();
        let highest = self.notes.iter().map(|note| note.begun.number.max(note.in_use.number)).max().unwrap();
        let number = highest.max(self.log.number) + 1;
        let opening = OpeningId { number, id: Id([self.ids, life, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) };
        let has = |notes: u8, at: usize| notes >> at & 1 == 1;
        let begun = if let Outcome::Begun(notes) = outcome { notes } else { ALL };
        for at in (0..NOTES).filter(|at| has(begun, *at)) {
            self.notes[at] = Note { in_use, begun: opening, ..self.notes[at] };
        }
        if matches!(outcome, Outcome::Logged(true) | Outcome::InUse(_)) {
            self.log = opening;
        }
        let Outcome::InUse(used) = outcome else { return };
        for at in (0..NOTES).filter(|at| has(used, *at)) {
            self.notes[at].in_use = opening;
        }
        if used == ALL {
            self.truth.iter_mut().for_each(|truth| truth.push(opening));
        }
    }

    /// With some of its notes, and perhaps the log, from elsewhere.
    fn mixed(&self, other: &Model, which: u8) -> Model {
        let mut mixed = self.clone();
        for at in (0..=NOTES).filter(|at| which >> at & 1 == 1) {
            mixed.truth[at] = other.truth[at].clone();
            match mixed.notes.get_mut(at) {
                Some(note) => *note = other.notes[at],
                None => mixed.log = other.log,
            }
        }
        mixed
    }

    fn has_one_truth(&self) -> bool {
        self.truth.iter().all(|truth| *truth == self.truth[0])
    }
}

/// All states that up to three openings leave, each of which may be interrupted anywhere.
fn lives() -> Vec<Vec<Model>> {
    let mut lives = vec![vec![Model::new()]];
    for depth in 0..3u8 {
        let mut longer = Vec::new();
        for life in &lives {
            for outcome in outcomes() {
                let mut next = life.last().unwrap().clone();
                next.open(outcome, depth);
                longer.push([life.as_slice(), &[next]].concat());
            }
        }
        lives = longer;
    }
    lives
}

/// A crash is no fault, whatever it interrupted. Any notes that are put back from an earlier state are refused, if
/// changes were made since. The log is judged here by its opening alone, so only notes are put back.
#[test]
fn a_crash_is_told_from_notes_that_were_put_back() {
    let (mut refused, mut all) = (0, 0);
    for life in lives() {
        let now = life.last().unwrap();
        assert!(now.accepts() && now.has_one_truth(), "{now:?}");
        for earlier in &life {
            for which in 1..=ALL {
                let mixed = now.mixed(earlier, which);
                all += 1;
                refused += u32::from(!mixed.accepts());
                assert!(mixed.has_one_truth() || !mixed.accepts(), "{which:03b} of {earlier:?} in {now:?}");
            }
        }
    }
    assert!(refused > 1000 && refused < all, "{refused} of {all}");
}

/// Two lives of an array that was cloned. A mixture is refused if either has made changes that the other has not.
#[test]
fn clones_are_not_mixed() {
    let mut refused = 0;
    for first in [Outcome::Begun(1), Outcome::Logged(true), Outcome::InUse(2), Outcome::InUse(ALL)] {
        let mut common = Model::new();
        common.open(first, 0);
        let lives = |life: u8| {
            let common = common.clone();
            outcomes().flat_map(move |outcome| {
                let mut one = common.clone();
                one.open(outcome, life);
                let longer = one.clone();
                let twice = outcomes().map(move |second| {
                    let mut two = longer.clone();
                    two.open(second, life);
                    two
                });
                std::iter::once(one).chain(twice)
            })
        };
        // All pairs take a minute.
        let others: Vec<Model> = lives(2).step_by(5).collect();
        for one in lives(1) {
            for other in &others {
                // With and without the log.
                for which in 1..(1 << (NOTES + 1)) - 1u8 {
                    let mixed = one.mixed(other, which);
                    refused += u64::from(!mixed.accepts());
                    // A log without a group of the changes is found out by its proof, not by its opening.
                    let is_of_notes = mixed.truth[..NOTES].iter().all(|truth| *truth == mixed.truth[0]);
                    assert!(is_of_notes || !mixed.accepts(), "{which:04b} of {other:?} in {one:?}");
                }
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}

#[test]
fn a_note_is_read_as_it_was_written_and_any_changed_byte_spoils_it() {
    let opening = |number: u64| OpeningId { number, id: Id([number as u8; 16]) };
    let proof = Proof { sequence: 9, checksum: 10 };
    let note = Note { version: 3, in_use: opening(4), begun: opening(5), proof, is_closed: true };
    let owner = Owner { array: Id([6; 16]), drive: Id([7; 16]) };
    let block = note.block(&owner);
    assert_eq!(Note::parse(&block), Some((note, owner)));
    assert_eq!(xxh3_64(&block), 15538145989604967604, "`docs/format.md` has these bytes");
    for at in 0..NOTE_BYTES {
        let mut changed = block.clone();
        changed[at] ^= 1;
        assert!(Note::parse(&changed).is_none(), "byte {at}");
    }
    assert!((0..NOTE_BYTES).all(|len| Note::parse(&block[..len]).is_none()));
}

/// A close is interrupted anywhere, and so is the opening that comes then. No crash is taken for a copy of the middle
/// of the opening, and each copy of the middle that is put back after the close is refused.
#[test]
fn a_crash_in_a_close_is_told_from_a_copy_of_before() {
    let mut middle = Model::new();
    middle.open(Outcome::InUse(ALL), 0);
    // A copy from the time when not all notes had the opening in use has missed its changes, too.
    let mut early = Model::new();
    early.open(Outcome::InUse(1), 0);
    early.notes[0].in_use = middle.notes[0].in_use;
    early.notes.iter_mut().for_each(|note| note.begun = middle.notes[0].begun);
    let ends = |proven: u8, closed: u8| {
        let mut model = middle.clone();
        for (at, note) in model.notes.iter_mut().enumerate() {
            if proven >> at & 1 == 1 {
                note.proof.sequence = 9;
            }
            note.is_closed = closed >> at & 1 == 1;
        }
        model
    };
    for interrupted in (0..ALL).map(|proven| ends(proven, 0)).chain((0..=ALL).map(|closed| ends(ALL, closed))) {
        assert!(interrupted.accepts(), "{interrupted:?}");
        for next in outcomes() {
            let mut model = interrupted.clone();
            // As `Openings::begin` and `use_begun` write them.
            let before = model.notes.clone();
            model.open(next, 0);
            for (note, before) in model.notes.iter_mut().zip(&before) {
                note.is_closed = before.is_closed && note.in_use == before.in_use;
            }
            if let Outcome::Begun(_) = next {
                let begun = |note: &&mut Note| note.begun.number > before[0].begun.number;
                let end = before.iter().map(|note| note.proof).max_by_key(|proof| proof.sequence).unwrap();
                model.notes.iter_mut().filter(begun).for_each(|note| note.proof = end);
            }
            assert!(model.accepts(), "{next:?}: {model:?}");
        }
    }
    for closed in 1..=ALL {
        for which in 1..ALL {
            for copy in [&middle, &early] {
                let mixed = ends(ALL, closed).mixed(copy, which);
                // A closed note is left.
                let is_known = closed & !which != 0;
                assert_eq!(!mixed.accepts(), is_known, "{which:03b} of {copy:?}, closed {closed:03b}");
            }
        }
    }
}
