//! Code that the tests and the swarm share: random drives and files, futures that are stepped to their ends, a check of
//! an array. Non-goals: options and contents, which both draw in their own ways.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use iomill::catalog::{Record, check};
use iomill::layout::Map;
use iomill::sys::fs::Alignment;
use iomill::{Array, FileOptions, Layout};

use crate::{DriveModel, World};

/// The number of steps after which a call that has not ended hangs.
pub(crate) const STEPS_MAX: usize = 1_000_000;

/// A drive of one of several kinds.
pub fn drive(rng: &mut Rng) -> DriveModel {
    let direct = |offset, memory| Alignment { offset, memory };
    let alignments = [direct(512, 512), direct(4096, 4096), direct(512, 4), direct(4096, 512), Alignment::NONE];
    let fast = rng.u64(1_000..100_000);
    DriveModel {
        latency_ns: fast..fast + rng.u64(1_000..1_000_000),
        channels: rng.usize(1..20),
        alignment: alignments[rng.usize(0..alignments.len())],
        ..DriveModel::default()
    }
}

/// Options of a file over some of an array's drives, or all.
pub fn file_options(rng: &mut Rng, drives: usize) -> FileOptions {
    let kind = [Layout::Striping, Layout::Rotated, Layout::Hash][rng.usize(0..3)];
    // A group of a hash layout is 64 blocks or more. With long blocks most of a group is zeroes, which only take time.
    let longest = if kind == Layout::Hash { 16384 } else { 512 << 10 };
    let block_bytes = [4096, 4096, 8192, 12288, 65536, 512 << 10][rng.usize(0..6)].min(longest);
    // This draws nothing, so that seeds that once failed keep their meaning.
    let options = FileOptions::new().layout(kind).block_bytes(block_bytes).checksums(rng.get_seed() >> 33 & 1 == 0);
    if rng.bool() {
        return options;
    }
    let mut chosen: Vec<u16> = (0..drives as u16).collect();
    rng.shuffle(&mut chosen);
    chosen.truncate(rng.usize(1..=drives));
    options.drives(chosen)
}

/// Steps an array until a future ends. An error if the future hangs.
pub fn block_on<F: Future>(array: &Array, future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..STEPS_MAX {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        array.step();
    }
    Err(format!("a future has not ended after {STEPS_MAX} steps"))
}

/// Fails with the report of `iomill check` on a closed array, if it has findings.
pub fn check_clean(world: &World) -> Result<(), String> {
    let least = |record: &Record, len: u64, position: usize| {
        let map = Map::new(record.layout, &record.weights, record.key).expect("a record has a layout");
        map.part_bytes(position as u16, len, record.block_bytes)
    };
    let report = check(&world.platform(), &world.paths(), false, &least, &mut |_, _| ())
        .map_err(|error| format!("the check fails: {error}"))?;
    if report.problems.is_empty() { Ok(()) } else { Err(format!("the check finds {:?}", report.problems)) }
}
