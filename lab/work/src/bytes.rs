//! The bytes of a file, by each contender's means.

#[path = "../../../crates/iomill/examples/graph/visit.rs"]
mod visit;

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, opcode, types};
use memmap2::{Advice, MmapMut, MmapOptions};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::job::{Contender, Job, Result};

/// Ranges that a thread of a rival takes at a time.
const CHUNK: usize = 32;

/// Offset and length, in bytes.
pub type Range = (u64, usize);

/// A file.
pub trait Bytes: Send + Sync {
    /// The length in bytes.
    fn len(&self) -> Result<u64>;
    /// Reads bytes at an offset.
    fn read(&self, out: &mut [u8], offset: u64) -> Result<()>;
    /// Writes bytes at an offset. Two writes at a time do not overlap.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Returns when all writes are durable.
    fn sync(&self) -> Result<()>;
    /// Reads ranges, one after the other, into `out`.
    fn gather(&self, out: &mut [u8], ranges: &[Range]) -> Result<()>;
    /// Calls `each` with the bytes of each range and its index, in any order and from several threads.
    fn visit(&self, ranges: &[Range], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()>;
    /// Shows a range within a page, which does not change meanwhile.
    fn look(&self, offset: u64, len: usize, look: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut bytes = [0; 4096];
        self.read(&mut bytes[..len], offset)?;
        look(&bytes[..len]);
        Ok(())
    }
}

/// Opens or makes a file of a load. `name` is its name, and `len` its length if it is made.
pub fn open(job: &Job, array: Option<&iomill::Array>, name: &str, len: Option<u64>) -> Result<Box<dyn Bytes>> {
    if let Some(array) = array {
        let file = match len {
            Some(_) => array.create_file(name, &iomill::FileOptions::new())?,
            None => array.open_file(name)?,
        };
        if let Some(len) = len {
            file.set_len(len)?;
        }
        return Ok(Box::new(Own(file)));
    }
    let path = job.place.join(format!("{}.{name}", job.contender.storage(job.load.is_changed())));
    let file = OpenOptions::new().read(true).write(true).create(len.is_some()).truncate(len.is_some()).open(&path)?;
    if let Some(len) = len {
        file.set_len(len)?;
    }
    Ok(match job.contender {
        Contender::Mmap => Box::new(Mapped::new(&file, 1)?),
        Contender::Mmap16 => Box::new(Mapped::new(&file, 16)?),
        Contender::Pread256 => Box::new(Calls { file, pool: pool(256)? }),
        // Files are written by system calls.
        Contender::Uring if len.is_none() => Box::new(Ring { file: direct(&path)?, buffered: file }),
        _ => Box::new(Calls { file, pool: pool(16)? }),
    })
}

fn pool(threads: usize) -> Result<ThreadPool> {
    // Each of up to 256 threads needs no larger stack.
    Ok(ThreadPoolBuilder::new().num_threads(threads).stack_size(256 << 10).build()?)
}

fn direct(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?)
}

/// A file of iomill.
struct Own(iomill::File);

impl Bytes for Own {
    fn len(&self) -> Result<u64> {
        Ok(self.0.len())
    }

