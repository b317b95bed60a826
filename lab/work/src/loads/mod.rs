//! The loads: the files of each, its data in memory, and its timed parts.

mod graph;
mod kv;
mod labels;
pub(crate) mod timed;
mod train;
mod vectors;

use crate::job::{Job, Load, Result};
use timed::Ready;

/// Makes the data of a load.
pub(crate) fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    match job.load {
        Load::Kv => kv::make(job, array),
        Load::Graph => graph::make(job, array),
        Load::Labels => labels::make(job, array),
        Load::Vectors => vectors::make(job, array),
        Load::Train => train::make(job, array),
    }
}

/// Opens the data of a load.
pub(crate) fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Box<dyn Ready>> {
    Ok(match job.load {
        Load::Kv => kv::open(job, array)?,
        Load::Graph => Box::new(graph::open(job, array)?),
        Load::Labels => Box::new(labels::open(job, array)?),
        Load::Vectors => Box::new(vectors::open(job, array)?),
        Load::Train => Box::new(train::open(job, array)?),
    })
}
