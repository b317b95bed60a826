//! Layouts are bijections, in proportion, with parts as short as possible.

use arbitrary::Unstructured;

use super::*;
use crate::sys::property::{check, list};

const KINDS: [Layout; 3] = [Layout::Striping, Layout::Rotated, Layout::Hash];

fn kind(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Layout> {
    bytes.choose(&KINDS).copied()
}

/// Equal weights, nearly equal ones, and any.
fn weights(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u32>> {
    match bytes.int_in_range(0..=2)? {
        0 => Ok(vec![bytes.int_in_range(1..=1000)?; bytes.int_in_range(1..=20)?]),
        1 => list(bytes, 1..=9, |bytes| bytes.int_in_range(9..=12)),
        _ => list(bytes, 1..=256, |bytes| bytes.int_in_range(1..=1000)),
    }
}

fn map(kind: Layout, weights: &[u32], key: u64) -> Map {
    Map::new(kind, weights, key).unwrap()
}

/// Blocks anywhere, at the edges of groups and stripes, and at the end of the range of `u64`.
fn block(bytes: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    let off = bytes.int_in_range(-2..=2i64)?;
    match bytes.int_in_range(0..=3)? {
        0 => bytes.int_in_range(0..=(1 << 40) - 1),
        1 => Ok((bytes.int_in_range(0..=(1u64 << 30) - 1)? * 64).saturating_add_signed(off)),
        2 => Ok((1u64 << bytes.int_in_range(0..=63)?).saturating_add_signed(off)),
        _ => Ok(u64::MAX - bytes.int_in_range(0..=999)?),
    }
}

/// A map, and its weights.
fn a_map(bytes: &mut Unstructured<'_>) -> arbitrary::Result<(Layout, Vec<u32>, u64)> {
    Ok((kind(bytes)?, weights(bytes)?, bytes.arbitrary()?))
}

#[test]
fn block_undoes_place() {
    let make = |bytes: &mut Unstructured<'_>| Ok((a_map(bytes)?, list(bytes, 1..=49, block)?));
    check(256, make, |((kind, weights, key), seeds)| {
        let map = map(kind, &weights, key);
        let unit = weights.iter().map(|&w| u64::from(w)).sum::<u64>();
        for seed in seeds {
            for block in [seed, seed / unit * unit, (seed / unit * unit).wrapping_sub(1)] {
                let place = map.place(block);
                assert!(place.drive < map.drives());
                assert_eq!(map.block(place.drive, place.block), block);
            }
        }
    });
}

/// The other direction: every place of a part is used exactly once.
#[test]
fn place_undoes_block() {
    let make =
        |bytes: &mut Unstructured<'_>| Ok((a_map(bytes)?, bytes.arbitrary::<u16>()?, list(bytes, 1..=49, block)?));
    check(256, make, |((kind, weights, key), drive, seeds)| {
        let map = map(kind, &weights, key);
        let drive = drive % map.drives();
        for block_in_part in seeds {
            let block = map.block(drive, block_in_part);
            if block < u64::MAX {
                assert_eq!(map.place(block), Placement { drive, block: block_in_part });
            } else {
                assert!(block_in_part > u64::MAX / 1000 / 256 / 2, "{block_in_part} has a block");
            }
        }
    });
}

/// No arguments cause a panic.
#[test]
fn nothing_panics() {
    let make = |bytes: &mut Unstructured<'_>| {
        Ok((a_map(bytes)?, bytes.arbitrary::<u16>()?, block(bytes)?, bytes.arbitrary()?))
    };
    check(256, make, |((kind, weights, key), drive, x, block_bytes)| {
        let map = map(kind, &weights, key);
        map.place(x);
        map.block(drive, x);
        assert!(map.part_bytes(drive, x, block_bytes) >= map.part_blocks(drive, x / u64::from(block_bytes.max(1))));
        if drive >= map.drives() {
            assert_eq!((map.block(drive, x), map.part_blocks(drive, x)), (u64::MAX, 0));
        }
    });
}

/// A part has every block of the file that is on its drive, and ends with such a block.
#[test]
fn parts_are_as_short_as_they_can_be() {
    let make = |bytes: &mut Unstructured<'_>| {
        let weights = list(bytes, 1..=9, |bytes| bytes.int_in_range(1..=12))?;
        let (kind, key) = (kind(bytes)?, bytes.arbitrary()?);
        Ok((kind, weights, key, bytes.int_in_range(0..=(1u64 << 40) - 1)?, bytes.int_in_range(0..=699u64)?))
    };
    check(256, make, |(kind, weights, key, start, more)| {
        let map = map(kind, &weights, key);
        // First the lengths at a common multiple of all groups, then one block at a time.
        let start = start / 27_720 * 27_720;
        let mut ends: Vec<u64> = (0..map.drives()).map(|d| map.part_blocks(d, start)).collect();
        for block in start..start + more {
            let place = map.place(block);
            let end = &mut ends[usize::from(place.drive)];
            *end = (*end).max(place.block + 1);
        }
        for (drive, &end) in ends.iter().enumerate() {
            assert_eq!(map.part_blocks(drive as u16, start + more), end);
        }
    });
}

