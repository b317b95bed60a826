//! Key-value stores of others: redb, and RocksDB, LMDB and WiredTiger by their C libraries, where these are installed.
//!
//! `stores.c` calls the C libraries. It is built only when it is used, so the lab builds without them.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use libloading::Library;
use redb::{Database, TableDefinition};

use crate::job::{Contender, Job, Result};
use crate::kv::ycsb::Store;

/// Debian's names of the libraries with their headers.
const LIBRARIES: [(Contender, &str, &str, &str); 3] = [
    (Contender::RocksDb, "ROCKSDB", "rocksdb", "librocksdb-dev"),
    (Contender::Lmdb, "LMDB", "lmdb", "liblmdb-dev"),
    (Contender::WiredTiger, "WIREDTIGER", "wiredtiger", "libwiredtiger-dev"),
];

/// The library of a contender, built below `place`. `None` for a contender that needs none.
pub fn build(contender: Contender, place: &Path) -> Result<Option<PathBuf>> {
    let Some((_, define, library, package)) = LIBRARIES.into_iter().find(|row| row.0 == contender) else {
        return Ok(None);
    };
    let built = place.join(format!("lib{library}-store.so"));
    if !built.exists() {
        let source = place.join("stores.c");
        std::fs::write(&source, include_str!("stores.c"))?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-fPIC", "-shared", "-o"]).arg(&built).arg(&source);
        let output = command.arg(format!("-D{define}")).arg(format!("-l{library}")).output();
        let output = output.map_err(|error| format!("`cc` cannot be run: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let why = said.lines().next().unwrap_or("the compiler failed").to_owned();
            return Err(format!("it cannot be built ({why}); install {package}").into());
        }
    }
    Ok(Some(built))
}

/// The store of a job, made or opened; `None` if the job's contender is not a store of others.
pub fn open(job: &Job, makes: bool) -> Result<Option<Box<dyn Store>>> {
    let path = job.place.join(format!("{}.store", job.contender.name()));
    if makes {
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
    }
    if job.contender == Contender::Redb {
        let cache = usize::try_from(job.cache_bytes / 2)?;
        let base = Database::builder().set_cache_size(cache).create(&path)?;
        let transaction = base.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.commit()?;
        return Ok(Some(Box::new(Redb { base })));
    }
    let Some(library) = build(job.contender, &job.place)? else { return Ok(None) };
    if makes && job.contender == Contender::WiredTiger {
        std::fs::create_dir(&path)?;
    }
    Ok(Some(Box::new(Foreign::open(&library, &path, job)?)))
}

thread_local! {
    /// Changes of this thread that are not committed. A process has one store.
    static CHANGES: RefCell<Vec<(u64, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a change until the commit, so that the store's only writer is held just for the commit.
fn keep_change(key: u64, value: &[u8]) {
    CHANGES.with_borrow_mut(|changes| changes.push((key, value.to_vec())));
}

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");

struct Redb {
    base: Database,
}

impl Store for Redb {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.base.begin_read()?.open_table(RECORDS)?.get(key)?.map(|value| value.value().to_vec()))
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        keep_change(key, value);
        Ok(())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let records = self.base.begin_read()?.open_table(RECORDS)?;
        let found = records.range(from..)?.take(count).map(|entry| {
            let (key, value) = entry?;
            Ok((key.value(), value.value().to_vec()))
        });
        found.collect()
    }

    fn commit(&self) -> Result<()> {
        let changes = CHANGES.take();
        if changes.is_empty() {
            return Ok(());
        }
        let transaction = self.base.begin_write()?;
        let mut records = transaction.open_table(RECORDS)?;
        for (key, value) in changes {
            records.insert(key, &value[..])?;
        }
        drop(records);
        Ok(transaction.commit()?)
    }
}

/// The function that `stores.c` calls for each record.
type Look = unsafe extern "C" fn(*mut c_void, u64, *const c_void, usize);

/// Records that a call of `stores.c` has found.
type FoundRecords = Vec<(u64, Vec<u8>)>;

type Open = unsafe extern "C" fn(*const c_char, usize, *mut *mut c_void) -> *const c_char;
type Get = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, Look) -> *const c_char;
type Put = unsafe extern "C" fn(*mut c_void, u64, *const c_void, usize) -> *const c_char;
type Scan = unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_void, Look) -> *const c_char;
type Commit = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// A store by its C library. Its functions are looked up once, because calls are timed.
struct Foreign {
    store: *mut c_void,
    get: Get,
    put: Put,
    scan: Scan,
    commit: Commit,
    close: Commit,
    /// Whether it has one writer, which is held for a commit only.
    is_batched: bool,
    /// Has the functions above.
    _library: Library,
}

