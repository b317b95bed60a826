use std::time::Duration;

use super::*;

fn label() -> Label {
    Label { cache: 1, drive: 2, geometry: Geometry::new(16_384, 1 << 20, 40).unwrap() }
}

fn entry(tag: u64) -> Entry {
    Entry { tag, sums: sums_of([tag.rotate_left(9), tag.rotate_left(33)].into_iter()) }
}

fn fresh() -> (tempfile::TempDir, Index) {
    let dir = tempfile::tempdir().unwrap();
    let index = Index::open(dir.path(), &label()).unwrap();
    give_lives(&index);
    (dir, index)
}

fn give_lives(index: &Index) {
    let region = Region { life: Some(Life { number: 1, salt: 1 }), filled: 0, allocated: true };
    (0..index.geometry().regions()).for_each(|n| index.set_region(n, region));
}

#[test]
fn what_is_inserted_is_found_by_all_processes_until_its_region_is_cleared() {
    let (dir, index) = fresh();
    let other = Index::open(dir.path(), &label()).unwrap();
    let places = index.geometry().places();
    // Each place has a granule: the index is as full as it gets.
    let tag = |place: u64| mixed(place + 1);
    for place in 0..places {
        index.insert(place, &entry(tag(place)));
    }
    let missing = (0..places).filter(|place| other.find(tag(*place)).is_none()).count();
    assert!(missing as u64 <= places / 1000, "{missing} of {places} granules found no slot");
    for place in 0..places {
        let Some(found) = other.find(tag(place)) else { continue };
        assert_eq!((found.place, found.sums), (place, entry(tag(place)).sums));
    }
    assert!(other.find(mixed(places + 1)).is_none());
    index.clear(3);
    for place in 0..places {
        let gone = index.geometry().region_of(place) == 3;
        if gone {
            assert!(other.find(tag(place)).is_none());
        }
    }
    let after = (0..places).filter(|place| other.find(tag(*place)).is_none()).count();
    assert!(after - missing <= index.geometry().places_of_region() as usize, "other regions lost granules");
}

#[test]
fn memory_is_at_most_three_thousandths_of_what_is_cached() {
    for (granule, region, regions) in [(16_384, 64 << 20, 100), (65_536, 64 << 20, 100), (16_384, 1 << 20, 5000)] {
        let geometry = Geometry::new(granule, region, regions).unwrap();
        // The head and the claims do not grow.
        let grown = (Shape::new(geometry).words - HEAD - CLAIMS - OBJECTS) as u64 * 8;
        let cached = geometry.places() * geometry.granule_bytes() as u64;
        assert!(grown * 1000 <= cached * 3, "{grown} bytes for {cached}");
    }
}

#[test]
fn a_granule_that_comes_again_is_found_at_its_new_place() {
    let (_dir, index) = fresh();
    index.insert(5, &entry(99));
    index.insert(70, &entry(99));
    assert_eq!(index.find(99).unwrap().place, 70);
    // The old place goes with its region, and takes nothing along.
    index.clear(0);
    assert_eq!(index.find(99).unwrap().place, 70);
}

/// Rule W3.
#[test]
fn nothing_is_found_in_a_region_without_a_life() {
    let (_dir, index) = fresh();
    index.insert(5, &entry(99));
    let found = index.find(99).unwrap();
    assert_eq!((found.life, index.life_at(5)), (1, 1));
    let region = index.region(0);
    index.set_region(0, Region { life: None, ..region });
    assert!(index.find(99).is_none());
    assert_ne!(index.life_at(5), found.life);
    // It comes to the slot that it had: it is not there twice.
    index.insert(70, &entry(99));
    index.set_region(0, region);
    assert_eq!(index.find(99).unwrap().place, 70);
}

#[test]
fn a_slot_is_forgotten_only_as_it_was_found() {
    let (_dir, index) = fresh();
    index.insert(5, &entry(99));
    let found = index.find(99).unwrap();
    index.insert(70, &entry(99));
    index.forget(&found);
    assert_eq!(index.find(99).unwrap().place, 70, "another process has it right by now");
    index.forget(&index.find(99).unwrap());
    assert!(index.find(99).is_none());
}