#[test]
fn part_bytes_counts_a_partial_block() {
    let make = |bytes: &mut Unstructured<'_>| Ok((a_map(bytes)?, bytes.int_in_range(0..=(1u64 << 34) - 1)?));
    check(256, make, |((kind, weights, key), len_bytes)| {
        let map = map(kind, &weights, key);
        let (block_bytes, last) = (1 << 16, len_bytes.saturating_sub(1) >> 16);
        let mut total = 0;
        for drive in 0..map.drives() {
            let bytes = map.part_bytes(drive, len_bytes, block_bytes);
            total += bytes;
            let whole = map.part_blocks(drive, len_bytes.div_ceil(1 << 16)) << 16;
            let cut = whole - bytes;
            assert!(cut < 1 << 16);
            if cut > 0 {
                assert_eq!(map.block(drive, bytes >> 16), last, "only the file's last block is cut");
                assert_eq!(bytes % (1 << 16), len_bytes % (1 << 16));
            }
        }
        assert!(total >= len_bytes);
    });
}

/// The first `blocks` blocks, counted by drive.
fn counts(map: &Map, blocks: u64) -> Vec<u64> {
    let mut counts = vec![0; usize::from(map.drives())];
    (0..blocks).for_each(|b| counts[usize::from(map.place(b).drive)] += 1);
    counts
}

#[test]
fn hash_follows_the_weights() {
    for weights in [
        vec![10, 11],
        vec![1; 4],
        vec![1; 7],
        vec![10, 11, 10, 11, 12],
        vec![997, 1000],
        vec![1, 1000],
        vec![500, 250, 125],
    ] {
        let blocks = 100_000;
        let sum = weights.iter().sum::<u32>();
        let counts = counts(&map(Layout::Hash, &weights, 7), blocks);
        for (drive, (&count, &weight)) in counts.iter().zip(&weights).enumerate() {
            let expected = blocks as f64 * f64::from(weight) / f64::from(sum);
            assert!((count as f64 / expected - 1.0).abs() < 0.02, "{weights:?}: {count} blocks on drive {drive}");
        }
    }
}

#[test]
fn parts_are_dense() {
    for kind in KINDS {
        for weights in [vec![1; 4], vec![10, 11, 12], vec![3; 5], vec![997, 1000, 1]] {
            let map = map(kind, &weights, 99);
            // Whole stripes or groups.
            let period = match &map.0 {
                CompiledLayout::Hash(hash) => hash.group_blocks(),
                _ => map.drives().into(),
            };
            let blocks = 50 * period;
            let counts = counts(&map, blocks);
            for (drive, &count) in counts.iter().enumerate() {
                assert_eq!(map.part_blocks(drive as u16, blocks), count, "{kind:?} {weights:?} drive {drive}");
            }
        }
    }
}

