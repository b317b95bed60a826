//! Checks the engine `mmap` on memory that keeps its bytes (DAX), and on devices where only a sync makes them durable.
//!
//! Goals: what the kernel reports of mappings and calls, and which bytes survive a power failure. Non-goals: what a
//! processor's caches lose with the power. The emulator has no such caches, so a missing write-back of lines would not
//! be seen here.
//!
//! Three grounds, each with an array of its own: two NVDIMMs (`MAP_SYNC`; ext4, and XFS if it is installed); virtio
//! memory, which is DAX but needs a sync; and an NVMe drive.

pub mod kernel;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use iomill::{Array, ArrayOptions, EngineKind, Error, FileOptions};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags};
use serde_json::Value;

use crate::{Random, Result, check, iomill_good, lab_good, write};
use kernel::Calls;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 64 * KIB;

/// The file that is checked after the power failure.
const LASTING: &str = "lasting";
const LASTING_BYTES: u64 = 2 * MIB;
const CONTROL: &str = "/mnt/nvdimm0/control";

/// Drives of one kind, and their properties.
struct Ground {
    name: &'static str,
    /// Where they are mounted.
    places: Vec<PathBuf>,
    is_dax: bool,
    /// Whether `MAP_SYNC` works there.
    is_synchronous: bool,
}

impl Ground {
    fn place(&self) -> String {
        self.places[0].to_string_lossy().into_owned()
    }

    /// The array with mapped parts. It has no cache, so that every call reaches the engine.
    fn open(&self) -> Result<Array> {
        let options = ArrayOptions::new().engine(EngineKind::Mmap).cache_bytes(0);
        Ok(options.open(&self.places[0])?)
    }
}

