//! Tests of properties: many random cases, each made from bytes, and the bytes from a seed.
//!
//! Goals: the same cases in each run, on any machine. `IOMILL_ROUNDS=<n>` checks n times as many other cases, with new
//! seeds. A failing case is made shorter first. Then its test prints it, and the command that runs it again. Non-goals:
//! cases that a fuzzer finds by coverage (`fuzz/`).

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arbitrary::{Result, Unstructured};
use fastrand::Rng;

/// The number of bytes of the longest case.
const BYTES_MAX: usize = 8192;

/// The most cuts of a failing case.
const CUTS_MAX: usize = 100;

/// Checks `cases` cases. `make` makes a case from bytes, and `holds` panics if the property does not hold for it. After
/// the end of the bytes each number is the smallest, and each list is as short as it may be.
pub fn check<T: Debug>(cases: u64, make: impl Fn(&mut Unstructured<'_>) -> Result<T>, holds: impl Fn(T)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let run = |bytes: &[u8]| holds(make(&mut Unstructured::new(bytes)).expect("bytes that end are zeroes"));
    if let Some(seed) = number("IOMILL_SEED") {
        return holds(case(seed, number("IOMILL_BYTES").map_or(BYTES_MAX, |len| len as usize), make));
    }
    let check = |seed: u64| {
        let bytes = bytes_of(seed);
        let fails = |len: usize| catch_unwind(AssertUnwindSafe(|| run(&bytes[..len]))).is_err();
        if fails(bytes.len()) {
            let len = shortest(bytes.len(), fails);
            let case = make(&mut Unstructured::new(&bytes[..len])).expect("it was made before");
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            eprintln!("the shortest case that was found: {case:#?}");
            eprintln!("again: IOMILL_SEED={seed} IOMILL_BYTES={len} cargo test -p iomill --lib {test}");
            run(&bytes[..len]);
            panic!("it failed, and does not fail again");
        }
    };
    match number("IOMILL_ROUNDS") {
        Some(times) => (0..cases * times).for_each(|_| check(fastrand::u64(..))),
        None => (0..cases).for_each(check),
    }
}

/// The case that a seed and a number of its bytes make: one that was found once.
pub fn case<T>(seed: u64, len: usize, make: impl Fn(&mut Unstructured<'_>) -> Result<T>) -> T {
    let mut bytes = bytes_of(seed);
    bytes.truncate(len);
    make(&mut Unstructured::new(&bytes)).expect("bytes that end are zeroes")
}

/// The bytes of a seed. Their lengths are spread so that short cases are as frequent as long ones.
fn bytes_of(seed: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    let len = (BYTES_MAX as f64).powf(rng.f64()) as usize;
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The least length that still fails, as far as a search in large and then small steps finds it.
fn shortest(mut len: usize, fails: impl Fn(usize) -> bool) -> usize {
    let mut step = len;
    for _ in 0..CUTS_MAX {
        step = step.min(len);
        if step == 0 {
            break;
        }
        if fails(len - step) {
            len -= step;
        } else {
            step /= 2;
        }
    }
    len
}

/// One of the choices, as frequent as its weight.
pub fn weighted<T: Copy>(bytes: &mut Unstructured<'_>, choices: &[(u32, T)]) -> Result<T> {
    let mut at = bytes.int_in_range(1..=choices.iter().map(|(weight, _)| weight).sum())?;
    for (weight, choice) in choices {
        if at <= *weight {
            return Ok(*choice);
        }
        at -= weight;
    }
    unreachable!("the number is within the sum of the weights")
}

/// A list of items that `one` makes, with a length in `len`. After the end of the bytes it gets no longer than it must.
pub fn list<T>(
    bytes: &mut Unstructured<'_>,
    len: RangeInclusive<usize>,
    one: impl Fn(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let (least, len) = (*len.start(), bytes.int_in_range(len)?);
    let mut list = Vec::new();
    while list.len() < least || (list.len() < len && !bytes.is_empty()) {
        list.push(one(bytes)?);
    }
    Ok(list)
}

/// An item that `one` makes, or none.
pub fn maybe<T>(bytes: &mut Unstructured<'_>, one: impl Fn(&mut Unstructured<'_>) -> Result<T>) -> Result<Option<T>> {
    if bytes.arbitrary()? { one(bytes).map(Some) } else { Ok(None) }
}

/// A text of characters of `of`, with a length in `len`.
pub fn text(bytes: &mut Unstructured<'_>, of: &str, len: RangeInclusive<usize>) -> Result<String> {
    let of: Vec<char> = of.chars().collect();
    Ok(list(bytes, len, |bytes| bytes.choose(&of).copied())?.into_iter().collect())
}

mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_property_that_does_not_hold_is_found_and_its_case_is_short() {
        let last = RefCell::new(Vec::new());
        let checked = catch_unwind(AssertUnwindSafe(|| {
            check(
                100,
                |bytes| list(bytes, 0..=300, |bytes| bytes.int_in_range(0..=9u8)),
                |numbers| {
                    let holds = !numbers.contains(&7);
                    last.replace(numbers);
                    assert!(holds, "a seven");
                },
            );
        }));
        assert!(checked.is_err());
        let last = last.into_inner();
        assert_eq!(last.iter().position(|number| *number == 7), Some(last.len() - 1), "nothing follows: {last:?}");
    }

    #[test]
    fn choices_follow_their_weights_and_bytes_that_end_give_the_first() {
        let mut rng = Rng::with_seed(1);
        let mut counts = [0; 3];
        for _ in 0..1000 {
            let bytes = [rng.u8(..), rng.u8(..)];
            counts[weighted(&mut Unstructured::new(&bytes), &[(1, 0), (8, 1), (1, 2)]).expect("it is chosen")] += 1;
        }
        assert!(counts[1] > 600 && counts[0] > 20 && counts[2] > 20, "{counts:?}");
        assert_eq!(weighted(&mut Unstructured::new(&[]), &[(1, 0), (8, 1)]), Ok(0));
        assert_eq!(text(&mut Unstructured::new(&[]), "xy", 2..=5), Ok("xx".to_owned()));
    }
}
