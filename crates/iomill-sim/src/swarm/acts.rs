//! The steps.
//!
//! A step without work reports that, and does not count.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use iomill::{Error, File, Request};

use super::flight::{Call, Part, Pending};
use super::life::{End, Handle, Life, Said, Wrong, nothing};
use super::model::Began;
use super::program::{Act, Step, bytes, length, offset};
use crate::testing::block_on;

const PAGE: usize = 4096;

/// The largest numbers of open handles and of calls in flight.
const HANDLES_MAX: usize = 8;
const CALLS_MAX: usize = 12;

impl Life<'_> {
    /// Does one step. Returns its result in words; `failed` at the beginning means an error.
    pub fn act(&mut self, step: &Step) -> Said {
        match step.act {
            Act::Create => self.create(step),
            Act::Open => self.open(step),
            Act::Drop => self.drop_handle(step),
            Act::Close => self.close_handle(step),
            Act::Rename => self.rename(step),
            Act::Delete => self.delete(step),
            Act::Attribute => self.attribute(step),
            Act::Put => self.put(step),
            Act::Copy => self.copy(step),
            Act::Draft => self.draft(step),
            Act::Publish => self.publish(step),
            Act::Read => self.read(step),
            Act::Gather => self.gather(step),
            Act::Pin => self.pin(step),
            Act::Write | Act::Append => self.write(step),
            Act::Scatter => self.scatter(step),
            Act::SetLen => self.set_len(step),
            Act::Preallocate => self.preallocate(step),
            Act::Sync => self.sync(step),
            Act::BeginRead | Act::BeginGather | Act::BeginWrite | Act::Submit => self.begin_call(step),
            Act::Poll | Act::Finish | Act::Abandon => self.go_on(step),
            Act::Step => {
                (0..step.first % 20).for_each(|_| self.array().step());
                Ok("stepped".to_owned())
            }
            Act::Resize => self.resize(step),
            Act::Reopen => self.end(End::Close).map(|()| "opened again".to_owned()),
            Act::KillProcess => self.end(End::Death).map(|()| "opened again".to_owned()),
            Act::Crash => self.end(End::Power).map(|()| "opened again".to_owned()),
            _ => self.accident(step),
        }
    }

    // Handles.

    pub fn trim_handles(&mut self) -> Result<(), Wrong> {
        while self.handles.len() > HANDLES_MAX {
            let handle = self.handles.remove(0);
            self.let_handle_go(handle)?;
        }
        Ok(())
    }

    fn let_handle_go(&mut self, handle: Handle) -> Result<(), Wrong> {
        let id = handle.id;
        if self.may_lose() {
            // A call in flight returns bytes from before the handle's end, which may lose some of them.
            self.finish_calls(Some(id))?;
        }
        self.contents(id).may_be_synced();
        drop(handle);
        self.has_let_go(id);
        Ok(())
    }

    /// A handle was dropped, or a call has ended, which holds the file, too. If it was the last one, and something may
    /// have failed, the next one may show other contents.
    pub fn has_let_go(&mut self, id: u32) {
        let is_open =
            self.handles.iter().any(|handle| handle.id == id) || self.drafts.iter().any(|draft| draft.1 == id);
        if self.may_lose() && !is_open {
            self.contents(id).doubt();
        }
    }

    fn open(&mut self, step: &Step) -> Said {
        let Some(name) = self.name(step.which) else { return nothing() };
        let id = self.names[&name].id;
        match self.array().open_file(&name) {
            Ok(file) => {
                let len = self.contents(id).len();
                if !self.contents(id).shows(file.len() as usize) {
                    return Err(format!("{name} has {} bytes, not {len}", file.len()));
                }
                let file = if step.first.is_multiple_of(5) { file.background() } else { file };
                self.handles.push(Handle { id, file });
                self.trim_handles()?;
                Ok(name)
            }
            Err(error) => self.failed(&error),
        }
    }

    fn drop_handle(&mut self, step: &Step) -> Said {
        if self.handles.is_empty() {
            return nothing();
        }
        let handle = self.handles.swap_remove(step.which as usize % self.handles.len());
        let id = handle.id;
        self.let_handle_go(handle)?;
        Ok(format!("contents {id}"))
    }

    fn close_handle(&mut self, step: &Step) -> Said {
        if self.handles.is_empty() {
            return nothing();
        }
        let handle = self.handles.swap_remove(step.which as usize % self.handles.len());
        self.finish_calls(Some(handle.id))?;
        self.contents(handle.id).may_be_synced();
        match handle.file.close() {
            Ok(()) => {
                self.contents(handle.id).synced();
                Ok(format!("contents {}", handle.id))
            }
            Err(error) => {
                self.excuse(&error)?;
                self.has_let_go(handle.id);
                Ok(format!("failed: {error}"))
            }
        }
    }

    /// An open file. Opens one if there is none.
    fn handle(&mut self, step: &Step) -> Result<Option<(u32, File)>, Wrong> {
        if self.handles.is_empty() {
            self.open(step)?;
        }
        let count = self.handles.len();
        Ok((count > 0).then(|| {
            let handle = &self.handles[step.which as usize % count];
            (handle.id, handle.file.clone())
        }))
    }

    // Reads.

    /// A range of a file for a read.
    fn range(&mut self, id: u32, step: &Step) -> Range<usize> {
        let len = self.contents(id).len();
        let at = offset(step.first, len);
        at..at + length(step.second).min(len - at)
    }

    fn read(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let range = self.range(id, step);
        if !range.is_empty() && !self.is_free(id, &range, false) {
            return nothing();
        }
        // Beyond the end a read is short.
        let mut out = vec![0xA5; range.len() + if range.end == self.contents(id).len() { 100 } else { 0 }];
        match file.read_at(&mut out, range.start as u64) {
            Ok(read) if read == range.len() => {
                let right = self.contents(id).read(range.start, &out[..read]);
                right.map_err(|why| format!("contents {id}, read of {range:?}: {why}"))?;
                Ok(format!("contents {id}, {range:?}"))
            }
            Ok(read) => Err(format!("a read of {range:?} brought {read} bytes")),
            Err(error) => self.failed(&error),
        }
    }

    /// Records of one length, which may overlap.
    fn records(&mut self, id: u32, step: &Step) -> Option<(Vec<u64>, usize)> {
        let len = self.contents(id).len();
        let record = [1, 8, 100, 512, 700, 4096, 5000][step.second as usize % 7].min(len);
        if record == 0 {
            return None;
        }
        let count = 1 + step.first as usize % 60;
        let draw = |index: usize| {
            offset(step.first.wrapping_mul(2_654_435_761).wrapping_add(index as u32 * 40_503), len - record)
        };
        let offsets: Vec<u64> = (0..count).map(|index| draw(index) as u64).collect();
        let is_free = offsets.iter().all(|at| self.is_free(id, &(*at as usize..*at as usize + record), false));
        is_free.then_some((offsets, record))
    }

    fn gather(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let Some((offsets, record)) = self.records(id, step) else { return nothing() };
        let mut out = vec![0xA5; offsets.len() * record];
        if let Err(error) = file.read_many(&mut out, &offsets, record) {
            return self.failed(&error);
        }
        for (at, found) in offsets.iter().zip(out.chunks(record)) {
            let right = self.contents(id).read(*at as usize, found);
            right.map_err(|why| format!("contents {id}, gather of {} records of {record}: {why}", offsets.len()))?;
        }
        Ok(format!("contents {id}, {} records of {record}", offsets.len()))
    }

    fn pin(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let len = self.contents(id).len();
        let page = step.first as usize % len.div_ceil(PAGE).max(1);
        let range = page * PAGE..((page + 1) * PAGE).min(len);
        if range.is_empty() || !self.is_free(id, &range, false) {
            return nothing();
        }
        let pinned = match file.pin(page as u64) {
            Ok(pinned) => pinned.to_vec(),
            // There is no cache, or too much of it is pinned.
            Err(Error::Invalid { .. }) => return Ok("refused".to_owned()),
            Err(error) => return self.failed(&error),
        };
        if pinned.len() != range.len() {
            return Err(format!("page {page} has {} bytes, not {}", pinned.len(), range.len()));
        }
        let right = self.contents(id).read(range.start, &pinned);
        right.map_err(|why| format!("contents {id}, page {page}: {why}"))?;
        Ok(format!("contents {id}, page {page}"))
    }

    // Writes.

    fn write(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let len = self.contents(id).len();
        let count = length(step.second).min(60_000);
        let at = if step.act == Act::Append { len } else { offset(step.first, len + 20_000) };
        let range = at..at + count;
        if range.end > self.program.longest || !self.is_free(id, &range, true) {
            return nothing();
        }
        let new = bytes(step.second ^ step.first, count);
        let began = self.contents(id).begin(at, &new);
        let written = if step.first.is_multiple_of(3) {
            block_on(&self.array(), file.write_at_async(new, at as u64))?.map(drop).map_err(Error::from)
        } else {
            file.write_at(&new, at as u64)
        };
        self.written(id, &file, &[began], written)?.map_or_else(Ok, |()| Ok(format!("contents {id}, {range:?}")))
    }

    /// The result of a write; an error in words if it failed.
    fn written(
        &mut self,
        id: u32,
        file: &File,
        began: &[Began],
        written: iomill::Result<()>,
    ) -> Result<Result<(), String>, Wrong> {
        let before = self.contents(id).len();
        match written {
            Ok(()) => {
                began.iter().for_each(|began| self.contents(id).end(began));
                let len = self.contents(id).len();
                if file.len() != len as u64 && !self.world.crashed() {
                    return Err(format!("contents {id} has {} bytes after a write, not {len}", file.len()));
                }
                Ok(Ok(()))
            }
            Err(error) => {
                self.excuse(&error)?;
                let len = file.len() as usize;
                let end = began.iter().map(|began| began.range().end).max().unwrap_or(0);
                if len < before || len > before.max(end) {
                    return Err(format!("contents {id} has {len} bytes after a write that failed, not {before}"));
                }
                began.iter().for_each(|began| self.contents(id).fail(began, len));
                Ok(Err(format!("failed: {error}")))
            }
        }
    }

    /// Several disjoint ranges in one call.
    fn scatter(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let (mut at, mut ranges, mut all) = (offset(step.first, self.contents(id).len()), Vec::new(), Vec::new());
        for index in 0..1 + step.second % 8 {
            let count = length(step.second.wrapping_add(index)).min(9000);
            let range = at..at + count;
            if range.end > self.program.longest || !self.is_free(id, &range, true) {
                break;
            }
            let new = bytes(step.first.wrapping_add(index), count);
            ranges.push((at, new.clone()));
            all.extend(new);
            at = (range.end + step.first as usize % 5000).next_multiple_of(512);
        }
        if ranges.is_empty() {
            return nothing();
        }
        let began: Vec<_> = ranges.iter().map(|(at, new)| self.contents(id).begin(*at, new)).collect();
        let asked: Vec<(u64, usize)> = ranges.iter().map(|(at, new)| (*at as u64, new.len())).collect();
        let written = file.write_ranges(&all, &asked);
        self.written(id, &file, &began, written)?.map_or_else(Ok, |()| Ok(format!("contents {id}, {asked:?}")))
    }

    fn set_len(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        self.finish_calls(Some(id))?;
        let old = self.contents(id).len();
        let len = match step.first % 4 {
            0 => 0,
            1 => (old + step.second as usize % 300_000).min(self.program.longest),
            _ => step.second as usize % (old + 1),
        };
        self.contents(id).begin_resize(len);
        match file.set_len(len as u64) {
            Ok(()) => {
                self.contents(id).end_resize(len);
                Ok(format!("contents {id}, {old} to {len}"))
            }
            Err(error) => {
                self.excuse(&error)?;
                let now = file.len() as usize;
                if now != old && now != len && !self.world.crashed() {
                    return Err(format!("contents {id} has {now} bytes, neither {old} nor {len}"));
                }
                self.contents(id).fail_resize(now);
                Ok(format!("failed: {error}"))
            }
        }
    }

    fn preallocate(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        match file.preallocate(u64::from(step.first) % self.program.longest as u64) {
            Ok(()) => Ok(format!("contents {id}")),
            Err(error) => self.failed(&error),
        }
    }

    fn sync(&mut self, step: &Step) -> Said {
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        self.contents(id).may_be_synced();
        let synced =
            if step.first.is_multiple_of(2) { file.sync() } else { block_on(&self.array(), file.sync_async())? };
        match synced {
            Ok(()) => {
                self.contents(id).synced();
                Ok(format!("contents {id}"))
            }
            Err(error) => {
                self.contents(id).may_be_lost();
                self.failed(&error)
            }
        }
    }

    // Calls in flight.

    fn begin_call(&mut self, step: &Step) -> Said {
        if self.calls.len() >= CALLS_MAX {
            return nothing();
        }
        let Some((id, file)) = self.handle(step)? else { return nothing() };
        let (parts, pending) = match step.act {
            Act::BeginGather => {
                let Some((offsets, record)) = self.records(id, step) else { return nothing() };
                let parts = offsets.iter().map(|at| Part::Read(*at as usize..*at as usize + record)).collect();
                let future = file.read_many_async(vec![0xA5; offsets.len() * record], &offsets, record);
                let split = move |out: Vec<u8>| out.chunks(record).map(<[u8]>::to_vec).collect();
                (parts, Pending::Future(Box::pin(async move { future.await.map(split).map_err(Error::from) })))
            }
            Act::Submit => {
                let Some((parts, requests)) = self.requests(id, step) else { return nothing() };
                let outcome = Arc::new(Mutex::new(None));
                let there = Arc::clone(&outcome);
                let kept: Vec<bool> = parts.iter().map(|part| matches!(part, Part::Read(_))).collect();
                let submitted = file.submit(requests, move |brought| {
                    let reads = |all: Vec<Vec<u8>>| {
                        all.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(bytes, _)| bytes).collect()
                    };
                    *there.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(brought.map(reads));
                });
                if let Err(error) = submitted {
                    self.calls.push(Call {
                        id,
                        parts,
                        pending: Pending::Callback(Arc::new(Mutex::new(Some(Err(error))))),
                    });
                    let last = self.calls.len() - 1;
                    return self.wait(last);
                }
                (parts, Pending::Callback(outcome))
            }
            _ => {
                let range = self.range(id, step);
                let writes = step.act == Act::BeginWrite;
                if !self.is_free(id, &range, writes) {
                    return nothing();
                }
                if writes {
                    let new = bytes(step.first ^ step.second, range.len());
                    let began = self.contents(id).begin(range.start, &new);
                    let future = file.write_at_async(new, range.start as u64);
                    let future = async move { future.await.map(|_| Vec::new()).map_err(Error::from) };
                    (vec![Part::Write(began)], Pending::Future(Box::pin(future) as _))
                } else {
                    let future = file.read_async(range.start as u64, range.len());
                    let future = async move { future.await.map(|bytes| vec![bytes]) };
                    (vec![Part::Read(range)], Pending::Future(Box::pin(future) as _))
                }
            }
        };
        let ranges: Vec<Range<usize>> = parts.iter().take(3).map(Part::range).collect();
        let said = format!("contents {id}, {} ranges from {ranges:?}", parts.len());
        self.calls.push(Call { id, parts, pending });
        Ok(said)
    }

    /// Requests of a batch, in disjoint sectors. Those of every other batch begin inside a sector.
    fn requests(&mut self, id: u32, step: &Step) -> Option<(Vec<Part>, Vec<Request>)> {
        let range = self.range(id, step);
        let (piece, mut parts, mut requests) = (512 * (1 + step.first as usize % 40), Vec::new(), Vec::new());
        // Of bits that nothing else draws.
        let skipped = if (step.second >> 20) & 1 == 0 { 0 } else { (step.second >> 21) as usize % 512 };
        for (index, from) in (0..).zip((range.start.next_multiple_of(512)..range.end).step_by(piece).take(20)) {
            let end = (from + piece).min(range.end);
            let one = (from + skipped).min(end - 1)..end;
            let writes = (step.second >> (index % 20)) & 1 == 0;
            if !self.is_free(id, &one, writes) {
                break;
            }
            if writes {
                let new = bytes(step.second.wrapping_add(index), one.len());
                parts.push(Part::Write(self.contents(id).begin(one.start, &new)));
                requests.push(Request::Write { offset: one.start as u64, bytes: new });
            } else {
                requests.push(Request::Read { offset: one.start as u64, len: one.len() });
                parts.push(Part::Read(one));
            }
        }
        (!parts.is_empty()).then_some((parts, requests))
    }

    fn go_on(&mut self, step: &Step) -> Said {
        let waited: Vec<usize> =
            (0..self.calls.len()).filter(|index| !matches!(self.calls[*index].pending, Pending::Abandoned)).collect();
        if waited.is_empty() {
            return nothing();
        }
        let index = waited[step.which as usize % waited.len()];
        match step.act {
            Act::Poll => Ok(self.poll(index)?.unwrap_or_else(|| "pending".to_owned())),
            Act::Finish => self.wait(index),
            _ => {
                // After one poll the call has begun. A dropped read ends; a dropped write goes on.
                let call = &mut self.calls[index];
                call.pending = Pending::Abandoned;
                call.parts.retain(|part| matches!(part, Part::Write(_)));
                Ok("dropped".to_owned())
            }
        }
    }

    fn resize(&mut self, step: &Step) -> Said {
        match self.array().resize_cache(u64::from(1 + step.first % 64) * 4 * PAGE as u64) {
            Ok(()) => Ok("resized".to_owned()),
            // There is no cache, or the size does not suit it.
            Err(Error::Invalid { .. }) => Ok("refused".to_owned()),
            Err(error) => self.failed(&error),
        }
    }
}
