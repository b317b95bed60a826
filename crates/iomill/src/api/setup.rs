//! Checks and choices when an array is opened or a file is created: options, engines, CPUs, counters. Non-goals:
//! applying them.

use std::sync::Arc;

use iomill_platform::devices;
use iomill_platform::tree::Tree;

use super::file_options::FileOptions;
use super::options::ArrayOptions;
use crate::catalog::{Catalog, Drive, FileSpec, Id};
use crate::counters::{Board, Subject};
use crate::drive::service::Service;
use crate::drive::{Batching, DEFAULT_PLUG, DEPTH_MAX, PAGE_BYTES, PLUG_MAX};
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::exec::CpusOfDrives;
use crate::exec::roles::NodeRoles;
use crate::layout::Layout;
use crate::sys::cpu;
use crate::sys::fs::{Access, Alignment, DriveFile, DriveFs, Handle};

/// The most slots of one thread over all drives: an io_uring has no more.
const IN_FLIGHT_MAX: usize = 65_000;

/// The number of consecutive new files that begin on the same drive. Files that are made at the same time share the
/// fsync of that drive.
const FILES_TO_A_DRIVE: u64 = 64;

/// The file of a drive that is probed to choose the drive's engine.
pub const PROBED: &str = "label";

/// The largest block in bytes.
const BLOCK_BYTES_MAX: u32 = 64 << 20;

/// The roles of the nodes, or an error if options are invalid alone or together, for an array of drives with these
/// depths.
pub fn check(options: &ArrayOptions, depths: &[u32], writer: bool) -> Result<NodeRoles> {
    let drives = depths.len();
    if let Some(depth) = depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
        return Err(Error::invalid(format!("depth {depth}"), format!("it is 1 to {DEPTH_MAX}")));
    }
    let plug = options.tuning.batching.plug;
    if !(1..=PLUG_MAX).contains(&plug) {
        return Err(Error::invalid(format!("a plug of {plug}"), format!("it is 1 to {PLUG_MAX}")));
    }
    let in_flight: usize = depths.iter().map(|depth| *depth as usize).sum();
    if in_flight > IN_FLIGHT_MAX {
        let what = format!("{in_flight} I/Os in flight on {drives} drives");
        return Err(Error::invalid(what, format!("a thread has at most {IN_FLIGHT_MAX} I/Os in flight on all drives")));
    }
    if options.engine == Some(EngineKind::Null) && writer {
        let why = "it does no I/O at all, so it serves measurements of an array opened for reading only";
        return Err(Error::invalid("engine null", why));
    }
    if let Some(map) = &options.tuning.cpu_map
        && map.len() != drives
    {
        let what = format!("a CPU map of {} entries", map.len());
        return Err(Error::invalid(what, format!("the array has {drives} drives")));
    }
    let roles = options.roles()?;
    check_for_use(options, depths, &roles)?;
    Ok(roles)
}

/// An error if an option has no effect in this combination: the program expects an effect.
fn check_for_use(options: &ArrayOptions, depths: &[u32], roles: &NodeRoles) -> Result<()> {
    let has_cache = options.cache_bytes != Some(0);
    let has_drive_threads = options.drive_threads_in_force() || (has_cache && roles.are_apart());
    let unused = |what: String, why, advice: &'static str| Err(Error::invalid(what, why).advise(advice));
    if options.tuning.cpu_map.is_some() && !has_drive_threads {
        let why = "only drive threads run on its CPUs, and the array has none";
        return unused("a CPU map".to_owned(), why, "ask for them (`Tuning::drive_threads`), or give no map");
    }
    if roles.io.len() < roles.nodes.len() && !has_drive_threads {
        let why = "only drive threads run on these nodes, and the array has none";
        return unused(
            "a list of I/O nodes".to_owned(),
            why,
            "ask for them (`Tuning::drive_threads`), or give no list",
        );
    }
    if roles.cache.len() < roles.nodes.len() && !has_cache {
        let why = "the array has no cache (`cache_bytes` is 0)";
        return unused("a list of cache nodes".to_owned(), why, "give it a cache, or give no list");
    }
    if let (false, Some(most @ 1..)) = (has_cache, options.cache.max_bytes) {
        let why = "without a cache there is nothing to grow (`cache_bytes` is 0)";
        return unused(
            format!("a cache that may grow to {most} bytes"),
            why,
            "give it a cache, or leave `max_bytes` out",
        );
    }
    let Batching { merge, plug, adaptive, .. } = options.tuning.batching;
    if adaptive && depths.iter().all(|depth| *depth == 1) {
        let why = "a queue with one slot has no choice";
        return unused("an adaptive depth".to_owned(), why, "set a larger `depth`, or leave `adaptive_depth` out");
    }
    if !merge && plug > 1 && plug != DEFAULT_PLUG {
        let why = "requests wait to be merged, and merging is off";
        return unused(format!("a plug of {plug}"), why, "turn merging on (`Tuning::merge`), or leave the plug out");
    }
    if options.read_only && !options.sync_changes {
        let why = "an array for reading only has no changes";
        return unused("`sync_changes(false)`".to_owned(), why, "leave it out, or open the array for writing");
    }
    Ok(())
}

