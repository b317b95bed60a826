//! Pages of sums on their way from memory to the drive. Non-goals: fsyncs, and the head.

use std::sync::Arc;

use super::{PartSums, failed_at, offset_of};
use crate::drive::PAGE_BYTES;
use crate::error::Result;
use crate::file::sums::memory::HasPages;
use crate::file::sums::page::Chunk;
use crate::file::sums::zones::ZONE_CHUNKS;
use crate::sys::fsyncs::Since;
use crate::sys::sync::{Ordering, lock, read, write};

impl HasPages for PartSums {
    /// The write needs no fsync: the zone is marked, or the file is a draft. The sync that makes the zone clean reports
    /// an error.
    fn forget(&self, number: u64, entry: u64) -> Result<bool> {
        let _writing = lock(&self.writes);
        let found = read(&self.chunks).get(&number).filter(|chunk| chunk.is_entry(entry)).cloned();
        let Some(chunk) = found else { return Ok(true) };
        // One for the map, and one here.
        let is_held = Arc::strong_count(&chunk) > 2;
        if chunk.take_use() || is_held {
            return Ok(false);
        }
        self.write_before_leaving(number, &chunk)?;
        drop(chunk);
        let mut chunks = write(&self.chunks);
        // `get_mut` sees all changes of those that have held it.
        let is_free = |chunk: &mut Arc<Chunk>| Arc::get_mut(chunk).is_some_and(|chunk| !*chunk.is_dirty.get_mut());
        let is_free = chunks.get_mut(&number).is_none_or(is_free);
        if is_free {
            chunks.remove(&number);
        }
        Ok(is_free)
    }
}

impl PartSums {
    /// Writes a page of sums, if it differs from the drive. The caller has `writes`.
    fn write_before_leaving(&self, number: u64, chunk: &Chunk) -> Result<()> {
        if !self.is_writer {
            // Recomputed the next time.
            chunk.is_dirty.store(false, Ordering::Release);
        }
        if !chunk.is_dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        self.unsynced.note(Since::now());
        self.write_chunks(&[(number, chunk)], false)
    }

    /// The number of pages of sums in memory.
    #[cfg(all(test, not(iomill_models)))]
    pub fn in_memory(&self) -> usize {
        read(&self.chunks).len()
    }

    /// An error if pages of sums had to stay in memory because the drive does not take them. So a program that writes
    /// to a full drive takes no more memory.
    pub fn check_memory(&self) -> Result<()> {
        if !self.memory.is_over() {
            return Ok(());
        }
        let _writing = lock(&self.writes);
        let is_stuck = |chunk: &Arc<Chunk>| Arc::strong_count(chunk) == 1 && chunk.is_dirty.load(Ordering::Acquire);
        let stuck = read(&self.chunks)
            .iter()
            .find(|(_, chunk)| is_stuck(chunk))
            .map(|(number, chunk)| (*number, Arc::clone(chunk)));
        stuck.map_or(Ok(()), |(number, chunk)| self.write_before_leaving(number, &chunk))
    }

    /// Writes the pages of sums of a zone that differ from what is on the drive. Those below `stale` are doubtful
    /// there.
    pub(super) fn write_zone(
        self: &Arc<Self>,
        zone: u64,
        stale: u64,
        sum_of: impl Fn(u64, &[u8]) -> u32,
    ) -> Result<()> {
        let mut held = Vec::new();
        for number in zone * ZONE_CHUNKS..(zone + 1) * ZONE_CHUNKS {
            let chunk = match number < stale {
                true => Some(self.chunk(number, &sum_of)?),
                false => read(&self.chunks).get(&number).cloned(),
            };
            held.extend(chunk.map(|chunk| (number, chunk)));
        }
        let _writing = lock(&self.writes);
        for run in held.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let run: Vec<(u64, &Chunk)> = run.iter().map(|(number, chunk)| (*number, &**chunk)).collect();
            // A doubtful page of sums that was found equal to zeros may still be another on the drive.
            self.write_chunks(&run, run[0].0 < stale)?;
        }
        Ok(())
    }

    /// Writes pages of sums in a row: those that differ from the drive, or `all` of them. The caller has `writes`.
    fn write_chunks(&self, run: &[(u64, &Chunk)], all: bool) -> Result<()> {
        let file = self.file()?;
        // Before its sums are read: one that changes after this is written again. By a swap, which sees all sums that
        // were marked before it.
        let is_written = |chunk: &Chunk| chunk.is_dirty.swap(false, Ordering::AcqRel) || all;
        let wanted: Vec<(u64, &Chunk)> = run.iter().copied().filter(|(_, chunk)| is_written(chunk)).collect();
        for run in wanted.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let (start, mut bytes) = (run[0].0, vec![0; run.len() * PAGE_BYTES]);
            for ((number, chunk), bytes) in run.iter().zip(bytes.chunks_mut(PAGE_BYTES)) {
                chunk.encode(&self.identity, self.part, *number, bytes);
                lock(&self.zones).change(number / ZONE_CHUNKS).written |= 1 << (number % ZONE_CHUNKS);
            }
            let offset = offset_of(start);
            if let Err(error) = file.fs().write_at(file.handle(), &bytes, offset) {
                wanted.iter().for_each(|(_, chunk)| chunk.is_dirty.store(true, Ordering::Release));
                return Err(failed_at("write", file, offset)(error));
            }
        }
        Ok(())
    }

    /// After a failed fsync the drive may have lost any page of sums that this opening has written. Those in memory are
    /// written again, and the others are recomputed when they are needed.
    pub(super) fn doubt_written(&self) {
        let _writing = lock(&self.writes);
        let (mut zones, chunks) = (lock(&self.zones), read(&self.chunks));
        for (at, zone) in zones.own().filter(|(_, zone)| zone.written != 0) {
            for number in (at * ZONE_CHUNKS..(at + 1) * ZONE_CHUNKS).filter(|number| zone.has_written(*number)) {
                chunks.get(&number).into_iter().for_each(|chunk| chunk.is_dirty.store(true, Ordering::Release));
            }
            (zone.is_stale, zone.written) = (true, 0);
        }
    }
}
