//! [`Timer`]: futures that end at a time. Each cache has one, with a thread. A forked child has its own cache, and so
//! its own timer. Non-goals: exact times.
//!
//! Most delays bound a wait that ends earlier. So a new delay does not wake the thread, unless it ends before the
//! thread's next look. After a delay the thread looks at least once more before it sleeps without an end.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::notices::locked;

/// See the module.
#[derive(Debug)]
pub struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Polled delays, by their ends.
    due: BTreeMap<(Instant, u64), Waker>,
    /// The number of the next delay.
    next: u64,
    /// The time of the thread's next look. `None`: it waits for a signal.
    looks: Option<Instant>,
    /// A delay was added since the thread's last look.
    is_used: bool,
    ends: bool,
}

/// A future that ends at a time. A poll after its end is ready.
#[derive(Debug)]
pub struct Delay {
    shared: Arc<Shared>,
    end: Instant,
    /// Its number, once it waits.
    number: Option<u64>,
}

/// The end of a time that begins now. A time beyond the clock's range counts as no end.
pub fn end_of(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
    Instant::now() + time.min(LONGEST)
}

/// The interval of the thread's looks while delays are added.
const TICK: Duration = Duration::from_millis(100);

impl Timer {
    pub fn start() -> io::Result<Timer> {
        let shared = Arc::<Shared>::default();
        let served = Arc::clone(&shared);
        let thread = thread::Builder::new().name("iomill-timer".into()).spawn(move || served.serve())?;
        Ok(Timer { shared, thread: Some(thread) })
    }

    pub fn after(&self, time: Duration) -> Delay {
        self.at(end_of(time))
    }

    pub fn at(&self, end: Instant) -> Delay {
        Delay { shared: Arc::clone(&self.shared), end, number: None }
    }
}

