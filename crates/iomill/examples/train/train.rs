//! Training with more rows than memory holds: each epoch reads all rows once, in a new random order. The model is
//! linear, and is trained by stochastic gradient descent, so its loss tells whether the rows were right.

use std::error::Error;
use std::sync::mpsc::sync_channel;
use std::thread;

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Numbers of a row: features, and the number that is to be learnt.
const FEATURES: usize = 127;
pub const ROW_BYTES: usize = (FEATURES + 1) * 4;

/// Rows of a step.
const BATCH: usize = 256;

/// Batches that are read ahead of the training.
const AHEAD: usize = 4;

/// A place in which the rows lie.
pub trait Rows: Sync {
    /// Brings rows by their numbers, one after the other.
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()>;
}

/// The row of a number: features at random, and what a fixed model makes of them.
pub fn row(number: u32) -> Vec<u8> {
    let feature = |at: usize| unit(u64::from(number) << 8 | at as u64);
    let features: Vec<f32> = (0..FEATURES).map(feature).collect();
    let target: f32 = features.iter().zip(truth()).map(|(feature, weight)| feature * weight).sum();
    features.into_iter().chain([target]).flat_map(f32::to_le_bytes).collect()
}

/// The weights that are to be found.
fn truth() -> impl Iterator<Item = f32> {
    (0..FEATURES as u64).map(|at| unit(at << 40))
}

/// Trains for some epochs over `count` rows, and returns the mean loss of each. A thread reads ahead.
pub fn train(rows: &impl Rows, count: u32, epochs: usize) -> Result<Vec<f32>> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut weights = [0.0; FEATURES];
    let mut losses = Vec::new();
    for epoch in 0..epochs {
        shuffle(&mut order, epoch as u64);
        let (sender, batches) = sync_channel(AHEAD);
        let (order, weights) = (&order, &mut weights);
        let loss = thread::scope(|scope| {
            let reader = scope.spawn(move || -> Result<()> {
                for numbers in order.chunks(BATCH) {
                    let mut batch = vec![0; numbers.len() * ROW_BYTES];
                    rows.gather(&mut batch, numbers)?;
                    // The trainer has ended early only if it panicked.
                    if sender.send(batch).is_err() {
                        break;
                    }
                }
                Ok(())
            });
            let loss: f32 = batches.into_iter().map(|batch| step(weights, &batch)).sum();
            reader.join().expect("the reader panicked").map(|()| loss)
        })?;
        losses.push(loss / count as f32);
    }
    Ok(losses)
}

/// One step of gradient descent. Returns the sum of the rows' losses before it.
fn step(weights: &mut [f32; FEATURES], batch: &[u8]) -> f32 {
    let mut gradient = [0.0; FEATURES];
    let mut loss = 0.0;
    for row in batch.chunks_exact(ROW_BYTES) {
        let mut numbers = [0.0; FEATURES + 1];
        for (number, bytes) in numbers.iter_mut().zip(row.as_chunks::<4>().0) {
            *number = f32::from_le_bytes(*bytes);
        }
        let predicted: f32 = weights.iter().zip(numbers).map(|(weight, feature)| weight * feature).sum();
        let wrong = predicted - numbers[FEATURES];
        loss += wrong * wrong;
        gradient.iter_mut().zip(numbers).for_each(|(slope, feature)| *slope += wrong * feature);
    }
    let rate = 0.5 / (batch.len() / ROW_BYTES) as f32;
    weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= rate * slope);
    loss
}

/// Fisher and Yates, with another order for each seed.
fn shuffle(order: &mut [u32], seed: u64) {
    for last in (1..order.len()).rev() {
        order.swap(last, mix(seed << 32 | last as u64) as usize % (last + 1));
    }
}

/// A number from -1 to 1.
fn unit(seed: u64) -> f32 {
    (mix(seed) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
