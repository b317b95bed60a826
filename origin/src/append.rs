//! Appending granules to a drive, and emptying a region for new ones. Rules W1 to W6 of `docs/origin.md`. Non-goals:
//! the choice of granules and of the moment (`fill`).

use std::io;

use bytes::Bytes;

use crate::drive::{Drive, random, says_full};
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

/// The result of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Granules that are new on the drive.
    pub granules: u64,
    /// Granules that another process had written before.
    pub known: u64,
    /// Granules of an emptied region that were written again.
    pub carried: u64,
    /// Regions that were emptied.
    pub emptied: u64,
}

/// Of the granules of an emptied region, at most one in this many is written again because it is in use. So at most 1.2
/// bytes are written for each cached byte.
const CARRIED_SHARE: u32 = 6;
/// The same for pinned granules. At most one in this many granules of a drive is pinned, so some region has no larger
/// share.
const PINNED_SHARE: u32 = 2;
/// The number of regions ahead of the hand among which eviction chooses the one with the fewest granules in use. On a
/// small drive it is a quarter of the regions. The newest granules are behind the hand, so there is time to use them.
const CANDIDATES: u32 = 8;
/// The largest number of bytes of one write.
const WRITE_BYTES: usize = 1 << 20;

/// A granule in the form that the drive has.
struct Ready {
    entry: Entry,
    bytes: Bytes,
    is_pinned: bool,
}

/// Appends granules. The caller holds the only right to append. After an error, the granules that were appended before
/// it stay.
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

/// Fills the granule up with zeros past the end of the object.
fn padded(bytes: &Bytes, granule_bytes: usize) -> Bytes {
    if bytes.len() == granule_bytes {
        return bytes.clone();
    }
    let mut whole = Vec::with_capacity(granule_bytes);
    whole.extend_from_slice(&bytes[..bytes.len().min(granule_bytes)]);
    whole.resize(granule_bytes, 0);
    whole.into()
}

/// The open region, or another one if the open region is full.
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

/// Whether the next region must be emptied first, as far as is known.
pub fn is_full(drive: &Drive) -> bool {
    drive.found_no_room() || (0..drive.geometry().regions()).all(|region| drive.index.region(region).allocated)
}

/// Rules W4 and W6: the hand moves around the regions. Of the next few it chooses the one with the fewest granules in
/// use. The regions that it passes lose their marks of use, so they are emptied at the next turn unless they are used
/// again. Regions with many pinned granules are skipped, unless all have many.
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
        // A damaged index may have too many pins everywhere. Then pins are lost.
        candidates = allocated.into_iter().take(count).collect();
    }
    let chosen =
        *candidates.iter().min_by_key(|region| index.touched(**region).len() + index.pinned(**region).len())?;
    candidates.iter().take_while(|region| **region != chosen).for_each(|region| index.untouch_region(*region));
    index.set_hand((chosen + 1) % regions);
    Some(chosen)
}

/// The pinned granules of a region, and those in use, each up to a share of the region. Their bytes and sums are copied
/// unchecked: a reader proves them.
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
        // Only granules that a lookup still finds here: one that was written again elsewhere is not carried.
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

/// Rule W5: a region without granules has found no room. A file system that writes changed blocks to new places has
/// none for an emptied region, and one that gives blocks only to writes has none for a new region. The region gives its
/// blocks back, which are room for the next one. It is not emptied again before it has blocks.
fn leave(drive: &Drive, region: u32, held: &Held<'_>) {
    let emptied = Region { life: None, filled: 0, allocated: false };
    drive.index.set_region(region, emptied);
    // The drive counts and tells its errors.
    let _kept = drive.give_back(region, held);
}

/// Appends as many granules as fit into the region and into one write. Rule W2: the bytes, then the summary, then the
/// index.
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
    let failed = |error: io::Error| {
        index.set_open_region(None);
        if says_full(&error) {
            drive.found_too_late();
            if state.filled == 0 {
                leave(drive, region, held);
            }
        }
        error
    };
    drive.write(&buffer, geometry.offset(first), held).map_err(failed)?;

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
        drive.write(&page_bytes, geometry.summary_offset(region, page), held).map_err(failed)?;
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
