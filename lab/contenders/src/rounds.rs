//! Turns: each round has a slice of every contender, and each round has another order. So a disturbance of the machine
//! affects all of them.
//!
//! Goals: comparable figures; every contender is checked before it is timed.
//! Non-goals: printing. The caller gets progress reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iomill::{Error, Result};
use iomill_cli::human;
use serde::Serialize;

use crate::contender::{Cache, Contender, Sample, Slice};
use crate::machine::available_memory_bytes;
use crate::state::{self, Whose};
use crate::task::{Finds, Task};
use crate::workload::Workload;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan<T = Workload> {
    /// The workload.
    pub workload: T,
    /// Threads per contender.
    pub threads: usize,
    /// Timed slices per contender.
    pub rounds: usize,
    /// Length of a timed slice.
    pub slice: Duration,
    /// Length of the slice before the first round, in which every read is checked.
    pub warm_up: Duration,
}

/// Maximum length of the first slice, unless a measurement sets another.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// The number of repeated slices of a contender in a wrong state, because a busy machine drops pages now and then.
const RETAKES_MAX: usize = 3;

/// How turns are taken, for any measurement.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Numbers of threads; one measurement each.
    pub threads: Vec<usize>,
    /// Timed slices per contender.
    pub rounds: usize,
    /// Length of a timed slice.
    pub slice: Duration,
}

impl Turns {
    /// A plan for each number of threads. If slices are shorter than `warm_up`, the first slice has their length.
    pub fn plans<T: Copy>(&self, workload: T, warm_up: Duration) -> impl Iterator<Item = Plan<T>> {
        let Turns { rounds, slice, .. } = *self;
        let plan = move |&threads: &usize| Plan { workload, threads, rounds, slice, warm_up: slice.min(warm_up) };
        self.threads.iter().map(plan)
    }
}

/// The progress of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Slices done.
    pub done: usize,
    /// Slices in total.
    pub total: usize,
    /// The contender of the slice that starts now; empty at the end.
    pub contender: &'static str,
}

/// All samples of one contender.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The contender's name.
    pub contender: &'static str,
    /// The cache between it and the drives.
    pub cache: Cache,
    /// One sample per round.
    pub samples: Vec<Sample>,
    /// Important facts for a reader of the figures.
    pub notes: Vec<String>,
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Measured<T = Workload> {
    /// The plan that was measured.
    pub plan: Plan<T>,
    /// One outcome per contender that took part, in the given order. Each has at least one sample.
    pub outcomes: Vec<Outcome>,
    /// Contenders that did not take part, with the reasons.
    pub left_out: Vec<(&'static str, Cache, String)>,
    /// True if the measurement was cancelled. The outcomes then hold the complete rounds only.
    pub cancelled: bool,
    /// A contender left other bytes than the pattern in the parts. Write the parts anew before they are read again.
    pub spoilt: bool,
    /// The reason why the measurement has no outcomes, although earlier ones have some.
    pub failed: Option<Failed>,
}

impl<T> Measured<T> {
    /// A measurement without outcomes.
    pub fn of(plan: Plan<T>) -> Measured<T> {
        let (outcomes, left_out) = (Vec::new(), Vec::new());
        Measured { plan, outcomes, left_out, cancelled: false, spoilt: false, failed: None }
    }
}

/// An error of the machine or the harness that ended a measurement after others were complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// What failed.
    pub what: String,
    /// Why, and what to do.
    pub why: String,
}

