//! Small writes to a file of an array, through iomill's cache. The CPU time includes the background flush, because it
//! runs in this process.

use iomill::{Array, ArrayOptions, Error, File, Result};

use super::{CountersAtStart, Place, fetched_bytes};
use crate::arena::{Arena, SEED};
use crate::contender::{Cache, Contender, IOMILL_WRITE_AT, Sample, Slice};
use crate::small_writes::{self, SmallWrites, Writer};
use crate::target::Target;
use crate::task::Task;
use iomill_cli::human;

/// See the head of this file.
#[derive(Debug)]
pub struct WriteAt {
    place: Place,
    target: Target,
    writes: SmallWrites,
}

impl WriteAt {
    /// To the file of an arena that has been filled.
    pub fn new(arena: &Arena, options: &ArrayOptions, writes: SmallWrites) -> Result<WriteAt> {
        Ok(WriteAt { place: Place::new(arena, options), target: arena.target()?, writes })
    }
}

impl Contender<SmallWrites> for WriteAt {
    fn name(&self) -> &'static str {
        IOMILL_WRITE_AT
    }

    fn cache(&self) -> Cache {
        Cache::Held
    }

    fn prepare(&mut self, writes: &SmallWrites) -> Result<Option<String>> {
        writes.check()?;
        self.writes = *writes;
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        // Pages that other contenders left in the page cache would slow direct I/O down.
        self.target.drop_cached()?;
        let opened = self.place.open(self.writes.cache_bytes, true)?;
        let (array, file, at_start) = (&opened.array, &opened.file, &CountersAtStart::default());
        let set_up = || Ok(Called { array, file, at_start });
        let mut sample = small_writes::run(slice, &self.writes, SEED + 1, set_up, || Ok(()), || file.sync())?;
        sample.filled = at_start.filled(self.writes.cache_bytes.min(self.writes.len_bytes));
        sample.fetched_bytes = Some(fetched_bytes(&at_start.end(array)));
        opened.close()?;
        Ok(sample)
    }

    fn spoils(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("a cache of {}", human::size(self.writes.cache_bytes))]
    }
}

struct Called<'a> {
    array: &'a Array,
    file: &'a File,
    at_start: &'a CountersAtStart,
}

impl Writer for Called<'_> {
    fn begin(&mut self) {
        self.at_start.begin(self.array);
    }

    #[inline(always)]
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_at(bytes, offset)?;
        if read == bytes.len() {
            return Ok(());
        }
        let what = format!("{} bytes at offset {offset} of the measured file", bytes.len());
        Err(Error::Tool { what, why: format!("only {read} were read: the file is shorter than it was made") })
    }
}
