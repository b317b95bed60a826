//! The hand-off from submitters to a drive's server: one message per batch and drive, bounded, with a wake only when the
//! server sleeps.
//!
//! Rules:
//! 1. The server sets `asleep`, under the lock, only when it has found the inbox empty. The sender that then wakes the server
//!    clears it. So between two sleeps at most one wake is paid, however many batches come.
//! 2. The server waits in its engine, not here, and an engine never loses a wake that came before the wait. So the server sees a
//!    message that is pushed after it looked: the push found `asleep` set and woke it.
//! 3. The number of pieces in the inbox is bounded. A sender that finds the inbox full gets its share back, and holds nothing
//!    while it waits for space. An empty inbox takes any share, however large, and any inbox takes a share without weight. A
//!    sender that must not wait is let in too (`push`): it may be on the server's own thread, which makes the space.
//! 4. The background has a bound of its own, which counts its pieces until they have ended. So the server takes what is here also
//!    when much of the background waits for the drive, and the background never delays other messages.

use crate::sys::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// A bounded inbox of shares of type `T`.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<InboxState<T>>,
    space: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct InboxState<T> {
    shares: Vec<T>,
    /// Sum of the weights of `shares`, without those of the background.
    weight: usize,
    /// Sum of the weights of the background's shares that have not ended.
    behind: usize,
    /// The server found nothing and is about to wait, or waits (rule 1).
    asleep: bool,
    closed: bool,
    /// Senders that sleep until there is space.
    sleepers: usize,
}

impl<T> InboxState<T> {
    /// Takes a share in. True: the sender wakes the server (rule 1).
    fn take_in(&mut self, share: T, load: Load) -> bool {
        match load {
            Load::Front(weight) => self.weight += weight,
            Load::Behind(weight) => self.behind += weight,
        }
        self.shares.push(share);
        std::mem::take(&mut self.asleep)
    }

    fn is_full_behind(&self, weight: usize, limit: usize) -> bool {
        self.behind > 0 && self.behind + weight > limit
    }
}

/// Why a share was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// No space now.
    Full(T),
    /// The server has ended.
    Closed(T),
}

/// What a share weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Until it is taken (rule 3).
    Front(usize),
    /// In the background, until it has ended (rule 4).
    Behind(usize),
}

/// What the server found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Shares were appended.
    pub some: bool,
    /// No more will ever come.
    pub closed: bool,
}

impl<T> Inbox<T> {
    /// An inbox that takes shares up to a total weight of `limit`.
    pub fn new(limit: usize) -> Inbox<T> {
        let state = InboxState { shares: Vec::new(), weight: 0, behind: 0, asleep: false, closed: false, sleepers: 0 };
        Inbox { state: Mutex::new(state), space: Condvar::new(), limit }
    }

    /// Hands over a share, and wakes the server if it sleeps. Where there is no space it waits, and the sender holds nothing
    /// meanwhile (rule 3). `step` advances a server that has no thread of its own; `false` says that the server has one. The
    /// share comes back when the server has ended.
    pub fn hand_over(&self, mut share: T, load: Load, wake: impl FnOnce(), step: impl Fn() -> bool) -> Result<(), T> {
        loop {
            let sent = match load {
                Load::Front(weight) => self.send(share, weight),
                Load::Behind(weight) => self.send_behind(share, weight),
            };
            match sent {
                Ok(is_asleep) => {
                    if is_asleep {
                        wake();
                    }
                    return Ok(());
                }
                Err(Refused::Closed(back)) => return Err(back),
                Err(Refused::Full(back)) => share = back,
            }
            if !step() {
                match load {
                    Load::Front(_) => self.wait_for_space(),
                    Load::Behind(weight) => self.wait_for_space_behind(weight),
                }
            }
        }
    }

