//! The caches of all nodes as one: the cache of a page, and the shares of a wave that other nodes do. Non-goals: the
//! state of nodes (`spread`), and requests to a node (`node_request`, `node_threads`).
//!
//! With one node there is one cache, and this file costs a call one branch.

use std::ops::Range;
use std::sync::Arc;

use super::node_request::{Awaited, NodeRequest, Replies};
use super::open::OpenFile;
use super::span::{Span, Want};
use super::todo::order;
use super::{Paged, Pager};
use crate::cache::Cache;
use crate::cache::key::{Key, KeyHash};
use crate::counters::Counter;
use crate::drive::Class;
use crate::exec::Io;
use crate::exec::roles::NodeRoles;
use crate::file::split::IoRange;
use crate::sys::sync::Ordering;
use crate::sys::topology::MEMORY_POLICY;

impl Pager {
    /// All caches.
    pub fn caches(&self) -> impl Iterator<Item = &Cache> {
        let others = self.spread.iter().flat_map(|spread| &spread.others);
        std::iter::once(&self.first).chain(others)
    }

    /// The cache, if there is only one.
    #[inline(always)]
    pub fn only_cache(&self) -> Option<&Cache> {
        self.spread.is_none().then_some(&self.first)
    }

    /// The cache that a page belongs to.
    #[inline(always)]
    pub fn cache_of(&self, key: Key) -> &Cache {
        match &self.spread {
            None => &self.first,
            Some(spread) => match key.node(spread.count()) {
                0 => &self.first,
                number => &spread.others[number - 1],
            },
        }
    }

    /// Binds each cache's memory, before its first use, to its node. The first error becomes a notice.
    pub(super) fn bind(&self, roles: &NodeRoles, notices: &mut Vec<String>) {
        let bind = |(cache, &node): (&Cache, &usize)| match roles.nodes[node].memory {
            Some(memory) => cache.bind(memory, MEMORY_POLICY),
            None => Ok(()),
        };
        if let Some(error) = self.caches().zip(&roles.cache).find_map(|each| bind(each).err()) {
            notices.push(format!("the cache's memory is not bound to its nodes, so reads may be slower: {error}"));
        }
    }

    /// Pages that the caches have room for now.
    pub fn pages(&self) -> u64 {
        self.caches().map(|cache| cache.directory().pages()).sum()
    }

    /// Pages of a set.
    pub fn ways(&self) -> usize {
        self.first.directory().ways()
    }

    /// Pages that are dirty or on their way to a drive.
    pub fn dirty(&self) -> u64 {
        self.caches().map(Cache::dirty).sum()
    }

    /// All pages of a file that are dirty or being flushed, in their order.
    pub fn dirty_of(&self, file: u32) -> Vec<Key> {
        let mut keys: Vec<Key> = self.caches().flat_map(|cache| cache.dirty_of(file)).collect();
        if self.spread.is_some() {
            keys.sort_unstable();
        }
        keys
    }

    /// Forgets the pages of a file from `page` on, dirty ones too. No operation works on them.
    pub fn discard(&self, file: u32, page: u64) {
        self.caches().for_each(|cache| cache.discard(file, page));
    }

    /// For each cache: its node's index in `roles.nodes`, its pages, and the pages that were sent to it by message.
    pub fn of_nodes(&self, roles: &NodeRoles) -> impl Iterator<Item = (usize, u64, u64)> {
        self.caches().zip(&roles.cache).map(|(cache, &place)| {
            let sent = self.spread.as_ref().map(|spread| spread.sent[cache.number()].load(Ordering::Relaxed));
            (place, cache.directory().pages(), sent.unwrap_or(0))
        })
    }

    /// Forgets clean pages of a file, as [`Cache::forget`] does. Returns how many.
    pub fn forget(&self, file: u32, pages: Range<u64>) -> u64 {
        self.caches().map(|cache| cache.forget(file, pages.clone())).sum()
    }

    /// Ends the nodes' threads. No call is in flight.
    pub fn stop_node_threads(&self) {
        if let Some(spread) = &self.spread {
            spread.threads.stop();
        }
    }
}

impl Paged {
    /// The key of a page, its hash, and the cache that it belongs to.
    #[inline(always)]
    pub fn key(&self, page: u64) -> (Key, KeyHash, &Cache) {
        let key = self.zero.page_after(page);
        let cache = self.pager.cache_of(key);
        (key, cache.directory().hash(key), cache)
    }

    /// Whether the calling thread looks into this cache itself, for a page alone. Else such a page goes by message.
    pub(super) fn looks_itself(&self, cache: &Cache) -> bool {
        self.pager.spread.as_ref().is_none_or(|spread| {
            spread.least_read.is_none_or(|least| least > 1 || spread.home() == Some(cache.number()))
        })
    }

    /// Adds the spans to `missing` that the other nodes read by message, whether they are there or not. Returns the
    /// remaining spans, or the I/O ranges as an error if no reads go by message.
    pub(super) fn leave_to_nodes<E: Iterator<Item = IoRange>>(
        &self,
        io_ranges: E,
        missing: &mut Vec<Span>,
    ) -> std::result::Result<Vec<Span>, E> {
        let Some(spread) = &self.pager.spread else { return Err(io_ranges) };
        let Some(least) = spread.least_read else { return Err(io_ranges) };
        let mut near: Vec<Span> = io_ranges.flat_map(super::span::spans).collect();
        let before = missing.len();
        missing.extend(spread.take_away(self.zero, &mut near, least).into_iter().flatten());
        let bytes = missing[before..].iter().map(|span| u64::from(span.len)).sum();
        self.pager.with_local(|local| local.tally.add(Counter::BytesRead, bytes));
        Ok(near)
    }
}

impl OpenFile {
    /// Sends other nodes their shares of a wave, one message each. Returns the caller's share, if it is not all, and
    /// what was sent.
    ///
    /// # Safety
    /// The spans' memory is valid until the result has been waited for or dropped. For reads nothing else uses it.
    pub(super) unsafe fn send_away(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        wave: &[Span],
        class: Class,
    ) -> (Option<Vec<Span>>, Option<Awaited>) {
        // A spawned operation must not block, and its pieces go to the drive threads anyway.
        let Some(spread) = paged.pager.spread.as_ref().filter(|spread| spread.least_asked <= wave.len() && io.blocks())
        else {
            return (None, None);
        };
        let mut near = wave.to_vec();
        let shares = spread.take_away(paged.zero, &mut near, spread.least_asked);
        let mut away = None;
        for (node, spans) in shares.into_iter().enumerate().filter(|(_, spans)| !spans.is_empty()) {
            // The file is not in the pager any more: it is being closed, and the caller does the whole wave itself.
            let Some(file) = paged.pager.file(paged.number()) else {
                near.extend(spans);
                continue;
            };
            let replies = &away.get_or_insert_with(|| Awaited(Arc::<Replies>::default())).0;
            spread.sent[node].fetch_add(spans.len() as u64, Ordering::Relaxed);
            let request = Box::new(NodeRequest::new(want, class, spans, file, replies));
            if let Err(request) = spread.threads.send(node, request, &|notice| self.exec().notice(notice)) {
                near.extend(request.take_back());
            }
        }
        order(&mut near);
        (Some(near), away)
    }
}
