//! Requests to other nodes: a [`NodeRequest`] is a node's share of a wave, done by a thread of that node. [`Replies`]
//! collect the ends of requests.
//!
//! The caller sends each node its share as one message, does its own share meanwhile, and waits until all requests have
//! ended. A node's thread (`node_threads`) looks the pages up, fills those that are missing, and copies straight from
//! and into the caller's memory. Non-goals: which pages go to which node (`nodes`).
//!
//! Rules, beside those of the cache and of the inbox:
//! 1. A caller holds no fills when it sends, and none when it waits for the replies: its own have ended by then (rule 4
//!    of the cache).
//! 2. A thread that works on a request waits for drives only. It returns a span undone if another operation works on
//!    its page, or if its set is full. The caller does such spans after all its requests have ended. So no thread that
//!    owns fills waits for a page, for room in a node's inbox, or for replies. Every chain of waits ends at a drive:
//!    caller -> node's thread -> drive, or caller -> page -> the thread that fills it -> drive.
//! 3. A caller returns only after all its requests have ended, also by an error or a panic: the nodes' threads write to
//!    its memory.
//! 4. A request ends once: when all its I/O has ended, or when it is dropped because no thread will work on it, or
//!    because the thread has panicked. A dropped one returns all its spans undone: the thread has requests of several
//!    calls, and the panic belongs to none of them. It releases its file and its array before the caller continues,
//!    because the caller may close them.

use std::sync::Arc;

use super::Paged;
use super::fill::Fills;
use super::node_threads::{NodeWork, PendingWork};
use super::open::OpenRef;
use super::span::{Span, Want};
use super::wave::Sorted;
use crate::cache::Outcome;
use crate::drive::{Class, Failure, Piece};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::sys::sync::{AtomicUsize, Condvar, Mutex, Ordering, lock};

/// The ends of all requests of a wave.
#[derive(Debug, Default)]
pub struct Replies {
    state: Mutex<RepliesState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct RepliesState {
    /// Requests that have not ended.
    out: usize,
    left: Sorted,
    /// The first error.
    error: Option<Error>,
}

impl Replies {
    fn begin(&self) {
        lock(&self.state).out += 1;
    }

    /// Notes the end of a request. Only the last one wakes the caller.
    fn end(&self, left: Sorted, result: Result<()>) {
        let mut state = lock(&self.state);
        state.left.extend(left);
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        state.out -= 1;
        if state.out == 0 {
            self.ended.notify_one();
        }
    }