#[cfg(test)]
impl Timer {
    /// The lock, for a test of calls that must not need it.
    pub fn locked(&self) -> impl Sized {
        locked(&self.shared.state)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        locked(&self.shared.state).ends = true;
        self.shared.changed.notify_all();
        // A waker may have been the last owner. Then this is the thread itself.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = locked(&self.state);
        while !state.ends {
            let now = Instant::now();
            let later = state.due.split_off(&(now, u64::MAX));
            let ended = std::mem::replace(&mut state.due, later);
            if !ended.is_empty() {
                drop(state);
                // Without the lock: a waker may run code of an executor.
                ended.into_values().for_each(wake);
                state = locked(&self.state);
                continue;
            }
            let first = state.due.first_key_value().map(|((end, _), _)| *end);
            let tick = std::mem::take(&mut state.is_used).then(|| now + TICK);
            state.looks = first.or(tick);
            state = match state.looks {
                Some(end) => {
                    let waited = self.changed.wait_timeout(state, end.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        // If its cache no longer exists, a waiting delay compares the time when it is polled.
        let left = std::mem::take(&mut state.due);
        drop(state);
        left.into_values().for_each(wake);
    }
}

/// Wakes a task. A panic of its waker ends here: the thread has other delays.
fn wake(waker: Waker) {
    // The panic message has been printed.
    let _panicked = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.end {
            return Poll::Ready(());
        }
        let shared = Arc::clone(&self.shared);
        // Wakers are cloned and dropped without the lock: both may run code of an executor.
        let waker = context.waker().clone();
        let mut state = locked(&shared.state);
        let number = *self.number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let earlier = state.due.insert((self.end, number), waker);
        state.is_used = true;
        if state.looks.is_none_or(|looks| self.end < looks) {
            shared.changed.notify_all();
        }
        drop(state);
        drop(earlier);
        Poll::Pending
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = locked(&self.shared.state).due.remove(&(self.end, number));
            // Without the lock: the waker may be the last owner of a task with another delay.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_executor::block_on;
    use futures_util::future::{Either, join_all, pending, select};
    use std::sync::mpsc;
    use std::task::Wake;

    #[test]
    fn delays_end_in_any_order_and_not_too_early() {
        let timer = Timer::start().unwrap();
        let begun = Instant::now();
        let delays = [30u64, 0, 5, 200, 5].map(|ms| {
            let delay = timer.after(Duration::from_millis(ms));
            async move {
                delay.await;
                assert!(begun.elapsed() >= Duration::from_millis(ms));
            }
        });
        block_on(join_all(delays));
        // One that is added while the thread sleeps without an end.
        thread::sleep(TICK * 3);
        assert!(locked(&timer.shared.state).looks.is_none());
        block_on(timer.after(Duration::from_millis(2)));
    }

    #[test]
    fn a_delay_that_is_dropped_is_forgotten_and_one_that_has_ended_stays_ended() {
        let timer = Timer::start().unwrap();
        block_on(async {
            let mut long = timer.after(Duration::from_secs(3600));
            assert!(futures_util::poll!(&mut long).is_pending());
            assert_eq!(locked(&timer.shared.state).due.len(), 1);
            drop(long);
            assert_eq!(locked(&timer.shared.state).due.len(), 0);
            let mut short = timer.after(Duration::from_millis(1));
            for _ in 0..3 {
                let Either::Right(_) = select(pending::<()>(), &mut short).await else { panic!("it is pending") };
            }
        });
        drop(timer);
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker's own");
        }
    }

    /// Seen to fail when the panic ended the thread: the second delay did not end.
    #[test]
    fn a_waker_that_panics_ends_no_other_delay() {
        let timer = Timer::start().unwrap();
        let mut short = timer.after(Duration::from_millis(1));
        let polled = Pin::new(&mut short).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))));
        if polled.is_pending() {
            while !locked(&timer.shared.state).due.is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        block_on(timer.after(Duration::from_millis(50)));
        // The same at the end of the timer.
        let mut longer = timer.after(Duration::from_secs(3600));
        let polled = Pin::new(&mut longer).poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))));
        let (sender, woken) = mpsc::channel();
        let other = Waker::from(Arc::new(Woken(sender)));
        let mut last = timer.after(Duration::from_secs(3601));
        assert!(polled.is_pending() && Pin::new(&mut last).poll(&mut Context::from_waker(&other)).is_pending());
        drop(timer);
        woken.try_recv().unwrap();
    }

    /// Tells of each wake.
    struct Woken(mpsc::Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    /// A task with the last owner of the timer.
    struct Last(Mutex<Option<Timer>>, mpsc::Sender<bool>);

    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            let timer = locked(&self.0).take();
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(timer)));
            self.1.send(dropped.is_ok()).unwrap();
        }
    }

    /// Seen to fail when the thread joined itself: glibc refuses that, and other C libraries wait for ever.
    #[test]
    fn a_waker_may_be_the_last_owner_of_the_timer() {
        let timer = Timer::start().unwrap();
        let mut delay = timer.after(Duration::from_millis(200));
        let (sender, dropped) = mpsc::channel();
        let waker = Waker::from(Arc::new(Last(Mutex::new(Some(timer)), sender)));
        // On a machine that is too slow the delay has ended.
        if Pin::new(&mut delay).poll(&mut Context::from_waker(&waker)).is_pending() {
            assert_eq!(dropped.recv_timeout(Duration::from_secs(600)), Ok(true));
        }
    }

    /// A task that ends with its waker, and has a delay.
    struct Owner {
        _delay: Delay,
    }

    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }

    /// Seen to fail when a waker was dropped under the lock: the thread waited for itself.
    #[test]
    fn a_waker_may_be_the_last_owner_of_another_delay() {
        let timer = Timer::start().unwrap();
        let (ends, ended) = mpsc::channel();
        thread::spawn(move || {
            let polled = |waker: &Waker| {
                let mut delay = timer.after(Duration::from_secs(3600));
                assert!(Pin::new(&mut delay).poll(&mut Context::from_waker(waker)).is_pending());
                delay
            };
            let owner = || Waker::from(Arc::new(Owner { _delay: polled(Waker::noop()) }));
            // In two statements: the first one drops the test's own waker.
            let once = polled(&owner());
            drop(once);
            let mut again = polled(&owner());
            assert!(Pin::new(&mut again).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(again);
            ends.send(locked(&timer.shared.state).due.len()).unwrap();
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(600)), Ok(0));
    }
}
