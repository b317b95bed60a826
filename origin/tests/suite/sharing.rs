//! A missing granule is fetched once: by the tasks of a process, and by processes that share a cache.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use iomill_origin::{Cost, Revalidate};

use super::object_store::{Error, ObjectStore};
use super::{Act, GRANULE, Rig, expected, options, random, rows};

const LEN: usize = 2 << 20;

#[tokio::test]
async fn tasks_that_want_a_granule_share_its_get() {
    // Without claims, which would do the same among processes.
    let alone = |options: iomill_origin::Options| options.wait_for_others(Duration::ZERO);
    for rig in [Rig::with(|options| alone(options).revalidate("", Revalidate::Never)), Rig::with(alone)] {
        let bytes = random(LEN, 1);
        rig.behind("a", bytes.clone()).await;
        rig.scripted.script(|_| Act::After(Duration::from_millis(20)));
        let wanted = rows(LEN as u64);
        let tasks = (0..32).map(|_| async {
            assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
        });
        join_all(tasks).await;
        let counters = rig.cache.counters();
        // All granules once, and the first one perhaps with the rest of the first GET.
        assert!(counters.bytes_fetched <= LEN as u64 + GRANULE, "{counters:?}");
        assert!(counters.gets <= 3, "{counters:?}");
    }
}

/// Each opening stands for a process of its own: they share the drives and the index.
#[tokio::test]
async fn processes_that_want_a_granule_share_its_get() {
    let rig = Rig::immutable();
    let given = || options(&rig.dir).revalidate("", Revalidate::Never).wait_for_others(Duration::from_secs(60));
    let others: Vec<_> = (0..3).map(|_| rig.another(given())).collect();
    let stores: Vec<&Arc<dyn ObjectStore>> = others.iter().map(|(_, store)| store).collect();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    // Each knows the object.
    for store in &stores {
        store.get_ranges(&super::Path::from("a"), &[0..5]).await.unwrap();
    }
    rig.scripted.asked();
    let before = rig.scripted.counts();
    rig.scripted.script(|_| Act::After(Duration::from_millis(20)));
    let wanted = rows(LEN as u64);
    let tasks = stores.iter().map(|store| async {
        assert_eq!(store.get_ranges(&super::Path::from("a"), &wanted).await.unwrap(), expected(&bytes, &wanted));
    });
    join_all(tasks).await;
    let asked: u64 = rig.scripted.asked().iter().map(|range| range.end - range.start).sum();
    assert!(asked <= LEN as u64 * 105 / 100, "{asked} bytes in {:?}", rig.scripted.counts());
    assert!(rig.scripted.counts().0 - before.0 <= 4);
    others.iter().for_each(|(cache, _)| cache.flush());
    let filled: u64 = others.iter().map(|(cache, _)| cache.counters().filled).sum();
    assert!(filled <= LEN as u64 / GRANULE, "{filled} granules on the drives");
}

/// One process finds the granules that another one has fetched, without a new opening.
#[tokio::test]
async fn what_one_process_fetched_is_a_hit_of_the_others() {
    let rig = Rig::immutable();
    let (other, store) = rig.another(options(&rig.dir).revalidate("", Revalidate::Never));
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    let wanted = rows(LEN as u64);
    rig.ranges("a", &wanted).await.unwrap();
    rig.cache.flush();
    assert_eq!(store.get_ranges(&super::Path::from("a"), &wanted).await.unwrap(), expected(&bytes, &wanted));
    let counters = other.counters();
    assert_eq!((counters.gets, counters.heads, counters.hits), (0, 1, wanted.len() as u64), "{counters:?}");
}

