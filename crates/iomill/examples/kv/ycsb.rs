//! The loads A to F of YCSB (Cooper et al., SoCC 2010) on a key-value store, from several threads. Each value that is
//! read is checked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use super::table::{Medium, Result, Table, mix};

/// A key-value store. A thread that has changed something calls `commit`.
pub trait Store: Sync {
    /// The value of a key.
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>>;
    /// Gives a key that may be there a value.
    fn put(&self, key: u64, value: &[u8]) -> Result<()>;
    /// Up to `count` keys from one on, in their order, with their values.
    fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>>;
    /// Returns when this thread's changes are durable.
    fn commit(&self) -> Result<()>;
}

impl<M: Medium> Store for Table<M> {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>> {
        Table::get(self, key)
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        Table::put(self, key, value)
    }

    fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        Table::scan(self, from, count)
    }

    fn commit(&self) -> Result<()> {
        Table::commit(self)
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Half reads, half updates.
    A,
    /// 95% reads, 5% updates.
    B,
    /// Reads.
    C,
    /// 95% reads, of the latest keys most, 5% new keys.
    D,
    /// 95% scans of up to 100 keys, 5% new keys.
    E,
    /// Half reads, half reads followed by an update.
    F,
}

impl Load {
    pub const ALL: [Load; 6] = [Load::A, Load::B, Load::C, Load::D, Load::E, Load::F];

    /// How many of 100 operations only read.
    fn read_percent(self) -> u64 {
        match self {
            Load::A | Load::F => 50,
            Load::B | Load::D | Load::E => 95,
            Load::C => 100,
        }
    }
}

/// Changes of a thread between two commits.
const COMMIT_EVERY: u64 = 32;

/// The records that a store begins with.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    pub count: u64,
    /// Whether values differ in length, from 16 to 240 bytes. Else all have 128.
    pub is_varied: bool,
    /// Records that are added have other keys in another round.
    pub round: u64,
}

impl Records {
    /// The key of a record. Its number of order is another.
    pub fn key(self, record: u64) -> u64 {
        mix(if record < self.count { record } else { record ^ self.round << 40 }) >> 1
    }

    /// A value of a key. There are as many as there are seeds, and each proves itself.
    pub fn value(self, key: u64, seed: u64) -> Vec<u8> {
        let len = if self.is_varied { 16 + mix(key ^ seed) as usize % 225 } else { 128 };
        let mut value = seed.to_le_bytes().to_vec();
        let mut word = key ^ seed;
        while value.len() < len {
            word = mix(word);
            value.extend_from_slice(&word.to_le_bytes());
        }
        value.truncate(len);
        value
    }

    /// An error if bytes are no value of the key.
    pub fn check(self, key: u64, value: &[u8]) -> Result<()> {
        let seed = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match seed {
            Some(seed) if self.value(key, seed) == value => Ok(()),
            _ => Err(format!("key {key:x} has a value that was never written").into()),
        }
    }

    /// All records in the order of their keys.
    pub fn sorted(self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let mut keys: Vec<u64> = (0..self.count).map(|record| self.key(record)).collect();
        keys.sort_unstable();
        keys.into_iter().map(move |key| (key, self.value(key, 0)))
    }
}

/// What a run needs.
pub struct Run<'a, S> {
    pub store: &'a S,
    pub records: Records,
    /// Records that are there: those of the beginning, and those that loads have added.
    pub count: &'a AtomicU64,
    pub seed: u64,
}

impl<S: Store> Run<'_, S> {
    /// Does `operations` of a load in `threads` threads.
    pub fn go(&self, load: Load, operations: u64, threads: u64) -> Result<()> {
        let zipf = Zipf::new(self.records.count);
        let work = |thread| self.work(load, operations / threads, mix(self.seed ^ thread), &zipf);
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of the load panicked"))
        })
    }

    fn work(&self, load: Load, operations: u64, seed: u64, zipf: &Zipf) -> Result<()> {
        let mut changes = 0;
        for operation in 0..operations {
            let draw = |what: u64| mix(seed ^ mix(operation << 8 | what));
            let count = self.count.load(Relaxed);
            let rank = zipf.rank(draw(0));
            let record = if load == Load::D { count - 1 - rank % count } else { mix(rank) % self.records.count };
            let key = self.records.key(record);
            let is_read = draw(1) % 100 < load.read_percent();
            if is_read && load == Load::E {
                self.scan(key, 1 + draw(2) as usize % 100)?;
            } else if is_read || load == Load::F {
                self.get(key, record)?;
            }
            if !is_read {
                let is_new = matches!(load, Load::D | Load::E);
                let key = if is_new { self.records.key(self.count.fetch_add(1, Relaxed)) } else { key };
                self.store.put(key, &self.records.value(key, draw(3)))?;
                changes += 1;
                if changes % COMMIT_EVERY == 0 {
                    self.store.commit()?;
                }
            }
        }
        self.store.commit()
    }

    fn get(&self, key: u64, record: u64) -> Result<()> {
        match self.store.get(key)? {
            Some(value) => self.records.check(key, &value),
            // Another thread has taken its number, and has not stored it yet.
            None if record >= self.records.count => Ok(()),
            None => Err(format!("key {key:x} is missing").into()),
        }
    }

    fn scan(&self, from: u64, count: usize) -> Result<()> {
        let found = self.store.scan(from, count)?;
        if !found.is_sorted_by_key(|(key, _)| *key)
            || found.len() > count
            || found.first().is_none_or(|first| first.0 < from)
        {
            return Err(
                format!("a scan from key {from:x} brought {} keys, not in order or too small", found.len()).into()
            );
        }
        found.iter().try_for_each(|(key, value)| self.records.check(*key, value))
    }
}

/// Numbers below `count` by a zipf law with the exponent 0.99 (Gray et al., SIGMOD 1994, as YCSB draws them).
struct Zipf {
    count: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    fn new(count: u64) -> Zipf {
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum();
        let both = 1.0 + 0.5_f64.powf(THETA);
        let count = count as f64;
        let eta = (1.0 - (2.0 / count).powf(1.0 - THETA)) / (1.0 - both / zeta);
        Zipf { count, zeta, eta }
    }

    fn rank(&self, drawn: u64) -> u64 {
        let share = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = share * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.count * (self.eta * share - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(self.count as u64 - 1)
    }
}
