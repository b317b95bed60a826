//! What the kernel itself reports of memory, mappings and calls; and the power failure.
//!
//! Goals: nothing here asks iomill. Non-goals: checks of iomill.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::{Result, check, read, write};

const DEVICES: &str = "/sys/bus/nd/devices";
const DRIVER: &str = "/sys/bus/nd/drivers/nd_pmem";

/// The port of QEMU's `isa-debug-exit`.
const POWER_PORT: u64 = 0xf4;

/// Names of the block devices that are memory: NVDIMMs and virtio memory.
pub fn memories() -> Result<(Vec<String>, Vec<String>)> {
    let (mut nvdimms, mut virtual_ones) = (Vec::new(), Vec::new());
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("pmem") {
            let path = fs::canonicalize(entry.path())?;
            let is_virtual = path.to_string_lossy().contains("/virtio");
            if is_virtual { &mut virtual_ones } else { &mut nvdimms }.push(name);
        }
    }
    nvdimms.sort();
    Ok((nvdimms, virtual_ones))
}

/// Makes the kernel keep page structures for an NVDIMM, which DAX needs: `ndctl create-namespace --mode=fsdax`.
pub fn make_fsdax(region: &str) -> Result<()> {
    let namespace = format!("namespace{region}.0");
    let pfn = format!("{DEVICES}/pfn{region}.0");
    check(read(format!("{DEVICES}/{namespace}/mode"))? == "raw", format!("{namespace} is not as it came"))?;
    write(format!("{DRIVER}/unbind"), &namespace)?;
    write(format!("{pfn}/uuid"), &read("/proc/sys/kernel/random/uuid")?)?;
    write(format!("{pfn}/mode"), "ram")?;
    write(format!("{pfn}/namespace"), &namespace)?;
    write(format!("{DRIVER}/bind"), &format!("pfn{region}.0"))
}

/// Runs a program, which must succeed.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    check(output.status.success(), format!("{program} {}: {} {said}", arguments.join(" "), output.status))
}

/// Mounts a device.
pub fn mount(device: &str, place: &Path, kind: &str, options: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    run("mount", &["-t", kind, "-o", options, &format!("/dev/{device}"), &place.to_string_lossy()])
}

/// Whether the file is memory, with no page cache in between.
pub fn is_dax(path: &Path) -> Result<bool> {
    let told = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    check(told.stx_attributes_mask.contains(StatxAttributes::DAX), "the kernel does not tell whether a file is DAX")?;
    Ok(told.stx_attributes.contains(StatxAttributes::DAX))
}

/// Length in bytes of this process's only mapping of the file, and whether it was made with `MAP_SYNC`.
pub fn mapping(path: &Path) -> Result<(u64, bool)> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let path = path.to_string_lossy();
    let mut found = Vec::new();
    let mut lines = smaps.lines();
    while let Some(line) = lines.next() {
        if line.split_whitespace().nth(5) != Some(&path) {
            continue;
        }
        let (from, to) = line.split_whitespace().next().and_then(|range| range.split_once('-')).ok_or("no range")?;
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).ok_or("a mapping without flags")?;
        let is_synchronous = flags.split_whitespace().any(|flag| flag == "sf");
        found.push((u64::from_str_radix(to, 16)? - u64::from_str_radix(from, 16)?, is_synchronous));
    }
    match found[..] {
        [one] => Ok(one),
        _ => Err(format!("{path} has {} mappings: {found:?}", found.len()).into()),
    }
}

/// Counts of calls by name.
pub type Counts = BTreeMap<String, usize>;

/// Counts the calls of the whole machine that write or make data durable, by the kernel's trace.
pub struct Calls {
    instance: PathBuf,
}

impl Calls {
    const NAMES: [&str; 15] = [
        "fsync",
        "fdatasync",
        "msync",
        "sync",
        "syncfs",
        "sync_file_range",
        "write",
        "pwrite64",
        "writev",
        "pwritev",
        "pwritev2",
        "ftruncate",
        "fallocate",
        "io_uring_enter",
        "io_submit",
    ];

    /// Creates a trace instance of its own.
    pub fn new() -> Result<Calls> {
        let instance = PathBuf::from("/sys/kernel/tracing/instances/calls");
        fs::create_dir(&instance)?;
        write(instance.join("tracing_on"), "0")?;
        for name in Calls::NAMES {
            write(instance.join(format!("events/syscalls/sys_enter_{name}/enable")), "1")?;
        }
        Ok(Calls { instance })
    }

    /// The calls during `work`.
    pub fn during(&self, work: impl FnOnce() -> Result<()>) -> Result<Counts> {
        write(self.instance.join("trace"), "")?;
        write(self.instance.join("tracing_on"), "1")?;
        work()?;
        // The only own call in the trace is this write: it begins while the trace is on.
        write(self.instance.join("tracing_on"), "0")?;
        let mut counts = Counts::new();
        for line in read(self.instance.join("trace"))?.lines().filter(|line| !line.starts_with('#')) {
            let call = line.split(": sys_").nth(1).and_then(|rest| rest.split('(').next()).ok_or("a strange trace")?;
            *counts.entry(call.to_owned()).or_default() += 1;
        }
        let own = counts.remove("write");
        check(own == Some(1), format!("the trace saw {own:?} plain writes, not its own one"))?;
        Ok(counts)
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.instance) {
            println!("the trace is left over: {error}");
        }
    }
}

/// Ends the emulator at once. Nothing of this machine runs after the write to the port, and its memory is lost.
pub fn cut_power() -> Result<()> {
    let port = OpenOptions::new().write(true).open("/dev/port")?;
    rustix::termios::tcdrain(std::io::stdout()).or_else(|errno| match errno {
        rustix::io::Errno::NOTTY => Ok(()),
        other => Err(other),
    })?;
    port.write_at(&[1], POWER_PORT)?;
    sleep(Duration::from_secs(5));
    Err("the power is still on".into())
}

/// Waits for something that appears in the background.
pub fn wait_for(what: &str, is_there: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_there()? {
        check(Instant::now() < deadline, format!("{what} did not come"))?;
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Fills a file system completely. Returns the file that takes the space.
pub fn fill(place: &Path) -> Result<PathBuf> {
    let path = place.join("filler");
    let file = File::create(&path)?;
    let mut len = 0;
    // The file system keeps some space for itself, and does not report how much.
    for step in [32 << 20, 1 << 20, 1 << 16, 1 << 12] {
        loop {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), len, step) {
                Ok(()) => len += step,
                Err(rustix::io::Errno::NOSPC) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(path)
}
