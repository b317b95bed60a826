//! The choice of the changes that survive a crash, by the seed.

use fastrand::Rng;

/// The unsynced changes that survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// The seed decides. Writes may be torn.
    Seeded,
    /// None.
    Nothing,
    /// All.
    Everything,
}

/// Decides which changes survive a crash.
pub(crate) struct Dice<'a> {
    rng: &'a mut Rng,
    survival: Survival,
}

impl<'a> Dice<'a> {
    pub fn new(rng: &'a mut Rng, survival: Survival) -> Dice<'a> {
        Dice { rng, survival }
    }

    /// The fate of one write as a whole.
    pub fn write_fate(&mut self) -> Fate {
        match self.survival {
            Survival::Nothing => Fate::Lost,
            Survival::Everything => Fate::Whole,
            Survival::Seeded => [Fate::Whole, Fate::Lost, Fate::Torn][self.rng.usize(0..3)],
        }
    }

    pub fn granule_survives(&mut self, fate: Fate) -> bool {
        match fate {
            Fate::Whole => true,
            Fate::Lost => false,
            Fate::Torn => self.rng.bool(),
        }
    }

    /// The number of changes that survive, the first ones, of `count` ordered changes.
    pub fn prefix(&mut self, count: usize) -> usize {
        match self.survival {
            Survival::Nothing => 0,
            Survival::Everything => count,
            Survival::Seeded => self.rng.usize(0..=count),
        }
    }

    /// Whether a change of a directory survives, if the changes before it do.
    pub fn entry_survives(&mut self) -> bool {
        match self.survival {
            Survival::Nothing => false,
            Survival::Everything => true,
            Survival::Seeded => self.rng.u8(0..4) > 0,
        }
    }
}

/// The fate of a write at a crash.
#[derive(Clone, Copy)]
pub(crate) enum Fate {
    Whole,
    Lost,
    Torn,
}