// SAFETY: threads may use a store at the same time, as the head of `stores.c` says.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn open(library: &Path, path: &Path, job: &Job) -> Result<Foreign> {
        // SAFETY: the library is `stores.c`, which does nothing when it is loaded.
        let library = unsafe { Library::new(library) }?;
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let cache = usize::try_from(job.cache_bytes)?;
        let mut store = std::ptr::null_mut();
        // SAFETY: each function has this type in `stores.c`, and `_library` lives as long as the pointers to them.
        let (open, get, put, scan, commit, close) = unsafe {
            (
                *library.get::<Open>(b"kv_open\0")?,
                *library.get::<Get>(b"kv_get\0")?,
                *library.get::<Put>(b"kv_put\0")?,
                *library.get::<Scan>(b"kv_scan\0")?,
                *library.get::<Commit>(b"kv_commit\0")?,
                *library.get::<Commit>(b"kv_close\0")?,
            )
        };
        // SAFETY: the path ends with a 0, and the last pointer is valid for the store that the call makes.
        said(unsafe { open(path.as_ptr(), cache, &raw mut store) })?;
        let is_batched = job.contender == Contender::Lmdb;
        Ok(Foreign { store, get, put, scan, commit, close, is_batched, _library: library })
    }

    fn put_now(&self, key: u64, value: &[u8]) -> Result<()> {
        // SAFETY: the call reads the value, and keeps no pointer to it.
        said(unsafe { (self.put)(self.store, key, value.as_ptr().cast(), value.len()) })
    }
}

/// The error of a call, if it has failed.
fn said(text: *const c_char) -> Result<()> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: a text of `stores.c` ends with a 0, and stays until its thread's next call.
    Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned().into())
}

/// Keeps a record that a call has found.
unsafe extern "C" fn keep(found: *mut c_void, key: u64, value: *const c_void, len: usize) {
    // SAFETY: the callers below give a list that nothing else uses during the call, and `stores.c` gives `len` bytes.
    let (found, value) =
        unsafe { (&mut *found.cast::<FoundRecords>(), slice::from_raw_parts(value.cast::<u8>(), len)) };
    found.push((key, value.to_vec()));
}

impl Store for Foreign {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>> {
        let mut found = FoundRecords::new();
        // SAFETY: the call hands the list to `keep`, and keeps no pointer to it.
        said(unsafe { (self.get)(self.store, key, (&raw mut found).cast(), keep) })?;
        Ok(found.pop().map(|(_, value)| value))
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        if self.is_batched {
            keep_change(key, value);
            return Ok(());
        }
        self.put_now(key, value)
    }

    fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut found = FoundRecords::new();
        // SAFETY: the call hands the list to `keep`, and keeps no pointer to it.
        said(unsafe { (self.scan)(self.store, from, count, (&raw mut found).cast(), keep) })?;
        Ok(found)
    }

    fn commit(&self) -> Result<()> {
        for (key, value) in CHANGES.take() {
            self.put_now(key, &value)?;
        }
        // SAFETY: the store is open.
        said(unsafe { (self.commit)(self.store) })
    }
}

impl Drop for Foreign {
    /// A failure to close is no failure of the load: committed data are durable.
    fn drop(&mut self) {
        // SAFETY: this is the last call on the store.
        unsafe { (self.close)(self.store) };
    }
}