/// Calls wait within the bound for a process that claims a granule and is stopped or killed.
#[tokio::test]
async fn a_process_that_never_ends_its_get_is_waited_for_within_the_bound() {
    // Its claim lasts an hour.
    let hour = Duration::from_secs(3600);
    let rig = Rig::with(|options| options.wait_for_others(hour).revalidate("", Revalidate::Never));
    let (other, store) = rig.another(options(&rig.dir).revalidate("", Revalidate::Never));
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    for store in [&rig.store, &store] {
        store.get_ranges(&super::Path::from("a"), &[0..5]).await.unwrap();
    }
    rig.cache.flush();
    other.flush();
    // The first GET from now on stalls, and the others pass.
    let (gets, _) = rig.scripted.counts();
    rig.scripted.script(move |ask| if !ask.head && ask.nth == gets { Act::Stall } else { Act::Pass });
    let wanted = [1 << 20..(1 << 20) + 10];
    let mut stalled = Box::pin(rig.ranges("a", &wanted));
    assert!(futures_util::poll!(&mut stalled).is_pending());
    let path = super::Path::from("a");
    let got = store.get_ranges(&path, &wanted);
    assert_eq!(got.await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(rig.scripted.counts().0, gets + 2);
}

/// Neighbours that another process or another call does not fetch in time are one GET, and not one GET each.
#[tokio::test]
async fn granules_that_come_too_late_are_fetched_together() {
    for by_a_process in [true, false] {
        let hour = Duration::from_secs(3600);
        let rig = Rig::with(|options| options.wait_for_others(hour).revalidate("", Revalidate::Never));
        let (other, store) = rig.another(options(&rig.dir).revalidate("", Revalidate::Never));
        let bytes = random(LEN, 1);
        rig.behind("a", bytes.clone()).await;
        let path = super::Path::from("a");
        for store in [&rig.store, &store] {
            store.get_ranges(&path, &[0..5]).await.unwrap();
        }
        rig.cache.flush();
        other.flush();
        let (gets, _) = rig.scripted.counts();
        rig.scripted.script(move |ask| if !ask.head && ask.nth == gets { Act::Stall } else { Act::Pass });
        let wanted = [1 << 20..2 << 20];
        let mut stalled = Box::pin(rig.ranges("a", &wanted));
        assert!(futures_util::poll!(&mut stalled).is_pending());
        let second = if by_a_process { &store } else { &rig.store };
        assert_eq!(second.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
        assert_eq!(rig.scripted.counts().0, gets + 2, "by a process: {by_a_process}");
    }
}

/// A GET is in flight, and fails when the sender sends.
fn failing_later(scripted: &super::Scripted) -> futures_channel::oneshot::Sender<()> {
    let (send, sent) = futures_channel::oneshot::channel();
    let (gets, mut sent) = (scripted.counts().0, Some(sent));
    scripted.script(move |ask| match sent.take_if(|_| !ask.head && ask.nth == gets) {
        Some(sent) => Act::FailAfter(sent, refused()),
        None => Act::Pass,
    });
    send
}

fn refused() -> Error {
    Error::PermissionDenied { path: "a".into(), source: "no rights".into() }
}

/// Two stores of one name share GETs, and one of them has no right to its GET. Seen to fail when the error of a GET was
/// that of all calls that waited for it.
#[tokio::test]
async fn a_store_does_not_get_the_error_of_another_one() {
    let rig = Rig::immutable();
    let other = Arc::new(super::Scripted::new(rig.memory.clone()));
    let store = rig.cache.over(other.clone() as Arc<dyn ObjectStore>, "memory://");
    let (bytes, path) = (random(LEN, 1), super::Path::from("a"));
    rig.behind("a", bytes.clone()).await;
    for store in [&rig.store, &store] {
        store.get_ranges(&path, &[0..5]).await.unwrap();
    }
    let (send, before) = (failing_later(&rig.scripted), other.counts());
    let wanted = [1 << 20..(1 << 20) + 10, 2_000_000..2_000_100];
    let (mut first, mut second) = (Box::pin(rig.ranges("a", &wanted[..1])), Box::pin(store.get_ranges(&path, &wanted)));
    assert!(futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending());
    send.send(()).unwrap();
    assert!(matches!(first.await.unwrap_err(), Error::PermissionDenied { .. }));
    assert_eq!(second.await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(other.counts(), (before.0 + 2, before.1), "each granule once");
}

/// A GET of several granules fails, and a call that wants one of them fetches that one.
#[tokio::test]
async fn a_call_does_not_get_the_error_of_a_longer_get() {
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.ranges("a", &[0..5]).await.unwrap();
    let send = failing_later(&rig.scripted);
    let (many, one) = ([GRANULE..6 * GRANULE], [5 * GRANULE + 7..5 * GRANULE + 9]);
    rig.scripted.asked();
    let (mut first, mut second) = (Box::pin(rig.ranges("a", &many)), Box::pin(rig.ranges("a", &one)));
    assert!(futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending());
    send.send(()).unwrap();
    first.await.unwrap_err();
    assert_eq!(second.await.unwrap(), expected(&bytes, &one));
    assert_eq!(rig.scripted.asked(), [many[0].clone(), 5 * GRANULE..6 * GRANULE]);
}

/// The origin refuses all GETs. A call that leads one granule, and waits for another, sends one GET, as without a cache.
/// Seen to fail when the call fetched the other granule, too.
#[tokio::test]
async fn an_origin_that_fails_gets_no_more_gets_than_without_a_cache() {
    const CALLS: u64 = 20;
    let rig = Rig::immutable();
    rig.behind("a", random(LEN, 1)).await;
    rig.ranges("a", &[0..5]).await.unwrap();
    let before = rig.scripted.counts().0;
    // Room for more GETs than are allowed.
    let (sends, mut sent): (Vec<_>, Vec<_>) = (0..4 * CALLS).map(|_| futures_channel::oneshot::channel()).unzip();
    rig.scripted.script(move |_| Act::FailAfter(sent.remove(0), refused()));
    let wanted: Vec<_> = (0..CALLS).map(|n| [(10 + n) * GRANULE..(12 + n) * GRANULE]).collect();
    let mut calls: Vec<_> = wanted.iter().map(|wanted| Box::pin(rig.ranges("a", wanted))).collect();
    for call in &mut calls {
        assert!(futures_util::poll!(call).is_pending());
    }
    sends.into_iter().for_each(|send| send.send(()).unwrap_or_default());
    for got in join_all(calls).await {
        assert!(matches!(got.unwrap_err(), Error::PermissionDenied { .. }));
    }
    assert_eq!(rig.scripted.counts().0 - before, CALLS);
}

/// The GET of another call stalls. A call with a failed GET of its own does not wait for it, and sends no other. Seen to
/// fail when the call waited, and then fetched the other granule, too.
#[tokio::test]
async fn a_call_that_has_failed_waits_for_no_other() {
    let rig = Rig::immutable();
    rig.behind("a", random(LEN, 1)).await;
    rig.ranges("a", &[0..5]).await.unwrap();
    let before = rig.scripted.counts().0;
    rig.scripted.script(move |ask| if ask.nth == before { Act::Stall } else { Act::Fail(refused()) });
    let far = [20 * GRANULE..21 * GRANULE];
    let mut stalled = Box::pin(rig.ranges("a", &far));
    assert!(futures_util::poll!(&mut stalled).is_pending());
    let error = rig.ranges("a", &[10 * GRANULE..11 * GRANULE, far[0].clone()]).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    assert_eq!(rig.scripted.counts().0 - before, 2);
}

/// Another process has the right to append, so nothing is written. Answers do not wait for that, and fetched granules
/// are found in memory.
#[tokio::test]
async fn what_waits_to_be_written_is_found_in_memory() {
    let rig = Rig::immutable();
    let locks: Vec<_> = super::drives(&rig.dir)
        .into_iter()
        .map(|drive| {
            let lock = std::fs::File::open(drive.join("iomill-origin/lock")).unwrap();
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
            lock
        })
        .collect();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    let wanted = rows(LEN as u64);
    for _ in 0..3 {
        assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    }
    let counters = rig.cache.counters();
    // The first one learns the version, and the other one fetches the rest.
    assert_eq!((counters.gets, counters.filled, counters.hits), (2, 0, 0), "{counters:?}");
    assert_eq!(counters.hits_filling, 2 * wanted.len() as u64);
    drop(locks);
    rig.cache.flush();
    assert_eq!(rig.cache.counters().filled, LEN as u64 / GRANULE);
}

/// A program may poll a get once, and then wait for another one. The first get has the only permit, and is the first of
/// its object.
#[tokio::test]
async fn a_get_that_nothing_polls_stops_no_other() {
    let mut one = Cost::default();
    one.in_flight = 1;
    let rig = Rig::with(|options| options.cost(one));
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.scripted.script(|_| Act::After(Duration::from_millis(20)));
    let wanted = [0..5];
    let mut parked = std::pin::pin!(rig.ranges("a", &wanted));
    assert!(futures_util::poll!(&mut parked).is_pending());
    let other = tokio::time::timeout(Duration::from_secs(120), rig.ranges("a", &wanted));
    assert_eq!(other.await.expect("it waits for ever").unwrap(), expected(&bytes, &wanted));
    assert_eq!(parked.await.unwrap(), expected(&bytes, &wanted));
}

/// A GET that stalls is sent a second time, and that answer counts. An origin that stalls as a whole does not get twice
/// as many requests.
#[tokio::test]
async fn a_get_of_a_slow_tail_is_sent_again() {
    let after = Duration::from_millis(200);
    let rig = Rig::with(|options| {
        options.cost(Cost::default().hedge_after(after).gap_bytes(0)).revalidate("", Revalidate::Never)
    });
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.ranges("a", &[0..5]).await.unwrap();
    let wanted = rows(LEN as u64);
    // One of 20 stalls, and not its second try.
    let stalled = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let stalls = Arc::clone(&stalled);
    rig.scripted.script(move |ask| {
        let is_slow = !ask.head && ask.nth % 20 == 19;
        stalls.fetch_add(u64::from(is_slow), std::sync::atomic::Ordering::Relaxed);
        if is_slow { Act::Stall } else { Act::Pass }
    });
    for row in wanted.chunks(1).skip(1).take(60) {
        let got = tokio::time::timeout(Duration::from_secs(60), rig.ranges("a", row)).await;
        assert_eq!(got.expect("it stalls").unwrap(), expected(&bytes, row));
    }
    let counters = rig.cache.counters();
    let stalled = stalled.load(std::sync::atomic::Ordering::Relaxed);
    assert!(
        stalled >= 3 && counters.hedged >= stalled && counters.hedged * 10 <= counters.gets,
        "{stalled} {counters:?}"
    );
    // All of them: a tenth is sent again, and no more.
    rig.scripted.script(|ask| if ask.head { Act::Pass } else { Act::After(Duration::from_millis(400)) });
    let rest: Vec<_> = wanted[62..].iter().step_by(2).cloned().collect();
    assert_eq!(rig.ranges("a", &rest).await.unwrap(), expected(&bytes, &rest));
    let counters = rig.cache.counters();
    assert!(counters.hedged * 10 <= counters.gets, "{counters:?}");
}
