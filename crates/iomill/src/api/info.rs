//! The description of an array: [`ArrayInfo`], [`DriveInfo`], [`NodeInfo`], [`FileStat`]. Non-goals: counters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::options::ArrayOptions;
pub use crate::catalog::SmallSpace;
use crate::catalog::{Catalog, Record, part_path, shared_path};
use crate::drive::service::Service;
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::exec::roles::NodeRoles;
use crate::layout::{Layout, Map};
use crate::sys::fs::Ground;

/// An array and its drives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayInfo {
    /// The array's id.
    pub id: String,
    /// The number of times that the labels were rewritten.
    pub epoch: u64,
    /// Number of files.
    pub files: usize,
    /// The drives, by index.
    pub drives: Vec<DriveInfo>,
    /// The nodes in rising order; one node if the machine has no NUMA.
    pub nodes: Vec<NodeInfo>,
    /// Whether each drive has a thread that does its I/O.
    pub drive_threads: bool,
    /// The most asynchronous requests to a drive that wait for neighbours.
    pub plug: u32,
    /// Messages for users ([`Array::notices`](super::Array::notices)).
    pub notices: Vec<String>,
}

/// One NUMA node, or one that is emulated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Its number.
    pub id: usize,
    /// Its CPUs that this process may use; empty means any.
    pub cpus: Vec<usize>,
    /// Whether it caches.
    pub caches: bool,
    /// The drives that it owns, by index.
    pub drives: Vec<u16>,
    /// The size of its cache in pages; 0 without a cache.
    pub pages: u64,
    /// The number of pages that calls have requested from its threads by message.
    pub sent_pages: u64,
}

/// One drive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DriveInfo {
    /// Its directory.
    pub path: PathBuf,
    /// Its id.
    pub id: String,
    /// Its index in the array.
    pub index: u16,
    /// Its share in new files with the hash layout, relative to the other drives'.
    pub weight: u32,
    /// The most I/Os in flight.
    pub depth: u32,
    /// File system, device and space.
    pub ground: Ground,
    /// The engine that serves it.
    pub engine: EngineKind,
    /// Whether I/O bypasses the kernel's page cache.
    pub direct: bool,
    /// The space of small files.
    pub small: SmallSpace,
}

impl ArrayInfo {
    pub(crate) fn new<'a>(
        catalog: &Catalog,
        options: &ArrayOptions,
        services: impl Iterator<Item = &'a Service>,
        roles: &NodeRoles,
        notices: Vec<String>,
    ) -> Result<ArrayInfo> {
        let mut drives = Vec::new();
        let weights = options.weights_of_files(catalog);
        let small = catalog.small_space()?;
        for (index, (drive, service)) in catalog.drives().iter().zip(services).enumerate() {
            drives.push(DriveInfo {
                path: drive.fs.location().to_owned(),
                id: drive.id.to_string(),
                index: index as u16,
                weight: weights.as_ref().and_then(|weights| weights.get(index)).copied().unwrap_or(drive.weight),
                depth: service.depth,
                ground: drive.fs.ground().map_err(|e| Error::io("examine", drive.fs.location(), e))?,
                engine: service.kind,
                direct: service.align.is_direct(),
                small: small.get(index).copied().unwrap_or_default(),
            });
        }
        let grounds: Vec<Option<u32>> = drives.iter().map(|drive| drive.ground.node).collect();
        let owner = roles.of_drives(&grounds);
        let node = |place: usize| NodeInfo {
            id: roles.nodes[place].id,
            cpus: roles.nodes[place].cpus.clone(),
            caches: roles.cache.contains(&place),
            drives: (0..drives.len()).filter(|&drive| owner[drive] == place).map(|drive| drive as u16).collect(),
            pages: 0,
            sent_pages: 0,
        };
        let nodes = (0..roles.nodes.len()).map(node).collect();
        let (id, epoch, files) = (catalog.id().to_string(), catalog.epoch(), catalog.count());
        let (drive_threads, plug) = (options.drive_threads_in_force(), options.tuning.batching.plug);
        Ok(ArrayInfo { id, epoch, files, drives, nodes, drive_threads, plug, notices })
    }
}

/// A time of the catalog: nanoseconds since the start of 1970 (UTC).
pub(super) fn time(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}

/// The metadata of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileStat {
    /// Its name.
    pub name: String,
    /// Its id, which no other file ever gets.
    pub id: String,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Its layout.
    pub layout: Layout,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Whether its pages have [checksums](super::FileOptions::checksums).
    pub checksums: bool,
    /// Its drives, by index in the array, in the layout's order.
    pub drives: Vec<u16>,
    /// Their weights when the file was created (hash layout).
    pub weights: Vec<u32>,
    /// The key of the hash layout.
    pub key: u64,
    /// Its parts, in the order of `drives`, each with its least length in bytes for the file's length. With the hash
    /// layout parts have gaps, so their lengths add up to more than that of the file. The bytes of a small file are in
    /// a part that it shares with other files. A path need not exist: a file makes a part when it first needs it, and a
    /// small file has no parts of its own.
    pub parts: Vec<(PathBuf, u64)>,
    /// The version of the name. No two files of an array have the same version, so a later file of this name has
    /// another one.
    pub version: u64,
    /// When it was made.
    pub created: SystemTime,
    /// When a change of it was last synced.
    pub modified: SystemTime,
    /// The attributes that users have set.
    pub attributes: BTreeMap<String, String>,
}

impl FileStat {
    pub(crate) fn new(catalog: &Catalog, record: &Record, len_bytes: u64) -> Result<FileStat> {
        let map = Map::new(record.layout, &record.weights, record.key)?;
        let path = part_path(record.number);
        let part = |(position, &drive): (usize, &u16)| {
            let location = catalog.drives().get(usize::from(drive)).map(|drive| drive.fs.location());
            let within = |path: &str| location.unwrap_or("?".as_ref()).join("iomill").join(path);
            match record.extent {
                Some(extent) if extent.drive == drive => (within(&shared_path(extent.shared)), len_bytes),
                Some(_) => (within(&path), 0),
                None => (within(&path), map.part_bytes(position as u16, len_bytes, record.block_bytes)),
            }
        };
        Ok(FileStat {
            name: record.name.clone(),
            id: format!("{:016x}", record.number),
            len_bytes,
            layout: record.layout,
            block_bytes: record.block_bytes,
            checksums: record.sums.is_some(),
            drives: record.drives.clone(),
            weights: record.weights.clone(),
            key: record.key,
            parts: record.drives.iter().enumerate().map(part).collect(),
            version: record.number,
            created: time(record.created_ns),
            modified: time(record.modified_ns),
            attributes: record.attributes.clone(),
        })
    }
}
