//! Where the server gets rows from: a file of rows of one size, by iomill or by `tokio::fs`.

use std::fmt;
use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use iomill::{Advice, RuntimeOptions};
use rustix::fs::{Advice as KernelAdvice, fadvise};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// What reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reader {
    /// Futures of iomill, driven by the runtime of the server.
    Iomill,
    /// Files of `tokio::fs`, one for each request at a time.
    TokioFs,
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reader::Iomill => "iomill",
            Reader::TokioFs => "tokio-fs",
        })
    }
}

/// A file of rows.
pub struct Source {
    file: Opened,
    row_bytes: usize,
    rows: u64,
}

enum Opened {
    Iomill(iomill::File),
    TokioFs {
        path: PathBuf,
        /// Open files that no request uses. Each has a position, so two requests cannot share one.
        idle: Mutex<Vec<tokio::fs::File>>,
    },
}

impl Source {
    /// Opens a file. It is called within the runtime that will serve.
    pub fn open(path: &Path, row_bytes: usize, reader: Reader, cache_bytes: u64) -> Result<Source> {
        let at = || format!("cannot open {}", path.display());
        let bytes = std::fs::metadata(path).with_context(at)?.len();
        let rows = bytes / row_bytes as u64;
        ensure!(rows > 0, "{} has {bytes} bytes, which is less than a row of {row_bytes}", path.display());
        let file = match reader {
            Reader::Iomill => {
                RuntimeOptions::new().cache_bytes(cache_bytes).start_shared()?;
                iomill::drive_by_tokio(&tokio::runtime::Handle::current())?;
                let file = iomill::open_plain(path)?;
                // Rows are asked for at random, so nothing is to be read ahead.
                file.advise(.., Advice::Random)?;
                Opened::Iomill(file)
            }
            Reader::TokioFs => Opened::TokioFs { path: path.to_owned(), idle: Mutex::default() },
        };
        Ok(Source { file, row_bytes, rows })
    }

    /// How many rows the file has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Reads some rows, one after the other. All of them exist.
    pub async fn read(&self, ids: &[u64]) -> Result<Bytes> {
        let offsets: Vec<u64> = ids.iter().map(|id| id * self.row_bytes as u64).collect();
        match &self.file {
            Opened::Iomill(file) => match offsets[..] {
                [offset] => Ok(file.read_async(offset, self.row_bytes).await?.into()),
                _ => {
                    let out = vec![0; offsets.len() * self.row_bytes];
                    let out = file.read_many_async(out, &offsets, self.row_bytes).await?;
                    Ok(out.into())
                }
            },
            Opened::TokioFs { path, idle } => {
                let taken = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut file = match taken {
                    Some(file) => file,
                    None => open_beside(path).await?,
                };
                let mut out = vec![0; offsets.len() * self.row_bytes];
                for (offset, row) in offsets.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
                    file.seek(SeekFrom::Start(*offset)).await?;
                    file.read_exact(row).await?;
                }
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(file);
                Ok(out.into())
            }
        }
    }
}

/// Opens the file for one more request.
async fn open_beside(path: &Path) -> Result<tokio::fs::File> {
    let file = tokio::fs::File::open(path).await?;
    // Without it the kernel reads far more than a row.
    fadvise(&file, 0, None, KernelAdvice::Random)?;
    Ok(file)
}
