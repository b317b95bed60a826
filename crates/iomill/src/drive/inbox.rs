//! The hand-off from senders to a thread: one message per batch, with a wake only when the thread sleeps.
//!
//! Rules:
//! 1. The thread sets `asleep`, under the lock, only when it has found the inbox empty. The sender that then wakes the
//!    thread clears it. So between two sleeps at most one wake is paid, for any number of batches.
//! 2. The thread waits outside, where a wake before the wait is not lost. So the thread sees a message that is pushed
//!    after its check: the push found `asleep` set and woke the thread.
//! 3. The weight of messages from `hand_over` is bounded. A sender holds nothing while it waits for space in a full
//!    inbox. An empty inbox takes a message of any weight. `push` is for messages with a bound elsewhere, and never
//!    waits.

use crate::sys::sync::{Condvar, Mutex, lock, wait};

/// An inbox of messages of type `T`.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<InboxState<T>>,
    space: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct InboxState<T> {
    messages: Vec<T>,
    /// Sum of the weights of `messages`.
    weight: usize,
    /// The thread found nothing and is about to wait, or waits (rule 1).
    asleep: bool,
    closed: bool,
    /// Senders that sleep until there is space.
    sleepers: usize,
}

impl<T> InboxState<T> {
    /// Takes a message in. True: the sender wakes the thread (rule 1).
    fn take_in(&mut self, message: T, weight: usize) -> bool {
        self.weight += weight;
        self.messages.push(message);
        std::mem::take(&mut self.asleep)
    }
}

/// The result of a check of the inbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Messages were appended.
    pub some: bool,
    /// The inbox is closed: there will be no more messages.
    pub closed: bool,
}

impl<T> Inbox<T> {
    /// An inbox that takes messages up to a total weight of `limit`.
    pub fn new(limit: usize) -> Inbox<T> {
        let state = InboxState { messages: Vec::new(), weight: 0, asleep: false, closed: false, sleepers: 0 };
        Inbox { state: Mutex::new(state), space: Condvar::new(), limit }
    }

    /// Hands over a message, and wakes the thread if it sleeps. Waits for space (rule 3). Returns the message if the
    /// inbox is closed.
    pub fn hand_over(&self, message: T, weight: usize, wake: impl FnOnce()) -> Result<(), T> {
        let mut state = lock(&self.state);
        while state.weight > 0 && state.weight + weight > self.limit && !state.closed {
            state.sleepers += 1;
            state = wait(&self.space, state);
            state.sleepers -= 1;
        }
        if state.closed {
            return Err(message);
        }
        let is_asleep = state.take_in(message, weight);
        drop(state);
        if is_asleep {
            wake();
        }
        Ok(())
    }

    /// Hands over a message even without space, and wakes the thread if it sleeps. Returns the message if the inbox is
    /// closed.
    pub fn push(&self, message: T, wake: impl FnOnce()) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(message);
        }
        let is_asleep = state.take_in(message, 0);
        drop(state);
        if is_asleep {
            wake();
        }
        Ok(())
    }

    /// Takes all messages. With `will_sleep`, an empty inbox marks the thread as asleep: the thread must then wait.
    pub fn take(&self, into: &mut Vec<T>, will_sleep: bool) -> Taken {
        let mut state = lock(&self.state);
        let some = !state.messages.is_empty();
        if some {
            into.append(&mut state.messages);
            state.weight = 0;
            // A notification is a system call, even if no thread sleeps.
            if state.sleepers > 0 {
                self.space.notify_all();
            }
        }
        state.asleep = !some && will_sleep && !state.closed;
        Taken { some, closed: state.closed }
    }

    /// Refuses all messages from now on; the thread still takes those inside. `true` tells the caller to wake the
    /// thread.
    pub fn close(&self) -> bool {
        let mut state = lock(&self.state);
        state.closed = true;
        self.space.notify_all();
        std::mem::take(&mut state.asleep)
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn one_wake_between_two_sleeps() {
        let (inbox, mut got, mut woken) = (Inbox::new(4), Vec::new(), 0);
        assert!(inbox.hand_over('a', 9, || panic!("no thread sleeps")).is_ok(), "an empty inbox takes any message");
        assert!(inbox.push('b', || panic!("no thread sleeps")).is_ok());
        assert_eq!(inbox.take(&mut got, true), Taken { some: true, closed: false });
        assert_eq!(inbox.take(&mut got, true), Taken { some: false, closed: false });
        assert!(inbox.hand_over('c', 4, || woken += 1).is_ok());
        assert!(inbox.push('d', || panic!("once is enough")).is_ok());
        assert!(!inbox.close());
        assert_eq!(inbox.push('e', || ()), Err('e'));
        assert_eq!(inbox.hand_over('f', 1, || ()), Err('f'));
        inbox.take(&mut got, true);
        assert_eq!((woken, &got[..]), (1, &['a', 'b', 'c', 'd'][..]));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;
    use loom::sync::Arc;
    use loom::thread;

    /// A wake and a wait, as rule 2 wants them: a wake that comes early is kept.
    struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        fn ring(&self) {
            *lock(&self.0) = true;
            self.1.notify_one();
        }
        fn wait(&self) {
            let mut rung = lock(&self.0);
            while !*rung {
                rung = self.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// `senders` each send their messages into an inbox of the given size. A thread that sleeps takes them. All
    /// messages arrive, and no thread hangs: loom reports a deadlock when a wake is lost.
    fn hand_off(limit: usize, senders: &'static [&'static [u32]]) {
        model(move || {
            let shared = Arc::new((Inbox::new(limit), Bell(Mutex::new(false), Condvar::new())));
            let spawn = |messages: &'static [u32]| {
                let shared = Arc::clone(&shared);
                let send = move |message| shared.0.hand_over(message, 1, || shared.1.ring()).unwrap();
                thread::spawn(move || messages.iter().copied().for_each(send))
            };
            let threads: Vec<_> = senders.iter().map(|messages| spawn(messages)).collect();
            let mut got = Vec::new();
            while got.len() < 2 {
                if !shared.0.take(&mut got, true).some {
                    shared.1.wait();
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
        });
    }

    /// Seen to fail when the sender did not wake.
    #[test]
    fn loom_inbox_wakes_its_thread() {
        hand_off(8, &[&[1], &[2]]);
    }

    /// Seen to fail when `take` did not notify.
    #[test]
    fn loom_inbox_that_is_full_lets_its_sender_on() {
        hand_off(1, &[&[1, 2]]);
    }
}
