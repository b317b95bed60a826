//! Small files as rows of SQLite and as entries of redb. Each change is a transaction that is durable when it returns.
//!
//! Goals: each with the settings that its authors recommend for durable changes: SQLite with a write-ahead log and
//! `synchronous=FULL`, redb by default. Non-goals: many changes in one transaction, which the other contenders do not
//! have either.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::contender::{Contender, REDB, SQLITE};
use crate::files::{FileOp, FileWork, Files, Store};
use iomill::{Error, Result};
use redb::{ReadableTable, TableDefinition};
use rusqlite::{Connection, params};

/// Both stores, each in a file in the directory.
pub fn all(directory: &Path) -> Vec<Box<dyn Contender<FileWork>>> {
    let (sqlite, redb) = (directory.join("sqlite"), directory.join("redb"));
    let cached = "reads come from a cache in memory";
    let with_sqlite = Files::new(SQLITE, move || Ok(Box::new(Sqlite::new(&sqlite)?)));
    let with_redb = Files::new(REDB, move || Ok(Box::new(Redb::new(&redb)?)));
    let note = "one connection, a write-ahead log, synchronous=FULL";
    vec![Box::new(with_sqlite.noting(note).noting(cached)), Box::new(with_redb.noting(cached))]
}

/// The reason why a store takes no part.
fn lacks(op: FileOp) -> Option<&'static str> {
    (op == FileOp::Open).then_some("it has nothing to open")
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Tool { what: path.display().to_string(), why: error.to_string() }
}

fn missing(path: &Path, name: &str) -> Error {
    failed(path, format!("{name} is not there"))
}

struct Sqlite {
    path: PathBuf,
    connection: Mutex<Connection>,
}

impl Sqlite {
    fn new(path: &Path) -> Result<Sqlite> {
        let connection = Connection::open(path).map_err(|e| failed(path, e))?;
        let begin = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
                     CREATE TABLE files (name TEXT PRIMARY KEY, bytes BLOB NOT NULL) WITHOUT ROWID";
        connection.execute_batch(begin).map_err(|e| failed(path, e))?;
        Ok(Sqlite { path: path.to_owned(), connection: Mutex::new(connection) })
    }

    fn with<R>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> Result<R> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        work(&connection).map_err(|e| failed(&self.path, e))
    }
}

impl Store for Sqlite {
    fn lacks(&self, op: FileOp) -> Option<&'static str> {
        lacks(op)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let made = "INSERT INTO files (name, bytes) VALUES (?1, ?2)";
        self.with(|files| files.prepare_cached(made)?.execute(params![name, bytes])).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        match self
            .with(|files| files.prepare_cached("UPDATE files SET name = ?2 WHERE name = ?1")?.execute([from, to]))?
        {
            1 => Ok(()),
            _ => Err(missing(&self.path, from)),
        }
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let asked = "SELECT length(bytes) FROM files WHERE name = ?1";
        self.with(|files| files.prepare_cached(asked)?.query_row([name], |row| row.get::<_, i64>(0)))
            .map(|len| len.unsigned_abs())
    }

    fn open(&self, name: &str) -> Result<()> {
        self.stat(name).map(drop)
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        let asked = "SELECT bytes FROM files WHERE name = ?1";
        let len = page.len();
        let bytes = self.with(|files| {
            files.prepare_cached(asked)?.query_row([name], |row| {
                let bytes = row.get_ref(0)?.as_blob()?;
                Ok(bytes.get(..len).map(|bytes| page.copy_from_slice(bytes)))
            })
        })?;
        bytes.ok_or_else(|| missing(&self.path, name))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let gone = "DELETE FROM files WHERE name = ?1";
        match self.with(|files| files.prepare_cached(gone)?.execute([name]))? {
            1 => Ok(()),
            _ => Err(missing(&self.path, name)),
        }
    }

    fn list(&self) -> Result<u64> {
        self.with(|files| {
            let mut names = files.prepare_cached("SELECT name FROM files ORDER BY name")?;
            let mut rows = names.query([])?;
            let mut found = 0;
            while let Some(row) = rows.next()? {
                found += u64::from(!row.get_ref(0)?.as_bytes()?.is_empty());
            }
            Ok(found)
        })
    }
}

const FILES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("files");

struct Redb {
    path: PathBuf,
    database: redb::Database,
}

impl Redb {
    fn new(path: &Path) -> Result<Redb> {
        let database = redb::Database::create(path).map_err(|e| failed(path, e))?;
        let store = Redb { path: path.to_owned(), database };
        store.change(|_| Ok(()))?;
        Ok(store)
    }

    fn change(&self, work: impl FnOnce(&mut redb::Table<'_, &str, &[u8]>) -> Result<()>) -> Result<()> {
        let failed = |e: redb::Error| failed(&self.path, e);
        let transaction = self.database.begin_write().map_err(|e| failed(e.into()))?;
        work(&mut transaction.open_table(FILES).map_err(|e| failed(e.into()))?)?;
        transaction.commit().map_err(|e| failed(e.into()))
    }

    fn look<R>(&self, work: impl FnOnce(&redb::ReadOnlyTable<&str, &[u8]>) -> Result<R>) -> Result<R> {
        let failed = |e: redb::Error| failed(&self.path, e);
        let transaction = self.database.begin_read().map_err(|e| failed(e.into()))?;
        work(&transaction.open_table(FILES).map_err(|e| failed(e.into()))?)
    }

    fn with_bytes<R>(&self, name: &str, work: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.look(|files| {
            let found = files.get(name).map_err(|e| failed(&self.path, e))?;
            found.map(|bytes| work(bytes.value())).ok_or_else(|| missing(&self.path, name))
        })
    }
}

impl Store for Redb {
    fn lacks(&self, op: FileOp) -> Option<&'static str> {
        lacks(op)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.change(|files| files.insert(name, bytes).map(drop).map_err(|e| failed(&self.path, e)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.change(|files| {
            let bytes = files.remove(from).map_err(|e| failed(&self.path, e))?.map(|found| found.value().to_vec());
            let bytes = bytes.ok_or_else(|| missing(&self.path, from))?;
            files.insert(to, &bytes[..]).map(drop).map_err(|e| failed(&self.path, e))
        })
    }

    fn stat(&self, name: &str) -> Result<u64> {
        self.with_bytes(name, |bytes| bytes.len() as u64)
    }

    fn open(&self, name: &str) -> Result<()> {
        self.stat(name).map(drop)
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        let len = page.len();
        let read = self.with_bytes(name, |bytes| bytes.get(..len).map(|bytes| page.copy_from_slice(bytes)))?;
        read.ok_or_else(|| missing(&self.path, name))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.change(|files| match files.remove(name).map_err(|e| failed(&self.path, e))? {
            Some(_) => Ok(()),
            None => Err(missing(&self.path, name)),
        })
    }

    fn list(&self) -> Result<u64> {
        self.look(|files| {
            let mut found = 0;
            for entry in files.iter().map_err(|e| failed(&self.path, e))? {
                let (name, _) = entry.map_err(|e| failed(&self.path, e))?;
                found += u64::from(!name.value().is_empty());
            }
            Ok(found)
        })
    }
}