    fn read(&self, out: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.0.read_exact_at(out, offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.0.write_at(bytes, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn gather(&self, out: &mut [u8], ranges: &[Range]) -> Result<()> {
        Ok(self.0.read_ranges(out, ranges)?)
    }

    fn visit(&self, ranges: &[Range], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        Ok(visit::visit(&self.0, ranges, each)?)
    }
}

/// The parts of `out` for each range.
fn split<'a>(mut out: &'a mut [u8], ranges: &[Range]) -> Vec<(u64, &'a mut [u8])> {
    let mut parts = Vec::with_capacity(ranges.len());
    for &(offset, len) in ranges {
        let (part, rest) = out.split_at_mut(len);
        parts.push((offset, part));
        out = rest;
    }
    parts
}

/// A plain file, by `pread` and `pwrite` on many threads.
struct Calls {
    file: File,
    pool: ThreadPool,
}

impl Bytes for Calls {
    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, out: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.file.write_all_at(bytes, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn gather(&self, out: &mut [u8], ranges: &[Range]) -> Result<()> {
        // A few ranges are not worth a wake of threads.
        if ranges.len() < 2 {
            return split(out, ranges).into_iter().try_for_each(|(offset, part)| self.read(part, offset));
        }
        let parts = split(out, ranges);
        self.pool.install(|| parts.into_par_iter().try_for_each(|(offset, part)| self.read(part, offset)))
    }

    fn visit(&self, ranges: &[Range], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        let chunk = |(number, ranges): (usize, &[Range])| -> Result<()> {
            let mut bytes = Vec::new();
            for (index, &(offset, len)) in (number * CHUNK..).zip(ranges) {
                bytes.resize(len, 0);
                self.read(&mut bytes, offset)?;
                each(index, &bytes);
            }
            Ok(())
        };
        if ranges.len() < 2 {
            return chunk((0, ranges));
        }
        self.pool.install(|| ranges.par_chunks(CHUNK).enumerate().try_for_each(chunk))
    }
}

/// A mapped file.
struct Mapped {
    map: MmapMut,
    pool: ThreadPool,
    threads: usize,
}

impl Mapped {
    fn new(file: &File, threads: usize) -> Result<Mapped> {
        // SAFETY: only processes of this measurement use the file, one at a time, and none cuts it.
        let map = unsafe { MmapOptions::new().map_mut(file) }?;
        map.advise(Advice::Random)?;
        Ok(Mapped { map, pool: pool(threads)?, threads })
    }

    fn slice(&self, (offset, len): Range) -> Result<&[u8]> {
        let end = usize::try_from(offset)?.checked_add(len).filter(|end| *end <= self.map.len());
        Ok(&self.map[offset as usize..end.ok_or("a range ends behind the file")?])
    }
}

impl Bytes for Mapped {
    fn len(&self) -> Result<u64> {
        Ok(self.map.len() as u64)
    }

    fn read(&self, out: &mut [u8], offset: u64) -> Result<()> {
        out.copy_from_slice(self.slice((offset, out.len()))?);
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let to = self.slice((offset, bytes.len()))?.as_ptr().cast_mut();
        // SAFETY: the range is in the mapping, which is writable. By the rules of the trait no other write overlaps it,
        // and the loads read no bytes while they are written: their locks, or the order of their phases, ensure that.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.map.flush()?)
    }

    fn gather(&self, out: &mut [u8], ranges: &[Range]) -> Result<()> {
        let parts = split(out, ranges);
        if self.threads == 1 || ranges.len() < 2 {
            return parts.into_iter().try_for_each(|(offset, part)| self.read(part, offset));
        }
        self.pool.install(|| parts.into_par_iter().try_for_each(|(offset, part)| self.read(part, offset)))
    }

    fn visit(&self, ranges: &[Range], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        let chunk = |(number, ranges): (usize, &[Range])| -> Result<()> {
            (number * CHUNK..).zip(ranges).try_for_each(|(index, &range)| {
                each(index, self.slice(range)?);
                Ok(())
            })
        };
        if self.threads == 1 || ranges.len() < 2 {
            return ranges.chunks(CHUNK).enumerate().try_for_each(chunk);
        }
        self.pool.install(|| ranges.par_chunks(CHUNK).enumerate().try_for_each(chunk))
    }

    fn look(&self, offset: u64, len: usize, look: &mut dyn FnMut(&[u8])) -> Result<()> {
        look(self.slice((offset, len))?);
        Ok(())
    }
}

/// A plain file, read past the page cache by a loop of io_uring. It reads whole aligned pages only.
struct Ring {
    file: File,
    buffered: File,
}

/// Reads that the loop has in flight.
const DEPTH: usize = 128;

/// A thread's ring with its buffers, which are aligned for direct I/O.
struct Slots {
    ring: IoUring,
    memory: MmapMut,
}

thread_local! {
    static SLOTS: RefCell<Option<Slots>> = const { RefCell::new(None) };
}

impl Ring {
    fn gather_in(&self, slots: &mut Slots, parts: &mut [(u64, &mut [u8])]) -> Result<()> {
        let (mut next, mut done) = (0, 0);
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut held = [0; DEPTH];
        while done < parts.len() {
            while let (Some((offset, part)), Some(slot)) = (parts.get(next), free.pop()) {
                if part.len() != 4096 || offset % 4096 != 0 {
                    return Err("the loop of io_uring reads pages only".into());
                }
                held[slot] = next;
                next += 1;
                let buffer = slots.memory[slot * 4096..].as_mut_ptr();
                let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), buffer, 4096).offset(*offset);
                // SAFETY: the buffer is that of a free slot, nothing touches it until its completion, and it lives as
                // long as the ring.
                unsafe { slots.ring.submission().push(&entry.build().user_data(slot as u64)) }?;
            }
            slots.ring.submit_and_wait(1)?;
            let ended: Vec<_> = slots.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (slot, result) in ended {
                let slot = slot as usize;
                if result != 4096 {
                    return Err(format!("a read of 4,096 bytes ended with {result}").into());
                }
                parts[held[slot]].1.copy_from_slice(&slots.memory[slot * 4096..][..4096]);
                free.push(slot);
                done += 1;
            }
        }
        Ok(())
    }
}

impl Bytes for Ring {
    fn len(&self) -> Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }

    fn read(&self, out: &mut [u8], offset: u64) -> Result<()> {
        let len = out.len();
        self.gather(out, &[(offset, len)])
    }

    fn write(&self, _: &[u8], _: u64) -> Result<()> {
        Err("the loop of io_uring only reads".into())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn gather(&self, out: &mut [u8], ranges: &[Range]) -> Result<()> {
        SLOTS.with_borrow_mut(|slots| {
            if slots.is_none() {
                let ring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(DEPTH as u32)?;
                *slots = Some(Slots { ring, memory: MmapMut::map_anon(DEPTH * 4096)? });
            }
            let gathered = match slots {
                Some(slots) => self.gather_in(slots, &mut split(out, ranges)),
                None => Ok(()),
            };
            if gathered.is_err() {
                // Reads may be in flight into its memory. The process ends with the error, so both stay until then.
                std::mem::forget(slots.take());
            }
            gathered
        })
    }

    fn visit(&self, _: &[Range], _: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        Err("the loop of io_uring reads pages only".into())
    }
}

/// A plain file by system calls, for the files that a contender does not map.
pub fn calls(path: &Path, makes: bool) -> Result<Box<dyn Bytes>> {
    let file = OpenOptions::new().read(true).write(true).create(makes).truncate(makes).open(path)?;
    Ok(Box::new(Calls { file, pool: pool(1)? }))
}
