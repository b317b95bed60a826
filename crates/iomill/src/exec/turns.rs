//! [`Turns`]: jobs that share their writes and fsyncs. In a turn a thread takes all queued jobs, and does each step
//! for all of them before the next step. Non-goals: the contents of the steps.
//!
//! Rules:
//! 1. One thread at a time takes jobs. Jobs that come meanwhile are in the next turn.
//! 2. A step of a job begins when the step before it has ended for all jobs of the turn.
//! 3. A panic of a job ends only that job. Its values are dropped, which breaks its promise. A panic of an engine in the
//!    write of the shared pages ends no job: each then writes its bytes itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::page_write::PageWrite;
use super::pools::Pool;
use crate::error::Result;
use crate::sys::sync::{Mutex, lock};

/// The most jobs of a turn. With more of them the first ones wait longer, and hardly any fsync is saved.
const TURN_JOBS: usize = 256;

/// The jobs of a turn.
pub type Jobs = [Box<dyn Job>];

/// A job in steps.
pub trait Job: Send {
    /// Does the work that may take a while, and must precede the shared fsyncs.
    fn write(&mut self);

    /// The pages that the turn writes together with those of other jobs, if there are any.
    fn pages(&self) -> Option<PageWrite<'_>> {
        None
    }

    /// Learns whether the turn has written the pages of all jobs that have some. If not, the job writes its bytes itself.
    fn end_pages(&mut self, are_written: bool) {
        let _has_none = are_written;
    }

    /// Queues the record that the last step makes durable.
    fn queue(&mut self);

    /// Makes the record durable, together with those of other jobs, and tells the job's caller.
    fn end(self: Box<Self>);
}

/// See the module.
pub struct Turns {
    pool: Pool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: Vec<Box<dyn Job>>,
    /// Whether a thread takes turns, or is about to.
    is_running: bool,
}

impl Turns {
    /// No thread is started yet.
    pub fn new(threads: bool) -> Turns {
        Turns { pool: Pool::new(threads, "change"), state: Mutex::default() }
    }

    /// Starts the thread, unless it runs already. A call that needs it does this first, so that it can report an error.
    pub fn get_ready(&self) -> Result<()> {
        self.pool.get_ready()
    }

    /// Adds a job. `write_pages` writes the pages of jobs, and returns whether it has.
    pub fn push(self: &Arc<Self>, write_pages: impl Fn(&Jobs) -> bool + Send + 'static, job: Box<dyn Job>) {
        if self.add(job) {
            let turns = Arc::clone(self);
            self.pool.run(Box::new(move || turns.serve(&write_pages)));
        }
    }