/// The checks before the power failure, which this ends with.
pub fn checks() -> Result<()> {
    make_devices()?;
    let grounds = mount_all()?;
    for ground in &grounds {
        let mut arguments = vec!["init".into()];
        arguments.extend(ground.places.iter().map(|place| place.to_string_lossy().into_owned()));
        iomill_good(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    for ground in &grounds {
        let array = ground.open()?;
        syncs_call_what_they_must(ground, &array)?;
        bytes_are_right(ground, &array)?;
        files_change_under_readers(ground, &array)?;
        a_part_is_mapped_anew(ground, &array)?;
        array.close()?;
    }
    no_room_and_cut_parts_are_errors(&grounds[0])?;
    it_is_reported(&grounds)?;
    commands_work(&grounds[0])?;
    the_power_fails(&grounds)
}

fn make_devices() -> Result<()> {
    kernel::wait_for("memory", || {
        Ok(matches!(kernel::memories()?, (nvdimms, others) if nvdimms.len() == 2 && others.len() == 1))
    })?;
    let (nvdimms, _) = kernel::memories()?;
    for name in &nvdimms {
        // A region's first namespace has a device with the region's number, and keeps it.
        kernel::make_fsdax(name.trim_start_matches("pmem"))?;
    }
    kernel::run("mkfs.ext4", &["-q", "-F", "-b", "4096", &format!("/dev/{}", nvdimms[0])])?;
    let second = format!("/dev/{}", nvdimms[1]);
    match has_xfs() {
        true => kernel::run("mkfs.xfs", &["-q", "-f", "-m", "reflink=0", &second]),
        false => kernel::run("mkfs.ext4", &["-q", "-F", "-b", "4096", &second]),
    }
}

fn has_xfs() -> bool {
    Path::new("/bin/mkfs.xfs").exists()
}

/// Mounts everything, with write-back so slow that data without a sync stays in memory during the checks.
fn mount_all() -> Result<Vec<Ground>> {
    write("/proc/sys/vm/dirty_writeback_centisecs", "0")?;
    kernel::wait_for("the NVMe drive", || Ok(Path::new("/dev/nvme0n1").exists()))?;
    let (nvdimms, virtual_ones) = kernel::memories()?;
    let at = |name: &str| PathBuf::from(format!("/mnt/{name}"));
    let (dax, plain) = ("dax=always,commit=600", "commit=600");
    kernel::mount(&nvdimms[0], &at("nvdimm0"), "ext4", dax)?;
    let (second, options) = if has_xfs() { ("xfs", "dax=always") } else { ("ext4", dax) };
    kernel::mount(&nvdimms[1], &at("nvdimm1"), second, options)?;
    kernel::mount(&virtual_ones[0], &at("virtio"), "ext4", dax)?;
    kernel::mount("nvme0n1", &at("nvme"), "ext4", plain)?;
    println!("ok: {nvdimms:?} (ext4, {second}) and {virtual_ones:?} are mounted with dax=always, nvme0n1 without");
    Ok(vec![
        Ground { name: "NVDIMMs", places: vec![at("nvdimm0"), at("nvdimm1")], is_dax: true, is_synchronous: true },
        Ground { name: "virtio-pmem", places: vec![at("virtio")], is_dax: true, is_synchronous: false },
        Ground { name: "NVMe", places: vec![at("nvme")], is_dax: false, is_synchronous: false },
    ])
}

fn parts(array: &Array, name: &str) -> Result<Vec<PathBuf>> {
    Ok(array.stat(name)?.parts.into_iter().map(|(path, _)| path).collect())
}

fn file_options() -> FileOptions {
    FileOptions::new().block_bytes(BLOCK_BYTES as u32)
}

/// Writes and syncs within a file that has blocks but no data yet, and the same at its end.
fn syncs_call_what_they_must(ground: &Ground, array: &Array) -> Result<()> {
    let calls = Calls::new()?;
    let file = array.create_file("synced", &file_options())?;
    file.preallocate(4 * MIB)?;
    file.set_len(4 * MIB)?;
    file.write_at(&vec![1; 4 * BLOCK_BYTES as usize], 0)?;
    // On every ground the first sync of a mapping is a call of the kernel.
    file.sync()?;
    let paths = parts(array, "synced")?;
    for path in &paths {
        check(kernel::is_dax(path)? == ground.is_dax, format!("{}: DAX is not {}", path.display(), ground.is_dax))?;
        let (_, is_synchronous) = kernel::mapping(path)?;
        check(
            is_synchronous == ground.is_synchronous,
            format!("{}: MAP_SYNC is {is_synchronous}, not {}", path.display(), ground.is_synchronous),
        )?;
    }
    let mut random = Random(7);
    let writes = calls.during(|| {
        for _ in 0..50 {
            let at = random.below(4 * MIB - 5000);
            file.write_at(&random.bytes(5000), at)?;
        }
        Ok(())
    })?;
    check(writes.is_empty(), format!("{}: writes called {writes:?}", ground.name))?;
    let syncs = calls.during(|| Ok(file.sync()?))?;
    let expected = if ground.is_synchronous { vec![] } else { vec![("fdatasync".to_owned(), paths.len())] };
    check(syncs.clone().into_iter().eq(expected), format!("{}: the sync called {syncs:?}", ground.name))?;
    file.write_at(&[3; 5000], 4 * MIB)?;
    let grown = calls.during(|| Ok(file.sync()?))?;
    check(grown.get("fdatasync") >= Some(&1), format!("{}: a sync after growth called {grown:?}", ground.name))?;
    println!(
        "ok: {}: DAX {}, MAP_SYNC {}; 50 writes called nothing, a sync {syncs:?}, one after growth {grown:?}",
        ground.name, ground.is_dax, ground.is_synchronous
    );
    Ok(())
}

/// Random writes, reads, cuts and growth, compared with a plain vector.
fn bytes_are_right(ground: &Ground, array: &Array) -> Result<()> {
    let file = array.create_file("model", &file_options())?;
    let mut model: Vec<u8> = Vec::new();
    let mut random = Random(11);
    for step in 0..100 {
        match random.below(8) {
            0 => {
                let len = random.below(3 * MIB);
                file.set_len(len)?;
                model.resize(len as usize, 0);
            }
            1 => file.sync()?,
            2..=4 => {
                let (at, len) = (random.below(2 * MIB), 1 + random.below(100 * KIB));
                let bytes = random.bytes(len);
                file.write_at(&bytes, at)?;
                model.resize(model.len().max((at + len) as usize), 0);
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            }
            _ => {
                let (at, len) = (random.below(3 * MIB) as usize, random.below(200 * KIB) as usize);
                let mut bytes = vec![9; len];
                let count = file.read_at(&mut bytes, at as u64)?;
                let expected = model.get(at..model.len().min(at + len)).unwrap_or_default();
                check(bytes[..count] == *expected, format!("{}: step {step} read other bytes at {at}", ground.name))?;
            }
        }
    }
    let mut bytes = vec![9; model.len()];
    let count = file.read_at(&mut bytes, 0)?;
    check(count == model.len() && bytes == model, format!("{}: other bytes in the end", ground.name))?;
    println!("ok: {}: 100 random writes, reads, cuts and syncs agree with a vector of {count} bytes", ground.name);
    Ok(())
}

/// The fixed part of a file stays readable while the file grows and is cut behind it.
fn files_change_under_readers(ground: &Ground, array: &Array) -> Result<()> {
    let file = array.create_file("changing", &file_options())?;
    file.write_at(&vec![1; MIB as usize], 0)?;
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let reader = || -> std::result::Result<(), String> {
        let mut bytes = vec![0; 50_000];
        while !stop.load(Ordering::Relaxed) {
            let count = file.read_at(&mut bytes, 1000).map_err(|e| e.to_string())?;
            if count != bytes.len() || bytes.iter().any(|&byte| byte != 1) {
                return Err("a reader saw other bytes".into());
            }
            let count = file.read_at(&mut bytes, MIB + 100).map_err(|e| e.to_string())?;
            if bytes[..count].iter().any(|&byte| byte != 2) {
                return Err("a reader saw what was never written".into());
            }
            reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        let change = || -> Result<()> {
            let mut round = 0;
            while round < 5 || (reads.load(Ordering::Relaxed) < 10 && !readers.iter().any(|one| one.is_finished())) {
                for at in 1..3 {
                    file.write_at(&vec![2; 4 * BLOCK_BYTES as usize], MIB + (at - 1) * 4 * BLOCK_BYTES)?;
                }
                file.set_len(MIB)?;
                round += 1;
            }
            Ok(())
        };
        let changed = change();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().map_err(|_| "a reader panicked")??;
        }
        changed
    })?;
    println!("ok: {}: a file grows and is cut under {} reads", ground.name, reads.load(Ordering::Relaxed));
    Ok(())
}

/// A part grows beyond the address space that is reserved for it.
fn a_part_is_mapped_anew(ground: &Ground, array: &Array) -> Result<()> {
    const FAR: u64 = 100 << 30;
    let file = array.create_file("large", &file_options())?;
    file.write_at(&vec![5; MIB as usize], 0)?;
    let path = &parts(array, "large")?[0];
    let mut read = vec![0; MIB as usize];
    file.read_at(&mut read, 0)?;
    let (before, _) = kernel::mapping(path)?;
    file.set_len(FAR)?;
    for at in [FAR - 4 * BLOCK_BYTES, FAR - 2 * BLOCK_BYTES] {
        file.write_at(&vec![6; 2 * BLOCK_BYTES as usize], at)?;
    }
    let mut end = vec![0; 5 * BLOCK_BYTES as usize];
    file.read_at(&mut end, FAR - 5 * BLOCK_BYTES)?;
    let (hole, written) = end.split_at(BLOCK_BYTES as usize);
    check(hole.iter().all(|&byte| byte == 0) && written.iter().all(|&byte| byte == 6), "other bytes at the far end")?;
    file.read_at(&mut read, 0)?;
    check(read.iter().all(|&byte| byte == 5), "other bytes at the begin")?;
    let (after, is_synchronous) = kernel::mapping(path)?;
    check(
        after > before && is_synchronous == ground.is_synchronous,
        format!("{}: {before} bytes were mapped and {after} are, MAP_SYNC {is_synchronous}", ground.name),
    )?;
    file.set_len(MIB)?;
    println!("ok: {}: a part of {} GiB is mapped anew, over {} GiB", ground.name, FAR >> 30, after >> 30);
    Ok(())
}

/// A store into a hole without free space, and a part that another process cuts, are errors of calls. The process goes
/// on.
fn no_room_and_cut_parts_are_errors(ground: &Ground) -> Result<()> {
    let array = ground.open()?;
    let file = array.create_file("holes", &file_options())?;
    file.set_len(8 * MIB)?;
    file.write_at(&[4; 2 * BLOCK_BYTES as usize], 0)?;
    let fillers = ground.places.iter().map(|place| kernel::fill(place)).collect::<Result<Vec<PathBuf>>>()?;
    let bytes = Random(13).bytes(8 * MIB);
    let error = file.write_at(&bytes, 0).err().ok_or("8 MiB found room where there was none")?;
    let is_it = matches!(&error, Error::Io { source, .. } if source.raw_os_error() == Some(28));
    check(is_it, format!("a hole without room: {error}"))?;
    fillers.iter().try_for_each(fs::remove_file)?;
    let there = MIB as usize;
    file.write_at(&bytes[..there], 0)?;
    file.sync()?;
    let mut found = vec![0; bytes.len()];
    file.read_at(&mut found, 0)?;
    check(found[..there] == bytes[..there], "other bytes after there was room again")?;
    let path = parts(&array, "holes")?.remove(1);
    kernel::mapping(&path)?;
    OpenOptions::new().write(true).open(&path)?.set_len(MIB)?;
    let cut = file.read_at(&mut found, 0).err().ok_or("a part that was cut was read")?;
    check(matches!(&cut, Error::PartCut { path: named, .. } if *named == path), format!("a part that was cut: {cut}"))?;
    OpenOptions::new().write(true).open(&path)?.set_len(4 * MIB)?;
    drop(file);
    array.delete("holes")?;
    array.close()?;
    println!("ok: {}: no room and a cut part are errors: {error}; {cut}", ground.name);
    Ok(())
}

/// The command reports the properties of each ground.
fn it_is_reported(grounds: &[Ground]) -> Result<()> {
    for ground in grounds {
        let info: Value =
            serde_json::from_str(&iomill_good(&["-a", &ground.place(), "--engine", "mmap", "info", "--json"])?)?;
        let told = info.to_string();
        check(
            told.contains("is memory (DAX)") == ground.is_synchronous && told.contains("mapped parts were asked for"),
            format!("{}: info says {told}", ground.name),
        )?;
    }
    println!("ok: info tells which drives are memory");
    Ok(())
}

fn commands_work(ground: &Ground) -> Result<()> {
    let place = ground.place();
    let bytes = Random(17).bytes(MIB + 77);
    fs::write("/tmp/source", &bytes)?;
    iomill_good(&["-a", &place, "--engine", "mmap", "put", "/tmp/source", "copied"])?;
    for engine in ["mmap", "io_uring"] {
        iomill_good(&["-a", &place, "--engine", engine, "--quiet", "get", "--force", "copied", "/tmp/copy"])?;
        check(fs::read("/tmp/copy")? == bytes, format!("{engine} gets other bytes"))?;
    }
    let bench =
        ["--order", "random", "--request-size", "512,64KiB", "--threads", "2", "--size", "2MiB", "--growth", "1MiB"];
    let times = ["--seconds", "0.1", "--rounds", "1", "--json"];
    let arguments = [&["mmap-vs-syscall", "-a", &place], &bench[..], &times[..]].concat();
    let report: Value = serde_json::from_str(&lab_good(&arguments)?)?;
    let results = report["results"].as_array().ok_or("no results")?;
    // Four ways, two sizes. Memory is never cold, and the report names each way that it left out.
    let warm = results.iter().filter(|one| one["cache"] == "warm").count();
    check(warm == 2 * 4 && results.len() == warm, format!("{} results, {warm} of them warm", results.len()))?;
    let left_out = report["left_out"].as_array().ok_or("nothing is left out")?;
    let in_memory = |one: &Value| one["why"].as_str().is_some_and(|why| why.contains("keeps it in memory"));
    check(left_out.len() == 2 * 4 && left_out.iter().all(in_memory), format!("left out: {left_out:?}"))?;
    check(results.iter().all(|one| one["ops_per_s"].as_f64() > Some(0.0)), format!("no reads: {results:?}"))?;
    let growth = report["growth"].as_array().ok_or("no growth")?;
    check(growth.len() == 4 && growth.iter().all(|one| one["bytes"] == MIB), format!("growth: {growth:?}"))?;
    let probed = iomill_good(&["-a", &place, "probe", "--size", "4MiB", "--seconds", "0.1", "--json"])?;
    let probed: Value = serde_json::from_str(&probed)?;
    let drives = probed["drives"].as_array().ok_or("no drives")?;
    let (nvdimms, _) = kernel::memories()?;
    let devices: Vec<&Value> = drives.iter().map(|drive| &drive["devices"][0]).collect();
    check(devices == [&nvdimms[0], &nvdimms[1]], format!("probe found {devices:?}"))?;
    println!(
        "ok: {}: put, get, mmap-vs-syscall of the lab and probe work; it says: {}",
        ground.name, probed["verdict"][0]
    );
    iomill_good(&["tune", "--json"])?;
    Ok(())
}

/// The expected bytes of a block of the lasting file, if that block is synced.
fn lasting(ground: &Ground, block: u64) -> Option<Vec<u8>> {
    block.is_multiple_of(2).then(|| Random(block + 1 + 1000 * ground.name.len() as u64).bytes(BLOCK_BYTES))
}

/// Writes to half of a file's blocks and syncs, writes to the other half, and cuts the power with everything open.
fn the_power_fails(grounds: &[Ground]) -> Result<()> {
    let calls = Calls::new()?;
    let control = OpenOptions::new().read(true).write(true).create_new(true).open(CONTROL)?;
    fallocate(&control, FallocateFlags::empty(), 0, MIB)?;
    control.sync_all()?;
    File::open("/mnt/nvdimm0")?.sync_all()?;
    let mut held = Vec::new();
    for ground in grounds.iter().rev() {
        let array = ground.open()?;
        let file = array.create_file(LASTING, &file_options())?;
        file.preallocate(LASTING_BYTES)?;
        file.set_len(LASTING_BYTES)?;
        // First every part is mapped, and synced by the kernel; then come the writes that must last.
        file.write_at(&vec![0; 4 * BLOCK_BYTES as usize], 0)?;
        file.sync()?;
        let blocks = LASTING_BYTES / BLOCK_BYTES;
        let write = |from, to| -> Result<()> {
            for block in from..to {
                if let Some(bytes) = lasting(ground, block) {
                    file.write_at(&bytes, block * BLOCK_BYTES)?;
                }
            }
            Ok(())
        };
        write(0, blocks / 2)?;
        let synced = calls.during(|| Ok(file.sync()?))?;
        check(synced.is_empty() == ground.is_synchronous, format!("{}: the last sync: {synced:?}", ground.name))?;
        write(blocks / 2, blocks)?;
        held.push((array, file));
    }
    drop(calls);
    // The same store through a mapping without MAP_SYNC. It comes last, so that no other sync makes it durable.
    // SAFETY: a new mapping at an address that the kernel chooses, of a file that is as long; it is never unmapped.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = rustix::mm::mmap(std::ptr::null_mut(), MIB as usize, access, MapFlags::SHARED, &control, 0)?;
        start.cast::<u8>().write_bytes(0xaa, MIB as usize);
    }
    println!("ok: the power fails now, with {} arrays open", held.len());
    kernel::cut_power()
}

