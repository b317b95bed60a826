//! Operations on many ways of a set at a time. A miss searches several times for the lowest byte of a set.

/// The lowest of the bytes that the mask `among` selects of 16; 255 if it selects none. Byte 0 is the lowest of `low`.
#[inline(always)]
pub(super) fn lowest_byte(low: u64, high: u64, among: u32) -> u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        use core::arch::x86_64::*;
        const EACH: u64 = 0x0101_0101_0101_0101;
        const BITS: i64 = 0x8040_2010_0804_0201_u64 as i64;
        // Each byte of `spread` has eight bits of the mask, and `own` selects one of them: the byte's own bit.
        let (of_low, of_high) = (u64::from(among & 0xFF) * EACH, u64::from(among >> 8 & 0xFF) * EACH);
        let (spread, own) = (_mm_set_epi64x(of_high as i64, of_low as i64), _mm_set1_epi64x(BITS));
        let is_among = _mm_cmpeq_epi8(_mm_and_si128(spread, own), own);
        let others = _mm_andnot_si128(is_among, _mm_set1_epi8(-1));
        let least = _mm_or_si128(_mm_set_epi64x(high as i64, low as i64), others);
        let least = _mm_min_epu8(least, _mm_srli_si128::<8>(least));
        let least = _mm_min_epu8(least, _mm_srli_si128::<4>(least));
        let least = _mm_min_epu8(least, _mm_srli_si128::<2>(least));
        // The shifts filled in zero bytes, above the bytes that are still compared.
        let least = _mm_cvtsi128_si32(least) as u32;
        (least as u8).min((least >> 8) as u8)
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..16)
        .filter(|i| among >> i & 1 == 1)
        .map(|i| (if i < 8 { low } else { high } >> (i % 8 * 8)) as u8)
        .min()
        .unwrap_or(u8::MAX)
}

/// A mask of the bytes of two words that equal `byte`.
#[inline(always)]
pub(super) fn equal_bytes(low: u64, high: u64, byte: u8) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        use core::arch::x86_64::*;
        let equal = _mm_cmpeq_epi8(_mm_set_epi64x(high as i64, low as i64), _mm_set1_epi8(byte as i8));
        _mm_movemask_epi8(equal) as u32
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..16).map(|i| u32::from((if i < 8 { low } else { high } >> (i % 8 * 8)) as u8 == byte) << i).sum()
}

/// The first of a word's four 16-bit lanes, from the lowest, that equals `lane`.
#[inline]
pub(super) fn lane_of(word: u64, lane: u16) -> Option<usize> {
    const ONES: u64 = 0x0001_0001_0001_0001;
    const TOPS: u64 = ONES << 15;
    let apart = word ^ (ONES * u64::from(lane));
    // The lowest lane of `apart` that is zero has its top bit set here. Above it the borrow may set wrong bits.
    let found = apart.wrapping_sub(ONES) & !apart & TOPS;
    (found != 0).then(|| found.trailing_zeros() as usize / 16)
}

/// The ways of a mask.
pub(super) fn ways_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let way = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(way)
    })
}