#[test]
fn an_index_of_another_boot_or_shape_is_made_anew() {
    let (dir, index) = fresh();
    index.insert(5, &entry(99));
    index.word(6).fetch_xor(1, Relaxed);
    let anew = Index::open(dir.path(), &label()).unwrap();
    give_lives(&anew);
    assert!(anew.find(99).is_none(), "another boot");
    anew.insert(5, &entry(99));
    assert!(Index::open(dir.path(), &label()).unwrap().find(99).is_some());
    let wider = Label { geometry: Geometry::new(16_384, 1 << 20, 41).unwrap(), ..label() };
    assert!(Index::open(dir.path(), &wider).unwrap().find(99).is_none(), "another length");
    let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&path, vec![0xff; Shape::new(label().geometry).words * 8]).unwrap();
    assert!(Index::open(dir.path(), &label()).unwrap().find(99).is_none(), "damaged");
}

/// Any bits are at most a miss, or a place that is on the drive.
#[test]
fn random_words_are_no_danger() {
    let (_dir, index) = fresh();
    let mut rng = fastrand::Rng::with_seed(1);
    for at in HEAD..index.words.len() {
        index.word(at).store(rng.u64(..), Relaxed);
    }
    for at in NEXT_LIFE..HEAD {
        index.word(at).store(rng.u64(..), Relaxed);
    }
    // Slots that look like those of a granule, with places behind the drive's end.
    for tag in 1..100 {
        for bucket in index.buckets(tag) {
            (bucket..bucket + SLOTS)
                .for_each(|at| index.word(at).store(Index::slot(tag, rng.u64(1000..1 << 35)), Relaxed));
        }
        assert!(index.find(tag).is_none());
    }
    for _ in 0..10_000 {
        if let Some(found) = index.find(rng.u64(1..)) {
            assert!(found.place < index.geometry().places());
        }
    }
    assert!(index.open_region().is_none_or(|region| region < 40));
    assert!(index.hand() < 40 && index.loaded() <= 40);
    for region in 0..40 {
        assert!(index.region(region).filled <= index.geometry().places_of_region());
        index.clear(region);
    }
    index.insert(5, &entry(99));
    assert_eq!(index.find(99).unwrap().place, 5);
}

#[test]
fn touched_granules_are_those_of_the_region() {
    let (_dir, index) = fresh();
    let first = index.geometry().first_place(2);
    for place in first..first + 5 {
        index.insert(place, &entry(place + 1));
    }
    index.touch(first + 1);
    index.touch(first + 4);
    // Without a granule.
    index.touch(first + 9);
    assert_eq!(index.touched(2), [first + 1, first + 4]);
    assert_eq!(index.touched(1), [0; 0]);
    index.untouch_region(2);
    assert_eq!(index.touched(2), [0; 0]);
}

#[test]
fn one_process_has_a_claim_until_it_ends() {
    let (dir, index) = fresh();
    let other = Index::open(dir.path(), &label()).unwrap();
    let long = Duration::from_secs(3600);
    let Claimed::Mine(claim) = index.claim(77, long) else { panic!("nothing was claimed") };
    assert_eq!(other.claim(77, long), Claimed::Others);
    // Other granules with the same bucket, until it is full.
    for tag in 78..85 {
        assert!(matches!(other.claim(tag, long), Claimed::Mine(_)));
    }
    assert_eq!(other.claim(85, long), Claimed::No);
    index.unclaim(claim);
    let Claimed::Mine(short) = other.claim(77, Duration::ZERO) else { panic!("it was given back") };
    // The process of the claim has died. Its end has come at the next tick.
    std::thread::sleep(Duration::from_millis(5));
    let Claimed::Mine(second) = index.claim(77, long) else { panic!("it has ended") };
    other.unclaim(short);
    assert_eq!(other.claim(77, long), Claimed::Others, "a claim that has ended takes none along");
    index.unclaim(second);
}
