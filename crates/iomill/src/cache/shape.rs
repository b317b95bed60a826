//! The layout of the headers of page sets; `set` explains it.

/// The fewest ways of a set. All numbers of ways are multiples of 4.
pub const WAYS_MIN: usize = 4;
/// The most ways of a set.
pub const WAYS_MAX: usize = 32;
/// The default number of ways of a set: a header is then four whole cache lines. `docs/cache.md` has the figures.
pub const WAYS_DEFAULT: usize = 12;

/// The layout of a header. Places are indices of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ways of a set.
    pub ways: usize,
    pub(super) frames: usize,
    pub(super) state: usize,
    pub(super) meta: usize,
    pub(super) aux: usize,
    pub(super) keys: usize,
    pub(super) ghosts: usize,
    /// Words from one header to the next: whole cache lines.
    pub stride: usize,
    /// The mask of all ways.
    pub(super) all: u32,
}

impl Shape {
    /// The shape of a set of `ways` ways; `None` if that is not a multiple of 4 from 4 to 32.
    pub fn new(ways: usize) -> Option<Shape> {
        (ways.is_multiple_of(4) && (WAYS_MIN..=WAYS_MAX).contains(&ways)).then(|| Shape::of(ways))
    }

    fn of(ways: usize) -> Shape {
        let frames = 1 + (ways - 4).div_ceil(8);
        let keys = frames + ways / 2;
        let state = keys + ways;
        let meta = state + 3;
        let aux = meta + ways.div_ceil(8);
        let ghosts = aux + ways.div_ceil(8);
        let stride = (ghosts + ways / 4).next_multiple_of(8);
        let all = u32::MAX >> (32 - ways);
        Shape { all, ways, frames, state, meta, aux, keys, ghosts, stride }
    }

    /// The mask of all ways.
    #[inline]
    pub fn all(&self) -> u32 {
        self.all
    }
}
