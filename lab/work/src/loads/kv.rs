//! A key-value store under the loads of YCSB: iomill's, the same table on other files, and stores of others.

use std::sync::atomic::AtomicU64;

use super::timed::{Ready, timed};
use crate::bytes::{self, Bytes};
use crate::job::{Contender, Job, Measure, Result};
use crate::kv::table::{Medium, PAGE_BYTES, Page, Table, gather_pages};
use crate::kv::ycsb::{Load as Mix, Records, Run, Store};
use crate::stores;

const THREADS: u64 = 16;

/// Bytes of a record with its key and its share of free room.
const RECORD_BYTES: u64 = 207;

impl Medium for Box<dyn Bytes> {
    fn page(&self, page: u64, look: &mut dyn FnMut(&Page)) -> Result<()> {
        self.look(page * PAGE_BYTES as u64, PAGE_BYTES, &mut |bytes| {
            if let Some(page) = bytes.first_chunk() {
                look(page);
            }
        })
    }

    fn pages(&self, pages: &[u64], look: &mut dyn FnMut(usize, &Page)) -> Result<()> {
        gather_pages(Bytes::len(&**self)?, pages, |bytes, ranges| self.gather(bytes, ranges), look)
    }

    fn len(&self) -> Result<u64> {
        Bytes::len(&**self)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Bytes::write(&**self, bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        Bytes::sync(&**self)
    }
}

fn records(job: &Job) -> Records {
    Records { count: (job.size_bytes / RECORD_BYTES).max(1000), is_varied: true, round: job.seed }
}

fn pages(job: &Job) -> u64 {
    (records(job).count * RECORD_BYTES).div_ceil(PAGE_BYTES as u64)
}

/// The table's files. A log grows, so it is never mapped.
fn files(job: &Job, array: Option<&iomill::Array>, makes: bool) -> Result<[Box<dyn Bytes>; 3]> {
    let log = match job.contender {
        Contender::Mmap => {
            let path = job.place.join("mmap.log");
            bytes::calls(&path, makes)?
        }
        _ => bytes::open(job, array, "log", makes.then_some(0))?,
    };
    let sized = |name: &str| bytes::open(job, array, name, makes.then_some(pages(job) * PAGE_BYTES as u64));
    Ok([sized("table")?, log, sized("run")?])
}

pub fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    if let Some(store) = stores::open(job, true)? {
        for (count, (key, value)) in (1..).zip(records(job).sorted()) {
            store.put(key, &value)?;
            if count % 4096 == 0 {
                store.commit()?;
            }
        }
        return store.commit();
    }
    Table::load(files(job, array, true)?, pages(job), records(job).sorted()).map(drop)
}

struct Open<S> {
    store: S,
    records: Records,
}

pub fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Box<dyn Ready>> {
    let records = records(job);
    Ok(match stores::open(job, false)? {
        Some(store) => Box::new(Open { store, records }),
        None => Box::new(Open { store: Table::open(files(job, array, false)?, pages(job))?, records }),
    })
}

impl Store for Box<dyn Store> {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>> {
        (**self).get(key)
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        (**self).put(key, value)
    }

    fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        (**self).scan(from, count)
    }

    fn commit(&self) -> Result<()> {
        (**self).commit()
    }
}

impl<S: Store> Ready for Open<S> {
    fn run(&mut self, seed: u64) -> Result<Vec<Measure>> {
        let added = AtomicU64::new(self.records.count);
        let mut measures = Vec::new();
        for (number, load) in (0..).zip(Mix::ALL) {
            // Each reads about the same number of records.
            let operations = self.records.count / if load == Mix::E { 512 } else { 16 } / THREADS * THREADS;
            let run = Run { store: &self.store, records: self.records, count: &added, seed: seed << 8 | number };
            measures.push(timed(&format!("YCSB {load:?}"), "operations", || {
                run.go(load, operations, THREADS)?;
                Ok((operations, None))
            })?);
        }
        Ok(measures)
    }
}