    /// Hands over a share whether there is space or not, and wakes the server if it sleeps. The share comes back when the server
    /// has ended.
    pub fn push(&self, share: T, load: Load, wake: impl FnOnce()) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(share);
        }
        let is_asleep = state.take_in(share, load);
        drop(state);
        if is_asleep {
            wake();
        }
        Ok(())
    }

    /// Hands over a share if there is space; `Ok(true)` tells the sender to wake the server now.
    pub fn send(&self, share: T, weight: usize) -> Result<bool, Refused<T>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Refused::Closed(share));
        }
        // The rule of `has_room`.
        if weight > 0 && state.weight > 0 && state.weight + weight > self.limit {
            return Err(Refused::Full(share));
        }
        Ok(state.take_in(share, Load::Front(weight)))
    }

    /// Like `send`, for a share of the background (rule 4).
    pub fn send_behind(&self, share: T, weight: usize) -> Result<bool, Refused<T>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Refused::Closed(share));
        }
        if state.is_full_behind(weight, self.limit) {
            return Err(Refused::Full(share));
        }
        Ok(state.take_in(share, Load::Behind(weight)))
    }

    /// A share of the background has ended.
    pub fn ended_behind(&self, weight: usize) {
        let mut state = lock(&self.state);
        state.behind -= weight;
        self.tell_of_space(&state);
    }

    /// Whether a share of the background of that weight would be taken now.
    pub fn has_room_behind(&self, weight: usize) -> bool {
        let state = lock(&self.state);
        !state.closed && !state.is_full_behind(weight, self.limit)
    }

    /// Waits until `has_room_behind` is true.
    pub fn wait_for_space_behind(&self, weight: usize) {
        let mut state = lock(&self.state);
        while state.is_full_behind(weight, self.limit) && !state.closed {
            state = self.sleep(state);
        }
    }

    /// Whether a share of that weight would be taken now.
    pub fn has_room(&self, weight: usize) -> bool {
        let state = lock(&self.state);
        !state.closed && (weight == 0 || state.weight == 0 || state.weight + weight <= self.limit)
    }

    /// Waits until the server has taken what is there.
    pub fn wait_for_space(&self) {
        let mut state = lock(&self.state);
        while state.weight > 0 && !state.closed {
            state = self.sleep(state);
        }
    }

    /// Sleeps until there may be space.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, InboxState<T>>) -> MutexGuard<'a, InboxState<T>> {
        state.sleepers += 1;
        let mut state = wait(&self.space, state);
        state.sleepers -= 1;
        state
    }

    /// Wakes the senders that sleep. A notification is a system call, also where no thread sleeps.
    fn tell_of_space(&self, state: &InboxState<T>) {
        if state.sleepers > 0 {
            self.space.notify_all();
        }
    }

    /// Takes all shares. With `will_sleep`, an empty inbox marks the server as asleep: the server must then wait in its engine.
    pub fn take(&self, into: &mut Vec<T>, will_sleep: bool) -> Taken {
        let mut state = lock(&self.state);
        let some = !state.shares.is_empty();
        if some {
            into.append(&mut state.shares);
            state.weight = 0;
            self.tell_of_space(&state);
        }
        state.asleep = !some && will_sleep && !state.closed;
        Taken { some, closed: state.closed }
    }

    /// Refuses all shares from now on; the server still takes what is inside. `true` tells the caller to wake the server.
    pub fn close(&self) -> bool {
        let mut state = lock(&self.state);
        state.closed = true;
        self.tell_of_space(&state);
        std::mem::take(&mut state.asleep)
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn bounded_by_weight_but_never_stuck() {
        let inbox = Inbox::new(4);
        assert_eq!(inbox.send('a', 9), Ok(false), "one share always fits an empty inbox");
        assert_eq!(inbox.send('b', 1), Err(Refused::Full('b')));
        assert!(!inbox.has_room(1) && inbox.has_room(0));
        let mut got = Vec::new();
        assert_eq!(inbox.take(&mut got, true), Taken { some: true, closed: false });
        assert_eq!(inbox.take(&mut got, true), Taken { some: false, closed: false });
        assert!(inbox.has_room(9));
        assert_eq!(inbox.send('b', 3), Ok(true), "the server sleeps: wake it");
        assert!(inbox.has_room(1) && !inbox.has_room(2));
        assert_eq!(inbox.send('c', 1), Ok(false), "once is enough");
        assert!(!inbox.close());
        assert_eq!(inbox.send('d', 1), Err(Refused::Closed('d')));
        inbox.take(&mut got, true);
        assert_eq!(got, ['a', 'b', 'c']);
    }

    #[test]
    fn a_sender_that_must_not_wait_is_let_in() {
        let (inbox, mut got) = (Inbox::new(4), Vec::new());
        assert_eq!((inbox.send('a', 4), inbox.send_behind('b', 4)), (Ok(false), Ok(false)));
        assert!(inbox.push('c', Load::Front(4), || panic!("no thread sleeps")).is_ok());
        assert!(inbox.push('d', Load::Behind(4), || panic!("no thread sleeps")).is_ok());
        assert!(!inbox.has_room(1) && !inbox.has_room_behind(1));
        inbox.take(&mut got, true);
        assert!(inbox.has_room(1) && !inbox.has_room_behind(1), "the background counts until it has ended");
        inbox.ended_behind(4);
        inbox.ended_behind(4);
        assert!(inbox.has_room_behind(4));
        inbox.take(&mut got, true);
        let mut woken = 0;
        assert!(inbox.push('e', Load::Front(9), || woken += 1).is_ok());
        assert_eq!((woken, &got[..]), (1, &['a', 'b', 'c', 'd'][..]));
        inbox.close();
        assert_eq!(inbox.push('f', Load::Front(1), || ()), Err('f'));
    }

    #[test]
    fn the_background_has_its_own_bound_until_it_has_ended() {
        let (inbox, mut got) = (Inbox::new(4), Vec::new());
        assert_eq!(inbox.send_behind('a', 9), Ok(false));
        assert_eq!(inbox.send('b', 4), Ok(false), "nothing of the background is in its way");
        inbox.take(&mut got, true);
        assert_eq!(inbox.send_behind('c', 1), Err(Refused::Full('c')), "taken is not ended");
        assert!(!inbox.has_room_behind(1) && inbox.has_room(4));
        inbox.ended_behind(9);
        inbox.wait_for_space_behind(3);
        assert_eq!((inbox.send_behind('c', 3), inbox.send_behind('d', 2)), (Ok(false), Err(Refused::Full('d'))));
        inbox.close();
        inbox.wait_for_space_behind(2);
        assert_eq!(inbox.send_behind('d', 2), Err(Refused::Closed('d')));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;
    use loom::sync::Arc;
    use loom::thread;

    /// An engine's wake and wait, as rule 2 wants them: a wake that comes early is kept.
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

    /// `senders` each send their shares, of the same load, into an inbox of the given size. A server that sleeps takes them, and
    /// ends what is in the background. All shares arrive, and no thread hangs: loom reports a deadlock when a wake is lost.
    fn hand_off(limit: usize, load: Load, senders: &'static [&'static [u32]]) {
        model(move || {
            let shared = Arc::new((Inbox::new(limit), Bell(Mutex::new(false), Condvar::new())));
            let spawn = |shares: &'static [u32]| {
                let shared = Arc::clone(&shared);
                let send = move |share| shared.0.hand_over(share, load, || shared.1.ring(), || false).unwrap();
                thread::spawn(move || shares.iter().copied().for_each(send))
            };
            let threads: Vec<_> = senders.iter().map(|shares| spawn(shares)).collect();
            let mut got = Vec::new();
            while got.len() < 2 {
                let before = got.len();
                if !shared.0.take(&mut got, true).some {
                    shared.1.wait();
                }
                if let Load::Behind(weight) = load {
                    (before..got.len()).for_each(|_| shared.0.ended_behind(weight));
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
        });
    }

    #[test]
    fn loom_inbox_wakes_its_server() {
        hand_off(8, Load::Front(1), &[&[1], &[2]]);
    }

    #[test]
    fn loom_inbox_that_is_full_lets_its_sender_on() {
        hand_off(1, Load::Front(1), &[&[1, 2]]);
    }

    #[test]
    fn loom_inbox_that_is_full_of_the_background_lets_its_sender_on() {
        hand_off(1, Load::Behind(1), &[&[1, 2]]);
    }
}