/// An error unless the block size is a multiple of a page, within the bound.
fn check_block_bytes(block_bytes: u32) -> Result<()> {
    if !(block_bytes as usize).is_multiple_of(PAGE_BYTES)
        || !(PAGE_BYTES as u32..=BLOCK_BYTES_MAX).contains(&block_bytes)
    {
        let why = format!("it must be a multiple of {PAGE_BYTES} bytes, at most {BLOCK_BYTES_MAX}");
        return Err(Error::invalid(format!("block size {block_bytes}"), why));
    }
    Ok(())
}

/// The depths of all drives.
pub fn depths(options: &ArrayOptions, drives: &[Drive]) -> Vec<u32> {
    drives.iter().map(|drive| options.depth_of(Some(&drive.id))).collect()
}

/// The catalog's description of a new file.
pub fn file_spec(options: &ArrayOptions, catalog: &Catalog, file: &FileOptions) -> Result<FileSpec> {
    check_block_bytes(file.block_bytes)?;
    let drives = match &file.drives {
        Some(drives) => check_drives(drives, catalog)?,
        None => drives_in_turn(catalog, file.layout),
    };
    let mut key = [0; 8];
    let random = options.platform.random(&mut key);
    random.map_err(|source| Error::Random { source })?;
    Ok(FileSpec {
        layout: file.layout,
        block_bytes: file.block_bytes,
        drives,
        key: u64::from_le_bytes(key),
        weights: options.weights_of_files(catalog),
        sums: file.checksums,
    })
}

/// All drives, rotated. A striped file begins with the first drive of the list, and a small file has all of its bytes
/// there. So new files begin on the drives in turn. The hash layout has no first drive.
fn drives_in_turn(catalog: &Catalog, layout: Layout) -> Vec<u16> {
    let mut drives: Vec<u16> = (0..catalog.drives().len() as u16).collect();
    if layout != Layout::Hash {
        let turn = catalog.next_number() / FILES_TO_A_DRIVE % drives.len() as u64;
        drives.rotate_left(turn as usize);
    }
    drives
}

/// An error unless the list names drives of the array, each at most once.
fn check_drives(drives: &[u16], catalog: &Catalog) -> Result<Vec<u16>> {
    let count = catalog.drives().len();
    if drives.is_empty() {
        return Err(Error::invalid("an empty list of drives", "a file needs at least one"));
    }
    for (position, &drive) in drives.iter().enumerate() {
        if usize::from(drive) >= count {
            let why = format!("the array has drives 0 to {}", count - 1);
            return Err(Error::invalid(format!("drive {drive}"), why));
        }
        if drives[..position].contains(&drive) {
            return Err(Error::invalid(format!("drive {drive}"), "named twice for one file"));
        }
    }
    Ok(drives.to_vec())
}

/// Chooses the service of each drive by probing a file on it: [`PROBED`] if the drives are an array.
pub fn services(
    options: &ArrayOptions,
    drives: &[Drive],
    probed: &str,
    notices: &mut Vec<String>,
) -> Result<Vec<Service>> {
    let mut services = Vec::new();
    for drive in drives {
        let at = || drive.fs.location().join("iomill").join(probed);
        let probe =
            DriveFile::open(&drive.fs, probed, Access::READ.direct()).map_err(|e| Error::in_array("open", at(), e))?;
        let align = drive.fs.alignment(probe.handle()).map_err(|e| Error::io("examine", at(), e))?;
        let name = drive.fs.location().display().to_string();
        let place = Place { fs: &*drive.fs, probe: probe.handle(), align, name: &name };
        services.push(service(options, place, options.depth_of(Some(&drive.id)), notices)?);
    }
    Ok(services)
}

/// The input of the choice for a drive.
pub struct Place<'a> {
    pub fs: &'a dyn DriveFs,
    /// An open file on it.
    pub probe: Handle,
    /// The alignment that direct I/O on that file needs.
    pub align: Alignment,
    /// The drive, for notices.
    pub name: &'a str,
}

