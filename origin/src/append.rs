//! Appending granules to a drive, and emptying a region for new ones. Rules W1 to W5 of `docs/origin.md`. Non-goals: which granules, and when
//! (`fill`).

use std::io;

use bytes::Bytes;

use crate::drive::{Drive, random};
use crate::identity::{GranuleId, PAGE_BYTES};
use crate::index::Region;
use crate::load;
use crate::lock::Held;
use crate::summary::{Entry, Place, encode};

/// A granule to append. It is cut at the end of its object.
#[derive(Clone, Debug)]
pub struct Item {
    pub id: GranuleId,
    pub bytes: Bytes,
}

/// What became of the items of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Granules that are on the drive now, and were not before.
    pub granules: u64,
    /// Granules that another process had brought.
    pub known: u64,
    /// Granules of an emptied region that were written again.
    pub carried: u64,
    /// Regions that were emptied.
    pub emptied: u64,
}

/// Of an emptied region at most this share is written again, so that at most 1.2 bytes are written for each byte that is cached.
const CARRIED_SHARE: u32 = 6;
/// Granules that are pinned may be more: up to this share. No more than that of all granules is pinned, so there is a region with less of them.
const PINNED_SHARE: u32 = 2;
/// Of so many regions ahead of the hand the one is emptied that has the fewest granules in use, and of a quarter of them on a small drive. What came
/// last is behind the hand, and has time to be used.
const CANDIDATES: u32 = 8;
/// Most bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// A granule as it lies on the drive.
struct Ready {
    entry: Entry,
    bytes: Bytes,
    is_pinned: bool,
}

/// Appends granules, as the one process that may. An error leaves what was appended before it.
pub fn append(drive: &Drive, items: &[Item], held: &Held<'_>, done: &mut Appended) -> io::Result<()> {
    load::recover(drive, held)?;
    let mut wanted = Vec::new();
    for item in items {
        if drive.index.find(item.id.tag).is_some() {
            done.known += 1;
            continue;
        }
        let bytes = padded(&item.bytes, drive.geometry().granule_bytes());
        let entry = Entry { tag: item.id.tag, sums: item.id.sums(&bytes) };
        wanted.push(Ready { entry, bytes, is_pinned: false });
    }
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let region = region_with_room(drive, held, done)?;
        let taken = fill(drive, region, rest, held)?;
        done.granules += taken as u64;
        rest = &rest[taken..];
    }
    Ok(())
}

/// Whole pages and a whole granule. What is behind the end of the object is zero.
fn padded(bytes: &Bytes, granule_bytes: usize) -> Bytes {
    if bytes.len() == granule_bytes {
        return bytes.clone();
    }
    let mut whole = Vec::with_capacity(granule_bytes);
    whole.extend_from_slice(&bytes[..bytes.len().min(granule_bytes)]);
    whole.resize(granule_bytes, 0);
    whole.into()
}

/// The open region, or another one if it is full.
fn region_with_room(drive: &Drive, held: &Held<'_>, done: &mut Appended) -> io::Result<u32> {
    let places = drive.geometry().places_of_region();
    if let Some(open) = drive.index.open_region() {
        let region = drive.index.region(open);
        if region.life.is_some() && region.allocated && region.filled < places {
            return Ok(open);
        }
    }
    if let Some(region) = unused_region(drive, held)? {
        begin_life(drive, region, held)?;
        return Ok(region);
    }
    let Some(region) = victim(drive) else {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "the file system has no room for a region"));
    };
    let carried = carried(drive, region);
    begin_life(drive, region, held)?;
    done.emptied += 1;
    let mut rest = &carried[..];
    while !rest.is_empty() {
        let written = fill(drive, region, rest, held)?;
        done.carried += written as u64;
        rest = &rest[written..];
    }
    Ok(region)
}

/// A region that was never used, with its blocks.
fn unused_region(drive: &Drive, held: &Held<'_>) -> io::Result<Option<u32>> {
    let unused = (0..drive.geometry().regions()).find(|region| !drive.index.region(*region).allocated);
    match unused {
        Some(region) => Ok(drive.allocate(region, held)?.then_some(region)),
        None => Ok(None),
    }
}

/// Whether the next region is an emptied one, as far as is known.
pub fn is_full(drive: &Drive) -> bool {
    drive.found_no_room() || (0..drive.geometry().regions()).all(|region| drive.index.region(region).allocated)
}

