//! Loading an index from the summaries of its drive, and completing the work of a killed process. Rules L1 to L3 of
//! `docs/origin.md`. Non-goals: the format (`summary`).

use std::io;

use crate::drive::Drive;
use crate::identity::PAGE_BYTES;
use crate::index::Region;
use crate::lock::Held;
use crate::summary::{Entry, Life, Place, decode};

/// Regions that are read in one hold of the lock: other processes append in between.
pub const REGIONS_AT_ONCE: u32 = 16;

/// Reads the next regions into the index. `false` when all are read. Any process continues where another one stopped.
pub fn load_some(drive: &Drive, held: &Held<'_>) -> io::Result<bool> {
    let (regions, begun) = (drive.geometry().regions(), drive.index.loaded());
    let end = (begun + REGIONS_AT_ONCE).min(regions);
    for region in begun..end {
        load_region(drive, region, held);
        drive.index.set_loaded(region + 1);
    }
    if end == regions && begun < end {
        drive.index.set_open_region(newest(drive));
    }
    Ok(end < regions)
}

/// Rule L3: the process that appended last may have died between the summary and the index. The granules of its summary
/// are published.
pub fn recover(drive: &Drive, held: &Held<'_>) -> io::Result<()> {
    while !drive.index.is_loaded() {
        load_some(drive, held)?;
    }
    if let Some(region) = drive.index.appending() {
        load_region(drive, region, held);
        drive.index.set_appending(None);
    }
    Ok(())
}

/// The region with the newest life, if it has room.
fn newest(drive: &Drive) -> Option<u32> {
    let places = drive.geometry().places_of_region();
    let lives = (0..drive.geometry().regions()).filter_map(|n| Some((drive.index.region(n).life?.number, n)));
    let (_, region) = lives.max()?;
    (drive.index.region(region).filled < places).then_some(region)
}

/// Publishes the granules of a region's summary. Rule L1: the first page has the life, and a page of another life ends
/// the summary.
fn load_region(drive: &Drive, region: u32, _held: &Held<'_>) {
    let (geometry, index) = (drive.geometry(), &drive.index);
    let Some((life, entries)) = summary(drive, region) else { return };
    index.saw_life(life);
    let known = index.region(region);
    // If the index has this life, only the granules past its end are new. If it has another life, the region has begun
    // that life, and has no summary of it yet.
    let begun = match known.life {
        Some(known_life) if known_life == life => known.filled,
        Some(_) => return,
        None => 0,
    };
    let first = geometry.first_place(region);
    for (n, entry) in entries.iter().enumerate().skip(begun as usize) {
        if entry.tag != 0 && is_newest(drive, region, life, entry) {
            index.insert(first + n as u64, entry);
        }
    }
    let filled = begun.max(entries.len() as u32);
    index.set_region(region, Region { life: Some(life), filled, allocated: true });
}

/// Whether no later life has the granule, too.
fn is_newest(drive: &Drive, region: u32, life: Life, entry: &Entry) -> bool {
    let Some(found) = drive.index.find(entry.tag) else { return true };
    let other = drive.geometry().region_of(found.place);
    other == region || drive.index.region(other).life.is_none_or(|other| other.number < life.number)
}

/// The life of a region, and its granules. `None` if there is none, or if the drive cannot read it: then the region
/// counts as empty.
fn summary(drive: &Drive, region: u32) -> Option<(Life, Vec<Entry>)> {
    let geometry = drive.geometry();
    let mut bytes = drive.buffer(geometry.summary_pages() as usize * PAGE_BYTES).ok()?;
    drive.read_raw(&mut bytes, geometry.summary_offset(region, 0)).ok()?;
    let mut pages = bytes.chunks_exact(PAGE_BYTES).enumerate().map_while(|(page, bytes)| {
        decode(bytes, geometry, Place { drive: drive.label.drive, region, page: page as u32 })
    });
    let (life, mut entries) = pages.next()?;
    let per_page = geometry.entries_of_page() as usize;
    for (page, (other, more)) in pages.enumerate() {
        // A page before it that is not full shows that this one was written in another life.
        if other != life || entries.len() != (page + 1) * per_page {
            break;
        }
        entries.extend(more);
    }
    entries.truncate(geometry.places_of_region() as usize);
    Some((life, entries))
}
