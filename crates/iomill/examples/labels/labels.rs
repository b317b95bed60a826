//! Labels in a volume: many threads write pieces of about 1,000 bytes at unaligned places, as programs do that mark
//! synapses in images of a brain (the third load of the SC'13 paper). Then everything is read back and checked.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes that a label may take. Labels lie at multiples of this, so they are not aligned to anything.
const SLOT_BYTES: u64 = 1117;

/// A place in which the volume lies. Its bytes are numbered along a curve that keeps neighbours together.
pub trait Volume: Sync {
    /// Writes bytes at an offset.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Reads bytes at an offset.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;
    /// Returns when everything that was written is durable.
    fn sync(&self) -> Result<()>;
}

/// The labels of a volume. Each has a place and bytes of its own, in an order without a pattern.
#[derive(Clone, Copy, Debug)]
pub struct Labels {
    slots: u64,
    /// An odd number near the golden section of `slots`.
    stride: u64,
}

impl Labels {
    /// As many labels as a volume of this length has room for. It has room for one at least.
    pub fn of(volume_bytes: u64) -> Labels {
        let slots = volume_bytes / SLOT_BYTES;
        let mut stride = (slots as f64 * 0.618_034) as u64 | 1;
        while common_divisor(stride, slots) > 1 {
            stride += 2;
        }
        Labels { slots, stride }
    }

    /// The number of labels.
    pub fn len(self) -> u64 {
        self.slots
    }

    /// The offset of a label.
    fn offset(self, label: u64) -> u64 {
        (label * self.stride % self.slots) * SLOT_BYTES
    }

    /// The bytes of a label. All of them depend on its number.
    fn bytes(self, label: u64, bytes: &mut Vec<u8>) {
        let len = 900 + mix(label) as usize % 200;
        bytes.clear();
        let mut word = mix(label);
        while bytes.len() < len {
            word = mix(word);
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(len);
    }

    /// Writes `count` labels from `threads` threads, and makes them durable.
    pub fn write(self, volume: &impl Volume, count: u64, threads: usize) -> Result<()> {
        self.each(count, threads, |label, bytes| {
            self.bytes(label, bytes);
            volume.write(bytes, self.offset(label))
        })?;
        volume.sync()
    }

    /// Reads `count` labels and compares them with what was written.
    pub fn check(self, volume: &impl Volume, count: u64, threads: usize) -> Result<()> {
        self.each(count, threads, |label, bytes| {
            self.bytes(label, bytes);
            let mut found = vec![0; bytes.len()];
            volume.read(&mut found, self.offset(label))?;
            if found == *bytes { Ok(()) } else { Err(format!("label {label} has other bytes").into()) }
        })
    }

    fn each(self, count: u64, threads: usize, work: impl Fn(u64, &mut Vec<u8>) -> Result<()> + Sync) -> Result<()> {
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            let mut bytes = Vec::new();
            loop {
                let label = next.fetch_add(1, Relaxed);
                if label >= count {
                    return Ok(());
                }
                work(label, &mut bytes)?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of labels panicked"))
        })
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