/// Rules W4 and W6: the hand goes around the regions. Of the next few it takes the one with the fewest granules in use. Those before it lose their
/// marks, so that they go the next time unless they are used again. Regions with many pinned granules are passed over, as long as there are others.
fn victim(drive: &Drive) -> Option<u32> {
    let (index, regions) = (&drive.index, drive.geometry().regions());
    let hand = index.hand();
    let ahead = (0..regions).map(|n| (hand + n) % regions);
    let allocated: Vec<u32> = ahead.filter(|region| index.region(*region).allocated).collect();
    let count = (allocated.len() / 4).clamp(1, CANDIDATES as usize);
    let most = (drive.geometry().places_of_region() / PINNED_SHARE) as usize;
    let may_go = |region: &&u32| index.pinned(**region).len() <= most;
    let mut candidates: Vec<u32> = allocated.iter().filter(may_go).take(count).copied().collect();
    if candidates.is_empty() {
        // A damaged index may say so. Pins are lost then.
        candidates = allocated.into_iter().take(count).collect();
    }
    let chosen =
        *candidates.iter().min_by_key(|region| index.touched(**region).len() + index.pinned(**region).len())?;
    candidates.iter().take_while(|region| **region != chosen).for_each(|region| index.untouch_region(*region));
    index.set_hand((chosen + 1) % regions);
    Some(chosen)
}

/// The granules of a region that are pinned, and those that are in use, each up to a share of the region. Their bytes and sums are taken as they are:
/// a reader proves them.
fn carried(drive: &Drive, region: u32) -> Vec<Ready> {
    let share = |of: u32| (drive.geometry().places_of_region() / of) as usize;
    let mut places = drive.index.pinned(region);
    places.truncate(share(PINNED_SHARE));
    let most = share(CARRIED_SHARE).max(places.len());
    let used = drive.index.touched(region).into_iter().filter(|place| !drive.index.is_pinned(*place));
    places.extend(used);
    places.truncate(most);
    let granule_bytes = drive.geometry().granule_bytes();
    let Ok(mut buffer) = drive.buffer(granule_bytes) else { return Vec::new() };
    let mut carried = Vec::new();
    for place in places {
        let entry = drive.index.entry(place);
        // Only what is still found: a granule that came again elsewhere is not carried.
        let is_here = drive.index.find(entry.tag).is_some_and(|found| found.place == place);
        if is_here && drive.read_raw(&mut buffer, drive.geometry().offset(place)).is_ok() {
            let is_pinned = drive.index.is_pinned(place);
            carried.push(Ready { entry, bytes: Bytes::copy_from_slice(&buffer), is_pinned });
        }
    }
    carried
}

/// Rules W3 and I4: all granules of a region are forgotten before it gets another life.
fn begin_life(drive: &Drive, region: u32, _held: &Held<'_>) -> io::Result<()> {
    let salt = u64::from_le_bytes(random()?);
    drive.index.set_open_region(None);
    let emptied = Region { life: None, filled: 0, allocated: true };
    drive.index.set_region(region, emptied);
    drive.index.clear(region);
    let life = drive.index.next_life(salt);
    drive.index.set_region(region, Region { life: Some(life), ..emptied });
    drive.index.set_open_region(Some(region));
    Ok(())
}

/// Appends as many granules as the region has room for, and as one call writes. Rule W2: the bytes, then the summary, then the index.
fn fill(drive: &Drive, region: u32, granules: &[Ready], held: &Held<'_>) -> io::Result<usize> {
    let (geometry, index) = (drive.geometry(), &drive.index);
    let state = index.region(region);
    let Some(life) = state.life else { return Err(io::Error::other("a region without a life")) };
    let room = (geometry.places_of_region() - state.filled) as usize;
    let most = room.min((WRITE_BYTES / geometry.granule_bytes()).max(1));
    let granules = &granules[..granules.len().min(most)];
    if granules.is_empty() {
        return Err(io::Error::other("a region without room"));
    }
    let first = geometry.first_place(region) + u64::from(state.filled);
    index.set_appending(Some(region));

    let mut buffer = drive.buffer(granules.len() * geometry.granule_bytes()).map_err(io::Error::other)?;
    for (to, granule) in buffer.chunks_exact_mut(geometry.granule_bytes()).zip(granules) {
        to.copy_from_slice(&granule.bytes);
    }
    let written = drive.write(&buffer, geometry.offset(first), held);
    written.inspect_err(|_| index.set_open_region(None))?;

    let filled = state.filled + granules.len() as u32;
    let entry = |place: u32| match place.checked_sub(state.filled) {
        Some(new) => granules[new as usize].entry,
        None => index.entry(geometry.first_place(region) + u64::from(place)),
    };
    let per_page = geometry.entries_of_page();
    let mut page_bytes = drive.buffer(PAGE_BYTES).map_err(io::Error::other)?;
    for page in state.filled / per_page..=(filled - 1) / per_page {
        let entries: Vec<Entry> = (page * per_page..filled.min((page + 1) * per_page)).map(entry).collect();
        encode(&mut page_bytes, geometry, Place { drive: drive.label.drive, region, page }, life, &entries);
        let written = drive.write(&page_bytes, geometry.summary_offset(region, page), held);
        written.inspect_err(|_| index.set_open_region(None))?;
    }

    for (n, granule) in granules.iter().enumerate() {
        index.insert(first + n as u64, &granule.entry);
        if granule.is_pinned {
            index.pin(first + n as u64, true);
        }
    }
    index.set_region(region, Region { filled, ..state });
    index.set_appending(None);
    Ok(granules.len())
}

#[cfg(test)]
mod tests;