    /// Queues a job. Whether the caller must have a thread serve.
    fn add(&self, job: Box<dyn Job>) -> bool {
        let mut state = lock(&self.state);
        state.jobs.push(job);
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Takes turns until no job is left. `write_pages` is as for `push`.
    fn serve(&self, write_pages: &dyn Fn(&Jobs) -> bool) {
        loop {
            let jobs = {
                let mut state = lock(&self.state);
                let count = state.jobs.len().min(TURN_JOBS);
                // Rule 1. Under the lock, so that no job comes between the look and this store.
                state.is_running = count > 0;
                state.jobs.drain(..count).collect::<Vec<_>>()
            };
            if jobs.is_empty() {
                return;
            }
            // Rule 3. A panic that went on would leave `is_running` set.
            let _ = catch_unwind(AssertUnwindSafe(|| take_turn(jobs, write_pages)));
        }
    }

    /// In a simulation: does the queued jobs. `false` if there are none.
    pub fn step(&self) -> bool {
        self.pool.step()
    }

    /// Does the queued jobs, then ends the thread.
    pub fn stop(&self) {
        self.pool.stop();
    }
}

fn take_turn(mut jobs: Vec<Box<dyn Job>>, write_pages: &dyn Fn(&Jobs) -> bool) {
    // Rule 3. The panic message has been printed.
    let survives = |job: &mut Box<dyn Job>, step: &dyn Fn(&mut dyn Job)| {
        catch_unwind(AssertUnwindSafe(|| step(&mut **job))).is_ok()
    };
    jobs.retain_mut(|job| survives(job, &|job| job.write()));
    let are_written = catch_unwind(AssertUnwindSafe(|| write_pages(&jobs))).unwrap_or(false);
    jobs.retain_mut(|job| survives(job, &|job| job.end_pages(are_written)));
    jobs.retain_mut(|job| survives(job, &|job| job.queue()));
    for job in jobs {
        let _ = catch_unwind(AssertUnwindSafe(|| job.end()));
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    struct Noted {
        name: char,
        notes: Sender<(char, char)>,
        /// The first step waits for this.
        until: Option<Receiver<()>>,
        panics: bool,
    }

    impl Job for Noted {
        fn write(&mut self) {
            self.notes.send((self.name, 'w')).expect("the test listens");
            if let Some(until) = self.until.take() {
                until.recv().expect("the test goes on");
            }
        }

        fn queue(&mut self) {
            assert!(!self.panics, "as the test wants");
            self.notes.send((self.name, 'q')).expect("the test listens");
        }

        fn end(self: Box<Self>) {
            self.notes.send((self.name, 'e')).expect("the test listens");
        }
    }

    /// As `Turns::push`, with jobs that have no pages.
    fn push(turns: &Arc<Turns>, job: Box<dyn Job>) {
        turns.push(|_| true, job);
    }

    #[test]
    fn jobs_that_come_meanwhile_share_a_turn() {
        let turns = Arc::new(Turns::new(true));
        let (notes, noted) = channel();
        let (go_on, until) = channel();
        let job = |name, until, panics| Box::new(Noted { name, notes: notes.clone(), until, panics });
        push(&turns, job('a', Some(until), false));
        assert_eq!(noted.recv().unwrap(), ('a', 'w'));
        push(&turns, job('b', None, false));
        push(&turns, job('c', None, true));
        push(&turns, job('d', None, false));
        go_on.send(()).unwrap();
        turns.stop();
        drop(notes);
        let order: String = noted.iter().map(|(name, step)| format!("{name}{step} ")).collect();
        assert_eq!(order, "aq ae bw cw dw bq dq be de ");
    }

    #[test]
    fn after_the_stop_a_job_is_done_by_its_caller() {
        let turns = Arc::new(Turns::new(true));
        turns.stop();
        let (notes, noted) = channel();
        push(&turns, Box::new(Noted { name: 'a', notes, until: None, panics: false }));
        assert_eq!(noted.iter().count(), 3);
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::sync::Arc as LoomArc;
    use loom::thread;

    use super::*;
    use crate::sys::sync::{AtomicU32, Ordering, model};

    #[derive(Default)]
    struct Seen {
        inside: AtomicU32,
        done: AtomicU32,
    }

    struct Counted(LoomArc<Seen>);

    impl Job for Counted {
        fn write(&mut self) {
            assert_eq!(self.0.inside.fetch_add(1, Ordering::Relaxed), 0, "two threads take turns");
            self.0.inside.fetch_sub(1, Ordering::Relaxed);
        }

        fn queue(&mut self) {}

        fn end(self: Box<Self>) {
            self.0.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each job is done, and one thread at a time takes turns (rule 1). The thread that adds a job serves in the place
    /// of the pool.
    ///
    /// Seen to fail when `serve` noted its end after it had released the lock, and when `add` let each thread serve.
    #[test]
    fn loom_turns_do_every_job() {
        model(|| {
            let (turns, seen) = (LoomArc::new(Turns::new(true)), LoomArc::new(Seen::default()));
            let add = |turns: &Turns, seen: &LoomArc<Seen>| {
                if turns.add(Box::new(Counted(LoomArc::clone(seen)))) {
                    turns.serve(&|_| true);
                }
            };
            let (theirs, counts) = (LoomArc::clone(&turns), LoomArc::clone(&seen));
            let other = thread::spawn(move || add(&theirs, &counts));
            add(&turns, &seen);
            add(&turns, &seen);
            other.join().unwrap();
            assert_eq!(seen.done.load(Ordering::Relaxed), 3);
        });
    }
}