/// A stride over the file, which with striping would meet only some of the drives.
#[test]
fn hash_breaks_strides() {
    let (drives, blocks) = (8, 8000);
    let load = |kind, stride: u64| {
        let map = map(kind, &vec![1; drives], 1);
        let mut counts = vec![0u64; drives];
        (0..blocks).for_each(|i| counts[usize::from(map.place(i * stride).drive)] += 1);
        counts.into_iter().max().unwrap_or(0) as f64 / (blocks as f64 / drives as f64)
    };
    assert_eq!(load(Layout::Striping, 8), 8.0);
    for stride in (1..300).chain([1024, 4096, 65536, 1 << 20, 1 << 33]) {
        let load = load(Layout::Hash, stride);
        assert!(load < 1.15, "stride {stride}: the fullest drive has {load} times its share");
    }
}

#[test]
fn hash_mixes_a_part() {
    let map = map(Layout::Hash, &[1; 4], 3);
    let rising = (1..10_000).filter(|&i| map.block(0, i) > map.block(0, i - 1)).count();
    assert!((4500..5700).contains(&rising), "{rising} of 10,000 neighbours in order");
}

#[test]
fn keys_differ() {
    let [a, b] = [1, 2].map(|key| map(Layout::Hash, &[1; 4], key));
    let same = (0..10_000).filter(|&x| a.place(x).drive == b.place(x).drive).count();
    assert!((2200..2800).contains(&same), "{same} of 10,000 blocks on the same drive of four");
}

#[test]
fn one_drive_keeps_the_order() {
    for kind in KINDS {
        let map = map(kind, &[5], 11);
        assert_eq!(map.place(12345), Placement { drive: 0, block: 12345 });
        assert_eq!(map.part_bytes(0, 12345, 4096), 12345);
    }
}

#[test]
fn rotated_moves_the_first_drive() {
    let map = map(Layout::Rotated, &[1; 3], 0);
    let drives: Vec<u16> = (0..12).map(|b| map.place(b).drive).collect();
    assert_eq!(drives, [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]);
}

#[test]
fn bad_arguments_are_refused() {
    for (kind, weights) in [
        (Layout::Striping, vec![]),
        (Layout::Rotated, vec![1; 257]),
        (Layout::Hash, vec![]),
        (Layout::Hash, vec![1, 0]),
        (Layout::Hash, vec![1001, 1]),
        (Layout::Hash, vec![0]),
    ] {
        assert!(matches!(Map::new(kind, &weights, 0), Err(Error::Invalid { .. })), "{kind:?} {weights:?}");
    }
    assert!(Map::new(Layout::Striping, &[0; 256], 0).is_ok(), "striping does not look at weights");
}

/// Placements are part of the format: this version reads drives that an earlier version wrote.
#[test]
fn places_never_change() {
    let places = |weights: &[u32], key, from: u64| {
        let map = map(Layout::Hash, weights, key);
        (from..from + 6).map(|b| map.place(b)).map(|p| (p.drive, p.block)).collect::<Vec<_>>()
    };
    assert_eq!(places(&[1; 4], 0x0123_4567_89ab_cdef, 0), [(0, 12), (3, 15), (0, 14), (0, 2), (3, 12), (3, 11)]);
    assert_eq!(
        places(&[10, 11], 42, 1 << 40),
        [
            (1, 575934662179),
            (1, 575934662202),
            (1, 575934662187),
            (0, 523576965633),
            (0, 523576965649),
            (0, 523576965657)
        ]
    );
    assert_eq!(
        places(&[997, 1000, 1], u64::MAX, 5000),
        [(0, 2220), (0, 2742), (1, 2390), (0, 2523), (1, 2903), (0, 2362)]
    );
}
