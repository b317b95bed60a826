//! What a catalog of many files costs: `many_files [N]`. N is 10,000 unless it is given. It makes the files in a
//! directory of their own in the current one, and opens the array after a clean close, and after its process ended
//! without one. Names have 63 bytes, and changes wait for no fsync.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use iomill::{ArrayOptions, FileOptions};

const LOOKED_AT: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => run(10_000),
        [count] => run(count.parse()?),
        // Each step has a process of its own.
        ["open", dir, count] => open(dir.as_ref(), count.parse()?),
        [how, dir, count] => make(dir.as_ref(), count.parse()?, how == "crash"),
        _ => Err("usage: many_files [N]".into()),
    }
}

fn run(count: usize) -> Result<(), Box<dyn Error>> {
    for (how, title) in [("close", "after a clean close"), ("crash", "after a process that did not close it")] {
        let dir = tempfile::tempdir_in(".")?;
        let step = |step: &str| {
            Command::new(std::env::current_exe()?).arg(step).arg(dir.path()).arg(count.to_string()).status()
        };
        println!("{count} files, {title}");
        if !step(how)?.success() && how == "close" {
            return Err("the files were not made".into());
        }
        if !step("open")?.success() {
            return Err("the array was not opened".into());
        }
    }
    Ok(())
}

/// Names in no order.
fn name(number: usize) -> String {
    format!("{:063}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_007)
}

fn drives(dir: &Path) -> Vec<PathBuf> {
    (0..4).map(|drive| dir.join(format!("ssd{drive}"))).collect()
}

fn make(dir: &Path, count: usize, crashes: bool) -> Result<(), Box<dyn Error>> {
    for drive in drives(dir) {
        fs::create_dir_all(drive)?;
    }
    let array = ArrayOptions::new().sync_changes(false).cache_bytes(0).create(drives(dir))?;
    let begun = Instant::now();
    for number in 0..count {
        let _file = array.create_file(&name(number), &FileOptions::new())?;
    }
    println!("create: {:.1} us", 1e6 * begun.elapsed().as_secs_f64() / count as f64);
    array.sync()?;
    if crashes {
        std::process::abort();
    }
    Ok(array.close()?)
}

fn open(dir: &Path, count: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_bytes()?;
    let begun = Instant::now();
    let array = ArrayOptions::new().cache_bytes(0).open(dir.join("ssd0"))?;
    println!("open the array: {:.2} s", begun.elapsed().as_secs_f64());
    let after = resident_bytes()?;
    let names: Vec<String> = (0..LOOKED_AT.min(count)).map(name).collect();
    each("stat", &names, |name| array.stat(name).map(drop))?;
    each("open a file and drop it", &names, |name| array.open_file(name).map(drop))?;
    let (resident, begun) = (resident_bytes()?, Instant::now());
    let listed = array.list("").names()?;
    println!("first list of {} names: {:.2} s", listed.len(), begun.elapsed().as_secs_f64());
    let count = listed.len().max(1);
    // The list itself is the caller's.
    drop(listed);
    println!("memory a file: {} bytes", (after - before) / count);
    println!("after the list: {} bytes", (after - before + resident_bytes()?.saturating_sub(resident)) / count);
    Ok(array.close()?)
}

fn each(what: &str, names: &[String], call: impl Fn(&str) -> iomill::Result<()>) -> iomill::Result<()> {
    let begun = Instant::now();
    names.iter().try_for_each(|name| call(name))?;
    println!("{what}: {:.2} us", 1e6 * begun.elapsed().as_secs_f64() / names.len() as f64);
    Ok(())
}

fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = text.split(' ').nth(1).ok_or("/proc/self/statm has no second number")?.parse()?;
    Ok(4096 * pages)
}
