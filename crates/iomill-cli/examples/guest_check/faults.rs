//! Checks over targets of the device mapper: a drive that fails, rots, lies or hangs while an array is open, and all
//! states that a crash can leave on a drive (`log_writes.rs`).
//!
//! Goals: no call returns a wrong byte without an error, and all bytes of a successful sync are there afterwards. Each
//! check also proves that its fault was there. Non-goals: several faults at a time, which the simulator draws.

mod dm;
mod log_writes;
mod paged;
mod replay;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use iomill::{Array, Error, File, FileOptions, PutOptions};
use serde_json::Value;

use crate::{Random, Result, check, iomill as command, write};
use dm::{Pair, wait_for_drive};
use paged::{Found, PAGE, PAGES, Paged};

const MIB: u64 = 1 << 20;

/// Pages that are written again during a fault.
const REWRITTEN: std::ops::Range<u64> = 4..10;

/// The files of `Paged`, the second one with sums.
const NAMES: [&str; 2] = ["plain", "summed"];

/// All checks of this boot.
pub fn checks() -> Result<()> {
    for serial in ["good", "bad", "logged", "log"] {
        wait_for_drive(serial)?;
    }
    // The kernel would print a line for each failed request.
    write("/proc/sys/kernel/printk", "1")?;
    let pair = Pair::new(96 * MIB)?;
    for cache_bytes in [0, 8 * MIB] {
        a_failing_drive_loses_nothing(&pair, "error", "error", cache_bytes)?;
        a_failing_drive_loses_nothing(&pair, "error_writes", &pair.bad.flakey("error_writes"), cache_bytes)?;
    }
    rot_is_found(&pair)?;
    lost_writes_are_old_or_found(&pair)?;
    a_lie_about_the_end_is_refused(&pair)?;
    others_go_on_beside_a_suspended_drive(&pair)?;
    dm::unmount(&pair.good.place())?;
    dm::unmount(&pair.bad.place())?;
    log_writes::checks()
}

/// A drive fails writes, and reads too if the target is `error`, and is well again later.
fn a_failing_drive_loses_nothing(pair: &Pair, name: &str, target: &str, cache_bytes: u64) -> Result<()> {
    let array = pair.fresh(cache_bytes)?;
    let files = [Paged::create(&array, NAMES[0], false)?, Paged::create(&array, NAMES[1], true)?];
    pair.bad.set(target)?;
    let failed_reads = reads_name_the_drive(pair, &files, name == "error")?;
    let written = [write_during(name, &files[0])?, write_during(name, &files[1])?];
    array.put("meanwhile", b"other drive", &PutOptions::new().file(FileOptions::new().drives([0])))?;
    let is_told =
        array.notices().iter().any(|notice| notice.starts_with("/mnt/bad: this copy of the log is left behind"));
    check(is_told, format!("{name}: no notice that a copy is left behind: {:?}", array.notices()))?;
    pair.bad.set(&pair.bad.linear())?;
    let mut claims = [false; 2];
    for (paged, is_durable) in files.iter().zip(&mut claims) {
        (0..REWRITTEN.start).try_for_each(|page| paged.expect(page, &[0], false).map(drop))?;
        *is_durable = paged.file.sync().is_ok();
    }
    drop(files);
    for (name, _) in NAMES.iter().zip(claims).filter(|(_, is_durable)| !is_durable) {
        let is_told = array.notices().iter().any(|notice| notice.starts_with(&format!("closing {name:?}: ")));
        check(is_told, format!("no notice of the failed end of {name}: {:?}", array.notices()))?;
    }
    let closed = array.close();
    pair.mount_again()?;
    let array = pair.open()?;
    let mut rewritten = 0;
    for index in 0..NAMES.len() {
        rewritten += expect_after_failure(&Paged::open(&array, NAMES[index])?, &written[index], claims[index])?;
    }
    check(bytes_of(&array, "meanwhile")? == b"other drive", "the content of a put to the other drive is lost")?;
    array.close()?;
    println!(
        "ok: {name}, cache of {cache_bytes} bytes: {failed_reads} reads were errors that name the drive; writes with \
         their sync failed, a put to the other drive did not; syncs after the fault succeeded: {claims:?}, close: {}; \
         all synced pages are there, and {rewritten} of {} that were rewritten during the fault",
        closed.as_ref().map_or_else(ToString::to_string, |()| "good".to_owned()),
        2 * REWRITTEN.count()
    );
    Ok(())
}