/// Checks which bytes survived the power failure.
pub fn checks_after_power_failed() -> Result<()> {
    kernel::wait_for("memory", || {
        Ok(matches!(kernel::memories()?, (nvdimms, others) if nvdimms.len() == 2 && others.len() == 1))
    })?;
    let grounds = mount_all()?;
    check(
        fs::read(CONTROL)?.iter().all(|&byte| byte == 0),
        "a store without MAP_SYNC and sync survived the power failure, so the survival of the others proves nothing",
    )?;
    println!("ok: the store without MAP_SYNC into a new block is lost");
    for ground in &grounds {
        iomill_good(&["-a", &ground.place(), "check"])?;
        let array = ArrayOptions::new().engine(EngineKind::Posix).cache_bytes(0).open(&ground.places[0])?;
        let file = array.open_file(LASTING)?;
        check(file.len() == LASTING_BYTES, format!("{}: {} bytes are there", ground.name, file.len()))?;
        let (blocks, zeroes) = (LASTING_BYTES / BLOCK_BYTES, vec![0; BLOCK_BYTES as usize]);
        let (mut bytes, mut kept) = (zeroes.clone(), [0; 2]);
        for block in 0..blocks {
            file.read_at(&mut bytes, block * BLOCK_BYTES)?;
            let is_synced = block < blocks / 2;
            let Some(written) = lasting(ground, block) else {
                check(bytes == zeroes, format!("{}: block {block} was never written to", ground.name))?;
                continue;
            };
            if bytes == written {
                kept[usize::from(!is_synced)] += 1;
            } else {
                check(!is_synced, format!("{}: block {block} was synced and is lost", ground.name))?;
            }
        }
        let written = blocks / 4;
        let is_right = match (ground.is_synchronous, ground.is_dax) {
            (true, _) => kept[1] == written,
            // Without a sync either outcome is right: the host may have received the bytes or not.
            (false, true) => true,
            (false, false) => kept[1] == 0,
        };
        check(is_right, format!("{}: {} of {written} blocks that were not synced are there", ground.name, kept[1]))?;
        println!(
            "ok: {}: of {written} synced blocks {} are there, of as many others {}",
            ground.name, kept[0], kept[1]
        );
        drop(file);
        array.close()?;
    }
    Ok(())
}
