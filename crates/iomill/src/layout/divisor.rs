//! Division of any `u64` by a fixed number, with two multiplications instead of a division.
//!
//! The method is that of Lemire, Kaser, Kurz, "Faster remainder by direct computation" (2019), section 3. With F = 128
//! bits of fraction, `q = floor(x * ceil(2^F / d) / 2^F)` is exact for every x below 2^64 and d up to 2^64.

/// A divisor and its reciprocal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    /// ceil(2^128 / d); 0 stands for 2^128, the value for d = 1.
    reciprocal: u128,
    /// The divisor; never 0.
    d: u64,
}

impl Divisor {
    /// `d` is not zero (a zero counts as one).
    pub(super) fn new(d: u64) -> Divisor {
        let d = d.max(1);
        let floor = u128::MAX / u128::from(d);
        Divisor { reciprocal: if d == 1 { 0 } else { floor + 1 }, d }
    }

    pub(super) fn get(self) -> u64 {
        self.d
    }

    /// `(x / d, x % d)`.
    #[inline]
    pub(super) fn div_rem(self, x: u64) -> (u64, u64) {
        if self.reciprocal == 0 {
            return (x, 0);
        }
        let x128 = u128::from(x);
        let high = (self.reciprocal >> 64) * x128;
        let low = (u128::from(self.reciprocal as u64) * x128) >> 64;
        // `high` is at most (2^64 - 1)^2, and `low` is below 2^64: their sum is below 2^128.
        let q = ((high + low) >> 64) as u64;
        (q, x - q * self.d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::property::check;

    #[test]
    fn agrees_with_the_processor() {
        let make = |bytes: &mut arbitrary::Unstructured<'_>| {
            Ok((bytes.arbitrary::<u64>()?, bytes.int_in_range(1..=u64::MAX)?, bytes.int_in_range(1..=300_000u64)?))
        };
        check(256, make, |(x, d, small)| {
            for d in [d, small, 1 << (d % 64)] {
                let divisor = Divisor::new(d);
                for x in [x, x / d * d, (x / d * d).wrapping_sub(1), 0, 1, d, d - 1, u64::MAX] {
                    assert_eq!(divisor.div_rem(x), (x / d, x % d), "{} / {}", x, d);
                }
            }
        });
    }
}