/// Writes pages to a drive that fails writes, and syncs. Returns which writes succeeded.
fn write_during(name: &str, paged: &Paged) -> Result<Vec<bool>> {
    let outcomes: Vec<bool> = REWRITTEN.map(|page| paged.write(page, 1).is_ok()).collect();
    let synced = paged.file.sync();
    let has_failed = synced.is_err() || outcomes.contains(&false);
    check(has_failed, format!("{name}: a write and its sync succeeded on a drive that fails writes"))?;
    if let Err(error) = synced {
        let is_named = error.to_string().contains("/mnt/bad") || matches!(error, Error::Poisoned { .. });
        check(is_named, format!("{name}: the error of the sync does not name the drive: {error}"))?;
    }
    Ok(outcomes)
}

/// A page is new if its write and a later sync succeeded, and old if it was not written to. Others are either. Returns how
/// many are new.
fn expect_after_failure(paged: &Paged, written: &[bool], is_durable: bool) -> Result<usize> {
    let mut count = 0;
    for page in 0..PAGES {
        if !REWRITTEN.contains(&page) {
            paged.expect(page, &[0], false)?;
        } else if is_durable && written[(page - REWRITTEN.start) as usize] {
            paged.expect(page, &[1], false)?;
            count += 1;
        } else {
            count += usize::from(paged.expect(page, &[0, 1], true)? == Found::Bytes(1));
        }
    }
    Ok(count)
}

/// Reads all pages past the cache. Returns how many reads were errors: those of the bad drive, if it fails reads.
fn reads_name_the_drive(pair: &Pair, files: &[Paged], fails_reads: bool) -> Result<usize> {
    let mut failed = 0;
    for paged in files {
        paged.forget()?;
        for page in 0..PAGES {
            if !fails_reads || paged.is_on(page, &pair.good.place()) {
                paged.expect(page, &[0], false)?;
                continue;
            }
            let error = paged.read(page)?.err().ok_or("a read of a drive that fails reads succeeded")?;
            let is_it = error.errno() == Some(5) && error.to_string().contains("/mnt/bad");
            check(is_it, format!("the error of a read does not name the drive: {error}"))?;
            failed += 1;
        }
        paged.forget()?;
    }
    Ok(failed)
}

