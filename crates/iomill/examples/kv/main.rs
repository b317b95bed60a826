//! A key-value store in files of an array, under the loads of YCSB from 16 threads, and its reads as futures from one
//! thread.
//!
//! `cargo run --release -p iomill --example kv [DIRECTORY [RECORDS]]`. The lab runs the same beside RocksDB, LMDB,
//! WiredTiger and redb: `iomill-lab work kv`.

#[path = "../common/scratch.rs"]
mod scratch;
mod table;
mod ycsb;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use iomill::{ArrayOptions, File, FileOptions, block_on};
use scratch::{Result, on_drives};
use table::{Found, Medium, PAGE_BYTES, Page, Table, find, gather_pages, mix};
use ycsb::{Load, Records, Run};

const THREADS: u64 = 16;

/// Reads in flight from one thread.
const FUTURES: u64 = 64;

impl Medium for File {
    fn page(&self, page: u64, look: &mut dyn FnMut(&Page)) -> Result<()> {
        // A copy costs less than a pin here: a page that was pinned is dear to write to, and to evict (`File::pin`).
        let mut bytes = [0; PAGE_BYTES];
        self.read_exact_at(&mut bytes, page * PAGE_BYTES as u64)?;
        look(&bytes);
        Ok(())
    }

    fn pages(&self, pages: &[u64], look: &mut dyn FnMut(usize, &Page)) -> Result<()> {
        gather_pages(File::len(self), pages, |bytes, ranges| Ok(self.read_ranges(bytes, ranges)?), look)
    }

    fn len(&self) -> Result<u64> {
        Ok(File::len(self))
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_at(bytes, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(File::sync(self)?)
    }
}

/// The value of a key as a future. No thread changes the table meanwhile.
async fn get(table: &Table<File>, file: &File, key: u64) -> Result<Option<Vec<u8>>> {
    for page in table.probe(key) {
        let bytes = file.read_async(page * PAGE_BYTES as u64, PAGE_BYTES).await?;
        match find(bytes.first_chunk().ok_or("the file ends within a page")?, key) {
            Found::Value(value) => return Ok(Some(value.to_vec())),
            Found::Nowhere => return Ok(None),
            Found::Behind => {}
        }
    }
    Ok(None)
}

fn main() -> Result<()> {
    on_drives(100_000, run)
}

fn run(drives: &[PathBuf], count: u64) -> Result<()> {
    let records = Records { count, is_varied: true, round: 0 };
    // Pages are two thirds full, and memory holds an eighth of them.
    let pages = (count * 138 * 3 / 2).div_ceil(PAGE_BYTES as u64);
    let array = ArrayOptions::new().cache_bytes((pages * PAGE_BYTES as u64 / 8).max(4 << 20)).create(drives)?;
    let file = |name: &str| array.create_file(name, &FileOptions::new());
    let table = Table::load([file("table")?, file("log")?, file("run")?], pages, records.sorted())?;
    let added = AtomicU64::new(count);
    for (load, seed) in Load::ALL.into_iter().zip(0..) {
        let operations = if load == Load::E { 4_000 } else { 20_000 };
        let start = Instant::now();
        Run { store: &table, records, count: &added, seed }.go(load, operations, THREADS)?;
        println!("load {load:?}: {:.0} operations/s", operations as f64 / start.elapsed().as_secs_f64());
    }

    let pages_of_table = array.open_file("table")?;
    let start = Instant::now();
    let keys: Vec<u64> = (0..20_000).map(|draw| records.key(mix(draw) % count)).collect();
    for keys in keys.chunks(FUTURES as usize) {
        let mut reads: Vec<_> = keys.iter().map(|key| Box::pin(get(&table, &pages_of_table, *key))).collect();
        // A future begins when it is polled, so all are polled before one is waited for.
        block_on(std::future::poll_fn(|context| {
            reads.retain_mut(|read| match read.as_mut().poll(context) {
                std::task::Poll::Ready(value) => {
                    assert!(value.is_ok_and(|value| value.is_some()), "each key is there");
                    false
                }
                std::task::Poll::Pending => true,
            });
            if reads.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }))?;
    }
    println!("reads, {FUTURES} futures at a time: {:.0}/s", keys.len() as f64 / start.elapsed().as_secs_f64());

    // As after a crash: what only the log has is put into the table again.
    drop((table, pages_of_table));
    let file = |name: &str| array.open_file(name);
    let table = Table::open([file("table")?, file("log")?, file("run")?], pages)?;
    for record in 0..added.into_inner() {
        let key = records.key(record);
        let value = table.get(key)?.ok_or("a record is missing")?;
        records.check(key, &value)?;
    }
    println!("opened again: each record is there");
    drop(table);
    Ok(array.close()?)
}
