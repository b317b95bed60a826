//! Fetching granules that no drive has: each once, joined to GETs, checked. Rules F1 to F4 of `docs/origin.md`.
//! Non-goals: the choice of the GETs (`joining`).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{Either, join_all, select, try_join, try_join_all};

use crate::common::Result;
use crate::counters::add;
use crate::drive::Drive;
use crate::fill::Fill;
use crate::flights::{Begun, Ended, Lead, Wait};
use crate::identity::{GranuleId, ObjectId};
use crate::index::{Claim, Claimed};
use crate::joining::gets;
use crate::options::PATIENCE;
use crate::pages::whole;
use crate::source::Source;

/// The fetched granules of a call.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Granules by their numbers. The last granule of an object may be shorter.
    pub granules: HashMap<u64, Bytes>,
    /// A GET of this call has returned the expected content.
    pub validated: bool,
}

/// This process's claim on a granule. A drop releases it.
#[derive(Debug)]
struct Claiming {
    drive: Arc<Drive>,
    claim: Option<Claim>,
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.drive.index.unclaim(claim);
        }
    }
}

/// A granule that this call fetches: for all calls, or, without a lead, for itself.
struct Leading {
    granule: u64,
    lead: Option<Lead>,
    claiming: Option<Claiming>,
}

/// The interval at which a call checks whether another process has written a granule.
const LOOK: Duration = Duration::from_millis(2);

/// Fetches granules of an object, from other calls, other processes or the origin. In this process one call fetches a
/// granule.
pub async fn fetch(source: &Source<'_>, id: ObjectId, mut granules: Vec<u64>, fetched: &mut Fetched) -> Result<()> {
    // Granules that another call could not fetch. This one does not wait for them again.
    let mut failed = HashSet::new();
    loop {
        granules.sort_unstable();
        granules.dedup();
        granules.retain(|granule| !fetched.granules.contains_key(granule));
        if granules.is_empty() {
            return Ok(());
        }
        let (mut leads, mut waits) = (Vec::new(), Vec::new());
        for granule in &granules {
            match source.cache.flights.begin(id.granule(*granule)) {
                Begun::Lead(lead) => leads.push((*granule, Some(lead))),
                Begun::Wait(_) if failed.contains(granule) => leads.push((*granule, None)),
                Begun::Wait(wait) => waits.push((*granule, wait)),
                Begun::Have(bytes) => {
                    add(&source.cache.tally.hits_filling, 1);
                    fetched.granules.insert(*granule, bytes);
                }
            }
        }
        // After an error of its own GETs the call waits for no others, and sends no more.
        let (led, waited) = try_join(led(source, id, leads), waited(source, id, waits, &mut failed)).await?;
        for (bytes, validated) in [led, waited] {
            fetched.granules.extend(bytes);
            fetched.validated |= validated;
        }
    }
}

/// Granules by their numbers, and whether a GET of this call has brought some of them.
type Brought = (HashMap<u64, Bytes>, bool);

/// Rule F1: waits for the calls that fetch granules, within a bound, and then fetches the late ones. If the other call
/// gave up, the next round may lead. If its GET has failed, the next round fetches the granule.
async fn waited(
    source: &Source<'_>,
    id: ObjectId,
    waits: Vec<(u64, Wait)>,
    failed: &mut HashSet<u64>,
) -> Result<Brought> {
    let cache = source.cache;
    let outcomes = waits.into_iter().map(|(granule, wait)| async move {
        match select(std::pin::pin!(wait.ended()), cache.timer.after(PATIENCE)).await {
            Either::Left((ended, _)) => (granule, Some(ended)),
            Either::Right(_) => (granule, None),
        }
    });
    let (mut brought, mut late) = (HashMap::new(), Vec::new());
    for (granule, outcome) in join_all(outcomes).await {
        match outcome {
            Some(Ended::Came(bytes)) => {
                brought.insert(granule, bytes);
                add(&cache.tally.hits_waited, 1);
            }
            Some(Ended::Failed) => drop(failed.insert(granule)),
            Some(Ended::GaveUp) => {}
            None => late.push(Leading { granule, lead: None, claiming: None }),
        }
    }
    let validated = !late.is_empty();
    // Together: neighbours are one GET.
    brought.extend(by_gets(source, id, late).await?);
    Ok((brought, validated))
}

/// Fetches the granules that this call leads: by GETs, or from other processes that fetch them. Those without a lead it
/// fetches for itself.
async fn led(source: &Source<'_>, id: ObjectId, leads: Vec<(u64, Option<Lead>)>) -> Result<Brought> {
    let cache = source.cache;
    let (mut leading, mut others) = (Vec::new(), Vec::new());
    for (granule, lead) in leads {
        let Some(lead) = lead else {
            leading.push(Leading { granule, lead, claiming: None });
            continue;
        };
        let drive = cache.drive_of(lead.id());
        let claimed =
            drive.as_ref().map_or(Claimed::No, |drive| drive.index.claim(lead.id().tag, cache.options.wait_for_others));
        match (claimed, drive) {
            (Claimed::Others, Some(drive)) => others.push((granule, lead, drive)),
            (Claimed::Mine(claim), Some(drive)) => {
                let claiming = Some(Claiming { drive, claim: Some(claim) });
                leading.push(Leading { granule, lead: Some(lead), claiming });
            }
            _ => leading.push(Leading { granule, lead: Some(lead), claiming: None }),
        }
    }
    let (mut bytes, (others, asked)) = try_join(by_gets(source, id, leading), of_others(source, id, others)).await?;
    let validated = asked || !bytes.is_empty();
    bytes.extend(others);
    Ok((bytes, validated))
}