/// Chooses the service of a drive.
pub fn service(options: &ArrayOptions, place: Place<'_>, depth: u32, notices: &mut Vec<String>) -> Result<Service> {
    let Place { fs, probe, align, name } = place;
    let choice = options.platform.choose(fs, probe, options.engine);
    let choice = choice.map_err(|e| Error::drive(fs.location().to_owned(), format!("no engine for it: {e}")))?;
    if let Some(why) = &choice.why {
        notices.push(format!("drive {name}: {why}"));
    }
    // System calls on a mapped file must see the bytes of the mapping, which are in the kernel's page cache.
    let is_mapped = choice.kind == EngineKind::Mmap;
    let align = if is_mapped { Alignment::NONE } else { align };
    if !align.is_direct() && !is_mapped {
        let twice = if options.cache_bytes == Some(0) { "" } else { ", and cached twice: by the kernel and by iomill" };
        let notice = "its file system refuses direct I/O, so reads and writes are buffered";
        notices.push(format!("drive {name}: {notice}{twice}"));
    }
    if options.tuning.poll && choice.kind == EngineKind::Aio {
        notices.push(format!("drive {name}: libaio cannot poll, so completions come by interrupt"));
    }
    if options.tuning.poll && is_mapped {
        notices.push(format!("drive {name}: copies do not poll, so mapped parts are read as without it"));
    }
    if options.tuning.poll && choice.kind == EngineKind::Posix {
        notices.push(format!("drive {name}: posix cannot poll, so completions come by interrupt"));
    }
    if options.tuning.poll && choice.kind == EngineKind::Uring {
        let device = fs.ground().map_err(|e| Error::io("examine", fs.location(), e))?.device;
        if devices::can_poll(&Tree::machine(), &device) == Some(false) {
            notices.push(format!(
                "drive {name}: {device} has no queues to poll (`io_poll` is 0), so completions come by interrupt"
            ));
        }
    }
    let (batching, poll) = (options.tuning.batching, options.tuning.poll);
    Ok(Service { kind: choice.kind, align, depth, batching, poll, meter: None })
}

/// The counters of an array in this process. Other processes can read them if the platform has a directory for them.
pub fn board(options: &ArrayOptions, array: Id, drives: &[Drive], notices: &mut Vec<String>) -> Result<Arc<Board>> {
    let platform = &*options.platform;
    let directories = platform.counter_directories();
    let mut salt = [0; 8];
    // A simulation keeps its randomness for what it simulates.
    if !directories.is_empty() {
        platform.random(&mut salt).map_err(|source| Error::Random { source })?;
    }
    let drives = drives.iter().map(|drive| drive.fs.location().display().to_string()).collect();
    let subject = Subject { array: array.0, drives };
    let board = Board::new(&subject, &directories, u64::from_le_bytes(salt), notices);
    board.map_err(Error::memory("counters", crate::counters::BANKS_BYTES))
}

/// [`cpus`], evaluated when the drive threads start.
pub fn cpus_later(options: &ArrayOptions, catalog: &Arc<Catalog>, roles: &Arc<NodeRoles>) -> CpusOfDrives {
    let (cpu_map, catalog, roles) = (options.tuning.cpu_map.clone(), Arc::clone(catalog), Arc::clone(roles));
    Box::new(move || cpus(cpu_map.as_ref(), &catalog, &roles))
}

/// The CPUs of each drive's thread: those of the option, or those of its node. With one node they are the CPUs near the
/// drive that this process may use. Empty if they are unknown, or if all CPUs are near.
fn cpus(cpu_map: Option<&Vec<Vec<usize>>>, catalog: &Catalog, roles: &NodeRoles) -> Result<Vec<Vec<usize>>> {
    if let Some(map) = cpu_map {
        return Ok(map.clone());
    }
    let ground = |drive: &Drive| drive.fs.ground().map_err(|e| Error::io("examine", drive.fs.location(), e));
    if roles.nodes.len() > 1 {
        let grounds = catalog.drives().iter().map(|drive| Ok(ground(drive)?.node)).collect::<Result<Vec<_>>>()?;
        let nodes = roles.of_drives(&grounds);
        return Ok(nodes.into_iter().map(|node| roles.nodes[node].cpus.clone()).collect());
    }
    let allowed = cpu::allowed().unwrap_or_default();
    catalog.drives().iter().map(|drive| Ok(near(ground(drive)?.cpus, &allowed))).collect()
}

/// The CPUs near a drive that this process may use. Empty if they are all the CPUs that it may use.
pub fn near(mut cpus: Vec<usize>, allowed: &[usize]) -> Vec<usize> {
    cpus.retain(|cpu| allowed.contains(cpu));
    if cpus.len() == allowed.len() { Vec::new() } else { cpus }
}
