//! Ranges of one large object, at random.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use judge_turns::{Load, State, Work, drop_cached};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use tokio::runtime::Runtime;

use crate::data::{PAGE_BYTES, Pages, check_page, page};
use judge_bench::stores::{Opened, Place};

/// Ranges of one call.
pub const RANGES: u64 = 1_000;

/// Calls of a slice. A cold call takes some tens of milliseconds.
const COLD_CALLS: u64 = 8;
const WARM_CALLS: u64 = 100;

/// The bytes that are written at a time, and the parts in flight.
const PART_PAGES: u64 = 4096;
const PARTS: usize = 4;
const WRITE_CACHE_BYTES: u64 = 64 << 20;

/// Makes the object in both places.
pub fn prepare(place: &Place, pages: &Pages) -> Result<()> {
    place.make()?;
    let runtime = Runtime::new()?;
    for (opened, dir) in [(place.local(false)?, "plain"), (place.iomill_array(WRITE_CACHE_BYTES)?, "array")] {
        let written = runtime.block_on(write(&*opened.store, pages));
        written.with_context(|| format!("cannot write {} to {dir}", pages.name()))?;
        opened.close()?;
    }
    // The kernel counts cached pages as memory of the process that read them first, which must be a contender. So
    // contenders do not drop pages later in warm rows: they would drop those of others.
    drop_cached(place.plain())
}

async fn write(store: &dyn ObjectStore, pages: &Pages) -> Result<()> {
    let path = Path::from(pages.name());
    match store.head(&path).await {
        Ok(meta) if meta.size == pages.len_bytes() => return Ok(()),
        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    eprintln!("writes {} MiB by {store}", pages.len_bytes() >> 20);
    let mut upload = WriteMultipart::new(store.put_multipart(&path).await?);
    for first in (0..pages.count).step_by(PART_PAGES as usize) {
        upload.wait_for_capacity(PARTS).await?;
        let part: Vec<u8> = (first..pages.count.min(first + PART_PAGES)).flat_map(page).flatten().collect();
        upload.put(part.into());
    }
    upload.finish().await?;
    Ok(())
}

/// One contender.
pub struct Reads {
    opened: Opened,
    path: Path,
    pages: Pages,
    state: State,
    runtime: Runtime,
    file: std::path::PathBuf,
}

impl Reads {
    pub fn new(opened: Opened, pages: Pages, state: State, place: &Place) -> Result<Reads> {
        let (path, file) = (Path::from(pages.name()), place.plain().join(pages.name()));
        Ok(Reads { opened, path, pages, state, runtime: Runtime::new()?, file })
    }

    fn calls(&self) -> u64 {
        if self.state == State::Warm { WARM_CALLS } else { COLD_CALLS }
    }

    /// Pages of one call.
    fn numbers(&self, seed: u64, call: u64) -> impl Iterator<Item = u64> + use<> {
        let (mut random, count) = (fastrand::Rng::with_seed(seed << 32 | call), self.pages.count);
        (0..RANGES).map(move |_| random.u64(..count))
    }
}

fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let len = PAGE_BYTES as u64;
    numbers.map(|number| number * len..(number + 1) * len).collect()
}

impl Load for Reads {
    /// The results of the last call. Those of earlier calls are dropped at once, as a program does.
    type Done = Vec<Bytes>;

    fn fill(&mut self) -> Result<()> {
        if self.state != State::Warm {
            return Ok(());
        }
        for first in (0..self.pages.count).step_by(PART_PAGES as usize) {
            let part = ranges(first..self.pages.count.min(first + PART_PAGES));
            self.runtime.block_on(self.opened.store.get_ranges(&self.path, &part))?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.state == State::Warm { Ok(()) } else { drop_cached(&self.file) }
    }

    fn slice(&mut self, seed: u64) -> Result<Vec<Bytes>> {
        let mut last = Vec::new();
        for call in 0..self.calls() {
            let wanted = ranges(self.numbers(seed, call));
            last = self.runtime.block_on(self.opened.store.get_ranges(&self.path, &wanted))?;
        }
        Ok(last)
    }

    fn check(&mut self, seed: u64, done: Vec<Bytes>) -> Result<Work> {
        ensure!(done.len() as u64 == RANGES, "{} of {RANGES} ranges came back", done.len());
        let mut digest = 0_u64;
        for (number, bytes) in self.numbers(seed, self.calls() - 1).zip(&done) {
            digest = digest.rotate_left(1) ^ check_page(number, bytes)?;
        }
        let ops = self.calls() * RANGES;
        Ok(Work { ops, bytes: ops * PAGE_BYTES as u64, digest })
    }

    fn close(self) -> Result<()> {
        self.opened.close()
    }
}