/// Rule F3: waits for other processes, within a bound, and then fetches the granules that have not come.
async fn of_others(source: &Source<'_>, id: ObjectId, others: Vec<(u64, Lead, Arc<Drive>)>) -> Result<Brought> {
    let waits = others.into_iter().map(|(granule, lead, drive)| of_another(source, granule, lead, drive));
    let (mut brought, mut left) = (HashMap::new(), Vec::new());
    for outcome in join_all(waits).await {
        match outcome {
            Ok((granule, bytes)) => drop(brought.insert(granule, bytes)),
            Err(leading) => left.push(leading),
        }
    }
    let validated = !left.is_empty();
    // Together: neighbours are one GET.
    brought.extend(by_gets(source, id, left).await?);
    Ok((brought, validated))
}

/// Waits for another process, within a bound. An error is the duty to fetch the granule.
async fn of_another(source: &Source<'_>, granule: u64, lead: Lead, drive: Arc<Drive>) -> Result<(u64, Bytes), Leading> {
    let cache = source.cache;
    let begun = Instant::now();
    let mut claiming = None;
    while begun.elapsed() < cache.options.wait_for_others {
        cache.timer.after(LOOK).await;
        let ended = match drive.index.claim(lead.id().tag, cache.options.wait_for_others) {
            Claimed::Others => false,
            Claimed::Mine(mine) => {
                claiming = Some(Claiming { drive: Arc::clone(&drive), claim: Some(mine) });
                true
            }
            Claimed::No => true,
        };
        // After the claim: its process releases it when the index has the granule.
        if let Some(mut bytes) = whole(cache, &drive, lead.id()).await {
            bytes.truncate(length_of(source.object.meta.size, granule, cache.granule_bytes));
            add(&cache.tally.hits_waited, 1);
            lead.end(Some(bytes.clone()));
            return Ok((granule, bytes));
        }
        if ended {
            break;
        }
    }
    Err(Leading { granule, lead: Some(lead), claiming })
}

/// The bytes of a granule. The last one of its object is shorter.
fn length_of(size: u64, granule: u64, granule_bytes: u64) -> usize {
    size.saturating_sub(granule * granule_bytes).min(granule_bytes) as usize
}

async fn by_gets(source: &Source<'_>, id: ObjectId, leading: Vec<Leading>) -> Result<HashMap<u64, Bytes>> {
    let cache = source.cache;
    let granules: Vec<u64> = leading.iter().map(|leading| leading.granule).collect();
    let mut leading = leading.into_iter().peekable();
    let runs: Vec<(Range<u64>, Vec<Leading>)> = gets(&granules, cache.granule_bytes, &cache.options.cost)
        .into_iter()
        .map(|run| {
            let own = std::iter::from_fn(|| leading.next_if(|leading| leading.granule < run.end)).collect();
            (run, own)
        })
        .collect();
    let fetched = runs.into_iter().map(|(run, own)| one_get(source, id, run, own));
    // The first error drops the others. The drop wakes the calls that wait for them.
    Ok(try_join_all(fetched).await?.into_iter().flatten().collect())
}

/// One GET of granules. Some of them may be between granules that this call leads.
async fn one_get(source: &Source<'_>, id: ObjectId, run: Range<u64>, own: Vec<Leading>) -> Result<Vec<(u64, Bytes)>> {
    let cache = source.cache;
    let range = run.start * cache.granule_bytes..(run.end * cache.granule_bytes).min(source.object.meta.size);
    let got = source.gets.get(source.object, range.clone()).await;
    let got = match got {
        Ok(body) => body,
        Err(fault) => {
            own.into_iter().filter_map(|leading| leading.lead).for_each(|lead| lead.end(None));
            return Err(fault);
        }
    };
    let mut own = own.into_iter().peekable();
    let mut brought = Vec::new();
    for (granule, bytes) in granules_of(&got, run.start, cache.granule_bytes) {
        let leading = own.next_if(|leading| leading.granule == granule);
        fill(source, id.granule(granule), bytes.clone(), leading);
        brought.push((granule, bytes));
    }
    Ok(brought)
}

/// Cuts the body of a GET into granules.
pub fn granules_of(body: &Bytes, first: u64, granule_bytes: u64) -> impl Iterator<Item = (u64, Bytes)> {
    let len = granule_bytes as usize;
    (0..body.len().div_ceil(len)).map(move |n| {
        let bytes = body.slice(n * len..((n + 1) * len).min(body.len()));
        (first + n as u64, bytes)
    })
}

/// Offers a granule to its drive's thread, and then wakes the calls that wait. So a call that comes later finds it in
/// memory.
fn fill(source: &Source<'_>, id: GranuleId, bytes: Bytes, leading: Option<Leading>) {
    let extra = leading.is_none();
    let is_ahead = source.is_ahead && !extra;
    let (lead, mut claiming) = leading.map_or((None, None), |leading| (leading.lead, leading.claiming));
    let claim = claiming.as_mut().and_then(|claiming| claiming.claim.take());
    source.cache.offer(Fill { id, bytes: bytes.clone(), claim, is_ahead }, extra);
    if let Some(lead) = lead {
        lead.end(Some(bytes));
    }
}