fn bytes_of(array: &Array, name: &str) -> Result<Vec<u8>> {
    let file = array.open_file(name)?;
    let mut bytes = vec![9; file.len() as usize];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// What `iomill check --data` says: its exit code, and the errors in words.
fn check_data(pair: &Pair) -> Result<(i32, Vec<String>)> {
    let place = pair.good.place();
    let (code, out, err) = command(&["-a", &place.to_string_lossy(), "check", "--data", "--json"])?;
    let said: Value = serde_json::from_str(&out).map_err(|e| format!("check --data said {out:?} {err}: {e}"))?;
    let damage = said["data"]["damage"].as_array().ok_or_else(|| format!("check --data said {said} {err}"))?;
    Ok((code, damage.iter().map(ToString::to_string).collect()))
}

/// Reads of a drive return a wrong byte in each request, without an error.
fn rot_is_found(pair: &Pair) -> Result<()> {
    // In the last quarter of a page: labels, notes and most groups of the log are shorter.
    const AT: usize = 4000;
    const VALUE: u8 = 0xa5;
    let array = pair.fresh(0)?;
    let (plain, summed) = (Paged::create(&array, "plain", false)?, Paged::create(&array, "summed", true)?);
    (0..PAGES).try_for_each(|page| summed.expect(page, &[0], false).map(drop))?;
    pair.bad.set(&pair.bad.flakey(&format!("corrupt_bio_byte {} r {VALUE} 0", AT + 1)))?;
    let (mut found, mut seen) = (0, 0);
    for page in 0..PAGES {
        let is_hit = !summed.is_on(page, &pair.good.place()) && summed.bytes(page, 0)[AT] != VALUE;
        match summed.read(page)? {
            Ok(bytes) => {
                check(bytes == summed.bytes(page, 0), format!("page {page} has a wrong byte, without an error"))?;
                check(!is_hit, format!("page {page} was right, although its drive returned a wrong byte"))?;
            }
            Err(error) => {
                check(summed.is_named(&error, page), format!("the error of page {page} names another: {error}"))?;
                found += 1;
            }
        }
        // Without sums the fault itself is seen.
        let mut expected = plain.bytes(page, 0);
        if !plain.is_on(page, &pair.good.place()) {
            expected[AT] = VALUE;
            seen += 1;
        }
        check(plain.read(page)?? == expected, format!("page {page} without sums is not as the drive returns it"))?;
    }
    check(found > 0 && seen > 0, "no page was on the bad drive")?;
    drop((plain, summed));
    array.close()?;
    let (code, damage) = check_data(pair)?;
    let is_named =
        |damage: &String| damage.contains("/mnt/bad") && (damage.contains("summed") || damage.contains(".sums"));
    check(
        code == 1 && !damage.is_empty() && damage.iter().all(is_named),
        format!("check --data ended with {code}: {damage:?}"),
    )?;
    pair.bad.set(&pair.bad.linear())?;
    let array = pair.open()?;
    let summed = Paged::open(&array, "summed")?;
    (0..PAGES).try_for_each(|page| summed.expect(page, &[0], false).map(drop))?;
    drop(summed);
    array.close()?;
    let (code, after) = check_data(pair)?;
    check(code == 0 && after.is_empty(), format!("check --data of a well drive ended with {code}: {after:?}"))?;
    println!(
        "ok: corrupt_bio_byte: {seen} pages without sums had the wrong byte; with sums {found} reads were errors, and \
         check --data found {}: {}; afterwards all pages are right",
        damage.len(),
        damage[0]
    );
    Ok(())
}

/// A drive acknowledges writes and flushes, and does nothing.
fn lost_writes_are_old_or_found(pair: &Pair) -> Result<()> {
    let array = pair.fresh(0)?;
    let create = |name, has_sums| Paged::create(&array, name, has_sums);
    let (plain, lost, page_only) = (create("plain", false)?, create("lost", true)?, create("page", true)?);
    pair.bad.set(&pair.bad.flakey("drop_writes"))?;
    for page in REWRITTEN {
        [&plain, &lost, &page_only].into_iter().try_for_each(|paged| paged.write(page, 1))?;
    }
    plain.file.sync()?;
    lost.file.sync()?;
    array.put("named", b"other drive", &PutOptions::new().file(FileOptions::new().drives([0])))?;
    pair.bad.set(&pair.bad.linear())?;
    // Its sums are written now.
    page_only.file.sync()?;
    drop((plain, lost, page_only));
    array.close()?;
    pair.mount_again()?;
    let array = pair.open()?;
    let mut seen: Vec<(Found, usize)> = Vec::new();
    for name in ["plain", "lost", "page"] {
        let paged = Paged::open(&array, name)?;
        for page in 0..PAGES {
            let is_rewritten = REWRITTEN.contains(&page);
            let is_bad = is_rewritten && !paged.is_on(page, &pair.good.place());
            let versions: &[u64] = match (is_bad, is_rewritten) {
                (true, _) => &[0, 1],
                (false, true) => &[1],
                (false, false) => &[0],
            };
            let found = paged.expect(page, versions, is_bad)?;
            if is_bad {
                check(name != "page" || found == Found::Named, format!("page {page} lacks a write: {found:?}"))?;
                check(name != "plain" || found == Found::Bytes(0), format!("page {page} was not lost: {found:?}"))?;
                match seen.iter_mut().find(|(what, _)| *what == found) {
                    Some((_, count)) => *count += 1,
                    None => seen.push((found, 1)),
                }
            }
        }
    }
    check(bytes_of(&array, "named")? == b"other drive", "the content of a put to the other drive is lost")?;
    array.close()?;
    let (code, damage) = check_data(pair)?;
    check(code == 1 && !damage.is_empty(), format!("check --data ended with {code}: {damage:?}"))?;
    heal(pair)?;
    println!(
        "ok: drop_writes: pages with lost writes are old (0), new (1) or errors: {seen:?}; all others are right, and \
         so is a put; check --data found {}; pages that are written again are right",
        damage.len()
    );
    Ok(())
}

/// Writes the pages with lost writes again, as a whole.
fn heal(pair: &Pair) -> Result<()> {
    let array = pair.open()?;
    for name in ["lost", "page"] {
        let paged = Paged::open(&array, name)?;
        REWRITTEN.into_iter().try_for_each(|page| paged.write(page, 2))?;
        paged.file.sync()?;
        REWRITTEN.into_iter().try_for_each(|page| paged.expect(page, &[2], false).map(drop))?;
    }
    array.close()?;
    let (code, damage) = check_data(pair)?;
    check(code == 0 && damage.is_empty(), format!("check --data ended with {code}: {damage:?}"))
}

/// A drive loses the end of an opening, and so has missed changes.
fn a_lie_about_the_end_is_refused(pair: &Pair) -> Result<()> {
    let array = pair.fresh(0)?;
    pair.bad.set(&pair.bad.flakey("drop_writes"))?;
    array.put("named", b"other drive", &PutOptions::new().file(FileOptions::new().drives([0])))?;
    array.close()?;
    pair.bad.set(&pair.bad.linear())?;
    pair.mount_again()?;
    let error = pair.open().err().ok_or("an array with a drive that has missed its end is opened")?;
    check(matches!(&error, Error::Drive { path, .. } if path.starts_with("/mnt/bad")), format!("refused: {error}"))?;
    println!("ok: drop_writes at the end of an opening: refused: {error}");
    Ok(())
}

/// Threads of each file.
const WORKERS: u64 = 3;
const PAGES_EACH: u64 = 4;

/// Writes pages of its own and reads them back, until `stop`. Each second read is by a future.
fn work(file: &File, worker: u64, stop: &AtomicBool, done: &AtomicU64) -> std::result::Result<(), String> {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = (worker * PAGES_EACH + round % PAGES_EACH) * PAGE;
        let bytes = Random::of(&[worker, round]).bytes(PAGE);
        file.write_at(&bytes, at).map_err(|e| e.to_string())?;
        let mut found = vec![9; bytes.len()];
        if round % 2 == 0 {
            file.read_at(&mut found, at).map_err(|e| e.to_string())?;
        } else {
            let read = iomill::block_on(file.read_async(at, bytes.len())).and_then(|read| read);
            found = read.map_err(|e| e.to_string())?;
        }
        if found != bytes {
            return Err(format!("other bytes at {at}"));
        }
        if round % 8 == 0 {
            file.sync().map_err(|e| e.to_string())?;
        }
        round += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// One drive is suspended under threads that read, write and sync. Their calls wait, those of the other drive do not.
fn others_go_on_beside_a_suspended_drive(pair: &Pair) -> Result<()> {
    let array = pair.fresh(0)?;
    let create = |name, drive: u16| -> Result<File> {
        let options = FileOptions::new().block_bytes(PAGE as u32).checksums(true).drives([drive]);
        let file = array.create_file(name, &options)?;
        file.write_at(&vec![0; (WORKERS * PAGES_EACH * PAGE) as usize], 0)?;
        file.sync()?;
        Ok(file)
    };
    let files = [create("good", 0)?, create("bad", 1)?];
    let (stop, done) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let counts = || done.each_ref().map(|count| count.load(Ordering::Relaxed));
    let grows = |index: usize| {
        crate::memory::kernel::wait_for("progress", {
            let before = counts()[index];
            move || Ok(counts()[index] > before + WORKERS)
        })
    };
    let during = std::thread::scope(|scope| -> Result<[u64; 2]> {
        let mut workers = Vec::new();
        for (file, done) in files.iter().zip(&done) {
            workers.extend((0..WORKERS).map(|worker| {
                scope.spawn({
                    let stop = &stop;
                    move || work(file, worker, stop, done)
                })
            }));
        }
        let suspended = (|| {
            grows(1)?;
            pair.bad.suspend()?;
            let before = counts();
            sleep(Duration::from_secs(3));
            grows(0)?;
            check(array.list("").names()? == ["bad", "good"], "other names beside a suspended drive")?;
            array.stat("bad")?;
            let after = counts();
            Ok([after[0] - before[0], after[1] - before[1]])
        })();
        let resumed = pair.bad.resume().and_then(|()| grows(0)).and_then(|()| grows(1));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        resumed.and(suspended)
    })?;
    check(during[1] <= WORKERS, format!("the drive was not suspended: {} rounds ended", during[1]))?;
    files.into_iter().try_for_each(File::close)?;
    array.close()?;
    let (code, damage) = check_data(pair)?;
    check(code == 0 && damage.is_empty(), format!("check --data ended with {code}: {damage:?}"))?;
    println!(
        "ok: suspended for 3 s and more: meanwhile {} rounds of the other drive ended and {} of this one; all bytes \
         were right, and all calls ended",
        during[0], during[1]
    );
    Ok(())
}