    fn wait(&self) -> (Sorted, Result<()>) {
        let mut state = lock(&self.state);
        while state.out > 0 {
            state = match self.ended.wait(state) {
                Ok(state) => state,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        (std::mem::take(&mut state.left), state.error.take().map_or(Ok(()), Err))
    }
}

/// Requests that are under way. Dropping it waits for their ends (rule 3).
#[derive(Debug)]
pub struct Awaited(pub Arc<Replies>);

impl Awaited {
    /// Waits until all have ended. Returns what they left undone, and the first error.
    pub fn wait(self) -> (Sorted, Result<()>) {
        self.0.wait()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let _seen_or_lost_to_a_panic = self.0.wait();
    }
}

/// One node's share of a wave.
#[derive(Debug)]
pub struct NodeRequest {
    want: Want,
    class: Class,
    /// All of them, until the end: a drop returns them.
    spans: Vec<Span>,
    /// `None` after the end (rule 4).
    file: Option<OpenRef>,
    replies: Arc<Replies>,
}

impl NodeRequest {
    /// A request that reports its end to `replies`.
    pub fn new(want: Want, class: Class, spans: Vec<Span>, file: OpenRef, replies: &Arc<Replies>) -> NodeRequest {
        replies.begin();
        NodeRequest { want, class, spans, file: Some(file), replies: Arc::clone(replies) }
    }

    fn end(&mut self, left: Sorted, result: Result<()>) {
        if let Some(file) = self.file.take() {
            drop(file);
            self.replies.end(left, result);
        }
    }
}

impl NodeWork for NodeRequest {
    fn weight(&self) -> usize {
        self.spans.len()
    }

    fn exec(&self) -> Option<&Arc<Exec>> {
        self.file.as_ref().map(|file| file.exec())
    }

    fn take_back(mut self: Box<Self>) -> Vec<Span> {
        let spans = std::mem::take(&mut self.spans);
        self.end(Sorted::default(), Ok(()));
        spans
    }

    fn begin(mut self: Box<Self>) -> Option<Box<dyn PendingWork>> {
        let file = self.file.clone()?;
        let paged = file.paged.clone()?;
        let mut fills = Fills::new(self.want, Arc::clone(&paged));
        // SAFETY: the caller keeps the spans' memory until the request has ended (rule 3), and `fills` end before that.
        let left = unsafe { paged.begin_wave(&self.spans, &mut fills) };
        drop(file);
        if fills.is_empty() {
            self.end(left, Ok(()));
            return None;
        }
        if let Some(file) = &self.file {
            fills.plan(&file.file);
        }
        let (runs, tail) = (fills.runs(), Mutex::new(Tail { request: *self, left, failure: None }));
        Some(Box::new(PendingRequest { fills, runs_left: AtomicUsize::new(runs), tail }))
    }
}

impl Drop for NodeRequest {
    fn drop(&mut self) {
        let busy = std::mem::take(&mut self.spans);
        self.end(Sorted { busy, ..Sorted::default() }, Ok(()));
    }
}

/// A request with pages to fill.
#[derive(Debug)]
struct PendingRequest {
    /// Declared before the request: if a panic leaves some fills, they end before the request does.
    fills: Fills<Arc<Paged>>,
    runs_left: AtomicUsize,
    tail: Mutex<Tail>,
}

#[derive(Debug)]
struct Tail {
    request: NodeRequest,
    left: Sorted,
    failure: Option<Failure>,
}

impl PendingWork for PendingRequest {
    fn pieces(&self) -> Vec<(u16, Piece)> {
        let tail = lock(&self.tail);
        let Some(file) = &tail.request.file else { return Vec::new() };
        self.fills.pieces(&file.file, tail.request.class).collect()
    }

    fn pages(&self) -> usize {
        self.fills.len()
    }

    fn run_done(&self, tag: u32, outcome: Outcome) -> bool {
        let mut many = Vec::new();
        let outcome = self.fills.end_run(tag, outcome, &mut many);
        if outcome.is_err() || !many.is_empty() {
            let mut tail = lock(&self.tail);
            tail.left.over.many.extend(many);
            tail.failure = tail.failure.or(outcome.err());
        }
        self.count_down()
    }

    fn fail(&self, error: &Error) {
        self.fills.abandon();
        self.end(Some(Error::NodeThread { why: error.to_string() }));
    }
}

impl PendingRequest {
    fn count_down(&self) -> bool {
        // AcqRel: pairs with this in other threads, so that the last one sees the fills that the others have ended.
        let last = self.runs_left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.end(None);
        }
        last
    }

    fn end(&self, error: Option<Error>) {
        let mut tail = lock(&self.tail);
        let Tail { request, left, failure } = &mut *tail;
        let failed = failure.zip(request.file.as_ref()).map(|(failure, file)| file.file.error(failure));
        let result = failed.or(error).map_or(Ok(()), Err);
        request.end(std::mem::take(left), result);
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::{Arc, Awaited, Condvar, Mutex, Ordering, Replies, Sorted, lock};
    use crate::drive::inbox::Inbox;
    use crate::sys::sync::{AtomicU64, model};
    use loom::thread;

    /// When the caller has waited for all nodes, it sees what they have copied (rule 3).
    ///
    /// Seen to fail when the caller did not wait, and when the last end did not wake it.
    #[test]
    fn loom_node_request_ends_after_its_copy() {
        model(|| {
            let memory: Arc<[AtomicU64; 2]> = Arc::default();
            let replies = Arc::<Replies>::default();
            let nodes = [0, 1].map(|node| {
                replies.begin();
                let (memory, replies) = (Arc::clone(&memory), Arc::clone(&replies));
                thread::spawn(move || {
                    memory[node].store(7, Ordering::Relaxed);
                    replies.end(Sorted::default(), Ok(()));
                })
            });
            let (_, result) = Awaited(replies).wait();
            result.unwrap();
            assert_eq!([0, 1].map(|node| memory[node].load(Ordering::Relaxed)), [7, 7]);
            nodes.into_iter().for_each(|node| node.join().unwrap());
        });
    }

    /// What requests see of a page: missing, being filled, or there. The cache, which does that, has models of its own.
    #[derive(Default)]
    struct Page(Mutex<PageState>, Condvar);

    #[derive(Clone, Copy, Default, PartialEq)]
    enum PageState {
        #[default]
        Missing,
        Filling,
        There,
    }

    impl Page {
        /// The state before the call. If the page was missing, the caller fills it.
        fn begin(&self) -> PageState {
            let mut state = lock(&self.0);
            let was = *state;
            if was == PageState::Missing {
                *state = PageState::Filling;
            }
            was
        }

        fn end(&self) {
            *lock(&self.0) = PageState::There;
            self.1.notify_all();
        }

        fn wait(&self) {
            let mut state = lock(&self.0);
            while *state == PageState::Filling {
                state = self.1.wait(state).unwrap();
            }
        }
    }

    /// Hands a request for a page to a node that may sleep.
    fn send(inbox: &Inbox<(usize, Arc<Replies>)>, node: &thread::Thread, page: usize) -> Awaited {
        let replies = Arc::<Replies>::default();
        replies.begin();
        inbox.hand_over((page, Arc::clone(&replies)), 1, || node.unpark()).unwrap();
        Awaited(replies)
    }

    /// Works on two requests as a node does: a page that another thread fills goes back undone (rule 2).
    fn work(pages: &[Page; 2], inbox: &Inbox<(usize, Arc<Replies>)>) {
        let (mut requests, mut done) = (Vec::new(), 0);
        while done < 2 {
            if !inbox.take(&mut requests, true).some {
                thread::park();
            }
            for (page, replies) in requests.drain(..) {
                let mut left = Sorted::default();
                match pages[page].begin() {
                    PageState::Missing => pages[page].end(),
                    PageState::There => {}
                    PageState::Filling => left.over.many.push(page as u64),
                }
                replies.end(left, Ok(()));
                done += 1;
            }
        }
    }

    /// Asks for pages as a node's thread does: it ends its fills after it has asked for all. Returns the pages that go
    /// back (rule 2).
    fn work_on(pages: &[Page; 2], wanted: [usize; 2]) -> Vec<usize> {
        let asked = wanted.map(|page| (page, pages[page].begin()));
        let those = |state| asked.into_iter().filter(move |(_, asked)| *asked == state).map(|(page, _)| page);
        those(PageState::Missing).for_each(|page| pages[page].end());
        those(PageState::Filling).collect()
    }

    /// Two threads of nodes fill the same two pages. Each may have begun one page when it comes to the other: no thread
    /// hangs, and pages that go back are there soon.
    ///
    /// Seen to fail when they waited for each other's page (rule 2).
    #[test]
    fn loom_node_request_waits_for_no_page_while_it_fills() {
        model(|| {
            let pages: Arc<[Page; 2]> = Arc::default();
            let other = thread::spawn({
                let pages = Arc::clone(&pages);
                move || work_on(&pages, [1, 0])
            });
            let left = work_on(&pages, [0, 1]);
            left.into_iter().for_each(|page| pages[page].wait());
            other.join().unwrap().into_iter().for_each(|page| pages[page].wait());
            assert!(pages.iter().all(|page| page.begin() == PageState::There));
        });
    }

    /// Two callers and a node that sleeps. One caller asks the node for the page that the other caller fills, and the
    /// other asks it for another page. No thread hangs, and the page is there in the end (rules 1 and 2, and those of
    /// the inbox).
    ///
    /// Seen to fail with rules 1 and 2 broken: the node waited for a page, and the thread that filled it waited for the
    /// node. One broken rule is enough here. Also seen to fail when the sender did not wake the node.
    #[test]
    fn loom_node_request_waits_for_no_page() {
        model(|| {
            let pages: Arc<[Page; 2]> = Arc::default();
            let inbox = Arc::new(Inbox::new(8));
            let node = thread::spawn({
                let (pages, inbox) = (Arc::clone(&pages), Arc::clone(&inbox));
                move || work(&pages, &inbox)
            });
            let other = thread::spawn({
                let (pages, inbox, node) = (Arc::clone(&pages), Arc::clone(&inbox), node.thread().clone());
                move || {
                    let away = send(&inbox, &node, 1);
                    if pages[0].begin() == PageState::Missing {
                        pages[0].end();
                    }
                    let (left, _) = away.wait();
                    assert!(left.over.many.is_empty());
                }
            });
            let (left, _) = send(&inbox, node.thread(), 0).wait();
            if !left.over.many.is_empty() {
                pages[0].wait();
            }
            assert!(pages[0].begin() == PageState::There);
            node.join().unwrap();
            other.join().unwrap();
        });
    }
}