/// Measures one plan after the other with the same contenders. The last measurement may be a cancelled one. It may also
/// be one that failed after others were complete: these may have taken hours.
pub fn run_each<T: Task>(
    contenders: &mut [Box<dyn Contender<T> + '_>],
    plans: impl IntoIterator<Item = Plan<T>>,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<Vec<Measured<T>>> {
    let mut measured = Vec::new();
    for plan in plans {
        let one = match run(contenders, &plan, progress, cancel) {
            Err(Error::Tool { what, why }) if !measured.is_empty() => {
                Measured { failed: Some(Failed { what, why }), ..Measured::of(plan) }
            }
            other => other?,
        };
        let is_last = one.cancelled || one.failed.is_some();
        measured.push(one);
        if is_last {
            break;
        }
    }
    Ok(measured)
}

/// Why operations in flight need too much memory: more than half of what is available.
fn why_too_large(bytes: u64) -> Result<Option<String>> {
    if bytes == 0 {
        return Ok(None);
    }
    let available = available_memory_bytes()?;
    let why = || {
        let [needed, there] = [bytes, available].map(human::size);
        format!("its operations in flight need {needed} of memory, and {there} are available")
    };
    Ok((bytes > available / 2).then(why))
}

/// Measures one plan. Calls `progress` before each slice and at the end. Setting `cancel` ends it soon.
pub fn run<T: Task>(
    contenders: &mut [Box<dyn Contender<T> + '_>],
    plan: &Plan<T>,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<Measured<T>> {
    check(plan)?;
    let mut measured = Measured::of(*plan);
    let mut taking_part = Vec::new();
    for contender in contenders.iter_mut() {
        match contender.prepare(&plan.workload)? {
            Some(why) => measured.left_out.push((contender.name(), contender.cache(), why)),
            None => match why_too_large(contender.bytes_in_flight().saturating_mul(plan.threads as u64))? {
                Some(why) => measured.left_out.push((contender.name(), contender.cache(), why)),
                None => taking_part.push(contender),
            },
        }
    }
    let total = taking_part.len() * (plan.rounds + 1);
    let mut done = 0;
    let (workload, finds) = (plan.workload.to_string(), plan.workload.finds());
    // Contenders that leave other bytes run last in the checked round.
    let mut order: Vec<usize> = (0..taking_part.len()).collect();
    order.sort_by_key(|&index| taking_part[index].spoils());
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); taking_part.len()];
    let mut retaken = vec![0; taking_part.len()];
    'rounds: for round in 0..=plan.rounds {
        let verify = round == 0;
        let duration = if verify { plan.warm_up } else { plan.slice };
        let slice = Slice { threads: plan.threads, duration, verify, cancel };
        for index in rotated(&order, round) {
            measured.spoilt |= taking_part[index].spoils();
            progress(Progress { done, total, contender: taking_part[index].name() });
            let turn = turn(&mut **taking_part[index], &slice, (&workload, finds.as_ref()), &mut retaken[index]);
            done += 1;
            let sample = match turn {
                Ok(Some(sample)) => sample,
                Ok(None) => {
                    measured.cancelled = true;
                    break 'rounds;
                }
                Err(error) => {
                    let (name, cache) = (taking_part[index].name(), taking_part[index].cache());
                    measured.left_out.push((name, cache, taking_part[index].lost().ok_or(error)?));
                    order.retain(|&other| other != index);
                    continue;
                }
            };
            if sample.ops == 0 {
                let why = format!("it completed no operation in {:?}; give a longer slice", slice.duration);
                return Err(Error::Tool { what: taking_part[index].name().to_owned(), why });
            }
            if !verify {
                samples[index].push(sample);
            }
        }
    }
    progress(Progress { done, total, contender: "" });
    measured.outcomes = outcomes(&taking_part, samples, &order, &retaken);
    Ok(measured)
}

/// Runs a slice, and again if it was not in its contender's state. `None` if the measurement is cancelled.
fn turn<T: Task>(
    contender: &mut (dyn Contender<T> + '_),
    slice: &Slice<'_>,
    (workload, finds): (&str, Option<&Finds>),
    retaken: &mut usize,
) -> Result<Option<Sample>> {
    let whose = Whose { contender: contender.name(), cache: contender.cache(), workload };
    while !slice.cancel.load(Ordering::Relaxed) {
        let sample = contender.run(slice)?;
        if slice.cancel.load(Ordering::Relaxed) {
            break;
        }
        match state::check(whose, finds, slice, &sample) {
            Err(_) if *retaken < RETAKES_MAX => *retaken += 1,
            checked => return checked.map(|()| Some(sample)),
        }
    }
    Ok(None)
}

/// The order of turns in a round. The checked round and the first timed round use `order`; each later round starts with
/// the next contender.
fn rotated(order: &[usize], round: usize) -> Vec<usize> {
    let first = round.saturating_sub(1) % order.len().max(1);
    order.iter().copied().cycle().skip(first).take(order.len()).collect()
}

/// The outcomes of the contenders in `order`, which took part until the end.
fn outcomes<T: Task>(
    contenders: &[&mut Box<dyn Contender<T> + '_>],
    samples: Vec<Vec<Sample>>,
    order: &[usize],
    retaken: &[usize],
) -> Vec<Outcome> {
    // Only rounds that all contenders have finished count, so that all have the same rounds.
    let complete = order.iter().map(|&index| samples[index].len()).min().unwrap_or(0);
    let mut outcomes = Vec::new();
    for (index, (contender, mut samples)) in contenders.iter().zip(samples).enumerate() {
        samples.truncate(complete);
        if order.contains(&index) && !samples.is_empty() {
            let (contender, cache, mut notes) = (contender.name(), contender.cache(), contender.notes());
            if retaken[index] > 0 {
                let what = format!("{} of its slices were not {} and were taken again", retaken[index], cache.name());
                notes.push(what);
            }
            outcomes.push(Outcome { contender, cache, samples, notes });
        }
    }
    outcomes
}

fn check<T: Task>(plan: &Plan<T>) -> Result<()> {
    plan.workload.check()?;
    if plan.rounds == 0 || plan.threads == 0 || plan.threads > 1024 {
        let what = format!("{} rounds with {} threads", plan.rounds, plan.threads);
        return Err(Error::invalid(what, "give at least one round and 1 to 1024 threads"));
    }
    if plan.slice.is_zero() || plan.warm_up.is_zero() {
        return Err(Error::invalid("a slice of no time", "give it at least some milliseconds"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::Seen;
    use std::cell::RefCell;

    type Log = RefCell<Vec<(&'static str, bool)>>;

    struct Fake<'a> {
        name: &'static str,
        spoils: bool,
        left_out: bool,
        bytes_in_flight: u64,
        log: &'a Log,
        cancel_at: Option<usize>,
        dies_at: Option<usize>,
    }

    impl<'a> Fake<'a> {
        fn new(name: &'static str, log: &'a Log) -> Fake<'a> {
            Fake { name, spoils: false, left_out: false, bytes_in_flight: 0, log, cancel_at: None, dies_at: None }
        }
    }

    impl Contender for Fake<'_> {
        fn name(&self) -> &'static str {
            self.name
        }
        fn cache(&self) -> Cache {
            Cache::Direct
        }
        fn prepare(&mut self, _: &Workload) -> Result<Option<String>> {
            Ok(self.left_out.then(|| "cannot".to_owned()))
        }
        fn bytes_in_flight(&self) -> u64 {
            self.bytes_in_flight
        }
        fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
            self.log.borrow_mut().push((self.name, slice.verify));
            if Some(self.log.borrow().len()) == self.cancel_at {
                slice.cancel.store(true, Ordering::Relaxed);
            }
            if self.log.borrow().len() >= self.dies_at.unwrap_or(usize::MAX) {
                return Err(Error::Tool { what: self.name.to_owned(), why: "it died".into() });
            }
            Ok(Sample { ops: 10, bytes: 40960, wall: slice.duration, ..Sample::empty()? })
        }
        fn spoils(&self) -> bool {
            self.spoils
        }
        fn lost(&self) -> Option<String> {
            (self.name == "b").then(|| "it died".to_owned())
        }
    }

    fn plan() -> Plan {
        let time = Duration::from_millis(5);
        Plan { workload: Workload::RANDOM_READ, threads: 1, rounds: 3, slice: time, warm_up: time }
    }

    fn fakes<'a>(log: &'a Log, cancel_at: Option<usize>) -> Vec<Box<dyn Contender + 'a>> {
        let fake = |name, spoils, left_out| {
            Box::new(Fake { spoils, left_out, bytes_in_flight: 4096, cancel_at, ..Fake::new(name, log) })
        };
        vec![fake("spoiler", true, false), fake("a", false, false), fake("out", false, true), fake("b", false, false)]
            .into_iter()
            .map(|fake| fake as Box<dyn Contender>)
            .collect()
    }

    #[test]
    fn a_contender_that_needs_more_memory_than_there_is_is_left_out() {
        let (log, never) = (RefCell::new(Vec::new()), AtomicBool::new(false));
        let fake = |name, bytes_in_flight| -> Box<dyn Contender + '_> {
            Box::new(Fake { bytes_in_flight, ..Fake::new(name, &log) })
        };
        let plan = Plan { threads: 16, ..plan() };
        // 16 threads with 1 TiB each.
        let measured = run(&mut [fake("a", 4096), fake("huge", 1 << 40)], &plan, &mut |_| (), &never).unwrap();
        let [("huge", _, why)] = &measured.left_out[..] else { panic!("{:?}", measured.left_out) };
        assert!(why.starts_with("its operations in flight need 16 TiB of memory, and "), "{why}");
        assert!(log.borrow().iter().all(|(name, _)| *name == "a"));
    }

    #[test]
    fn rounds_rotate_after_each_contender_was_checked() {
        let (log, never) = (RefCell::new(Vec::new()), AtomicBool::new(false));
        let mut seen = Vec::new();
        let measured = run(&mut fakes(&log, None), &plan(), &mut |at| seen.push((at.done, at.total)), &never).unwrap();
        let names: Vec<&str> = log.borrow().iter().map(|(name, _)| *name).collect();
        assert_eq!(names[..3], ["a", "b", "spoiler"], "the spoiler is checked last");
        assert_eq!(names[3..], ["a", "b", "spoiler", "b", "spoiler", "a", "spoiler", "a", "b"]);
        assert!(log.borrow().iter().enumerate().all(|(at, (_, verify))| *verify == (at < 3)));
        assert_eq!((seen[0], *seen.last().unwrap()), ((0, 12), (12, 12)));
        assert_eq!(measured.left_out, [("out", Cache::Direct, "cannot".to_owned())]);
        assert!(measured.outcomes.iter().all(|outcome| outcome.samples.len() == 3) && measured.outcomes.len() == 3);
        assert!(measured.spoilt && !measured.cancelled);
    }

    #[test]
    fn a_cancelled_measurement_keeps_complete_rounds_only() {
        let (log, cancel) = (RefCell::new(Vec::new()), AtomicBool::new(false));
        // The check and one round are complete. The second round is cut in its second turn.
        let measured = run(&mut fakes(&log, Some(8)), &plan(), &mut |_| (), &cancel).unwrap();
        assert!(measured.cancelled);
        assert_eq!(measured.outcomes.iter().map(|o| o.samples.len()).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(log.borrow().len(), 8);
        log.borrow_mut().clear();
        let measured = run(&mut fakes(&log, None), &plan(), &mut |_| (), &cancel).unwrap();
        assert!(measured.outcomes.is_empty() && log.borrow().is_empty());
    }

    #[test]
    fn a_contender_that_fails_is_left_out_and_the_others_go_on() {
        let (log, never) = (RefCell::new(Vec::new()), AtomicBool::new(false));
        let one = |name, dies_at| -> Box<dyn Contender + '_> { Box::new(Fake { dies_at, ..Fake::new(name, &log) }) };
        // It dies in the first timed round, after its own check.
        let measured =
            run(&mut [one("a", None), one("b", Some(4)), one("c", None)], &plan(), &mut |_| (), &never).unwrap();
        assert_eq!(measured.left_out, [("b", Cache::Direct, "it died".to_owned())]);
        let counts: Vec<_> = measured.outcomes.iter().map(|one| (one.contender, one.samples.len())).collect();
        assert_eq!(counts, [("a", 3), ("c", 3)]);
        // A contender that fails and is not lost has read wrong bytes.
        assert!(run(&mut [one("a", Some(1)), one("b", None)], &plan(), &mut |_| (), &never).is_err());
    }

    #[test]
    fn what_was_complete_before_a_failure_is_kept() {
        let (log, never) = (RefCell::new(Vec::new()), AtomicBool::new(false));
        let run_two = |dies_at| {
            log.borrow_mut().clear();
            let fake = Fake { dies_at, ..Fake::new("a", &log) };
            run_each(&mut [Box::new(fake) as Box<dyn Contender>], [plan(), plan(), plan()], &mut |_| (), &never)
        };
        // Each plan takes a check and three rounds.
        let measured = run_two(Some(6)).unwrap();
        assert_eq!(measured.iter().map(|one| one.outcomes.len()).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(measured[1].failed, Some(Failed { what: "a".into(), why: "it died".into() }));
        assert!(measured[0].failed.is_none() && run_two(Some(4)).is_err());
        assert!(run_two(None).unwrap().iter().all(|one| one.failed.is_none()));
    }

    /// Claims to be warm, but its first slices are not.
    struct Wavers(usize);

    impl Contender for Wavers {
        fn name(&self) -> &'static str {
            "wavers"
        }
        fn cache(&self) -> Cache {
            Cache::Warm
        }
        fn prepare(&mut self, _: &Workload) -> Result<Option<String>> {
            Ok(None)
        }
        fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
            let major_faults = if self.0 > 0 { 1000 } else { 0 };
            self.0 = self.0.saturating_sub(1);
            let seen = Some(Seen { major_faults, ..Seen::default() });
            Ok(Sample { ops: 10, wall: slice.duration, seen, ..Sample::empty()? })
        }
    }

    #[test]
    fn slices_in_the_wrong_state_are_taken_again_a_few_times() {
        let never = AtomicBool::new(false);
        let run_one = |wrong| run(&mut [Box::new(Wavers(wrong)) as Box<dyn Contender>], &plan(), &mut |_| (), &never);
        for wrong in 0..=RETAKES_MAX {
            let measured = run_one(wrong).unwrap();
            assert_eq!(measured.outcomes[0].samples.len(), 3);
            let notes = match wrong {
                0 => vec![],
                _ => vec![format!("{wrong} of its slices were not warm and were taken again")],
            };
            assert_eq!(measured.outcomes[0].notes, notes);
        }
        let error = run_one(RETAKES_MAX + 1).unwrap_err().to_string();
        assert!(error.contains("it was not warm"), "{error}");
    }

    #[test]
    fn turns_are_the_same_for_all_numbers_of_threads() {
        let turns = Turns { threads: vec![1, 4], rounds: 3, slice: Duration::from_millis(200) };
        let plans: Vec<Plan> = turns.plans(Workload::RANDOM_READ, Duration::from_millis(90)).collect();
        let seen: Vec<_> = plans.iter().map(|plan| (plan.threads, plan.rounds, plan.warm_up.as_millis())).collect();
        assert_eq!(seen, [(1, 3, 90), (4, 3, 90)]);
        assert!(turns.plans(Workload::RANDOM_READ, WARM_UP).all(|plan| plan.warm_up == turns.slice));
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        let never = AtomicBool::new(false);
        for bad in [
            Plan { rounds: 0, ..plan() },
            Plan { threads: 0, ..plan() },
            Plan { slice: Duration::ZERO, ..plan() },
            Plan { workload: Workload { depth: 0, ..Workload::RANDOM_READ }, ..plan() },
        ] {
            assert!(run(&mut [], &bad, &mut |_| (), &never).is_err(), "{bad:?}");
        }
    }
}
