//! Rows in an order that is known ahead: [`far_pages`] finds the row after which a page is not needed soon, and
//! `Rows::let_go` evicts such pages. So the cache keeps the pages with the earliest next uses, like the optimum
//! (Belady, IBM Systems Journal 1966).
//!
//! It helps if rows are shorter than a page, so that several rows of an order need each page. A page that each order
//! needs once is next used in the next order, and then a cache that keeps any pages hits as often as the optimum.
//! Non-goals: the order, which the Python half makes.

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ids::row_numbers;
use crate::rows::Rows;

/// The number of groups of distances.
const GROUPS: usize = 1 << 16;

/// The share of the cache for which evictions are planned. Held pages are not evenly spread over the sets, and a full
/// set evicts one of them.
const PLANNED: f64 = 0.9;

/// Rows of a file in an order, by their numbers.
#[derive(Clone, Copy)]
struct Order<'a> {
    rows: &'a Rows,
    ids: &'a [u64],
}

impl Order<'_> {
    /// Visits the pages of the rows, from the last row to the first one. For each: the row's position in the order, the
    /// index of the page within the row, and the number of positions until the order needs the page again, if it does.
    fn visit(self, mut visit: impl FnMut(usize, usize, Option<usize>)) {
        let mut next = vec![usize::MAX; self.rows.pages_end() as usize];
        for (place, &id) in self.ids.iter().enumerate().rev() {
            for (which, page) in self.rows.pages(id).enumerate() {
                let later = std::mem::replace(&mut next[page as usize], place);
                visit(place, which, (later != usize::MAX).then(|| later - place));
            }
        }
    }

    fn group(self, distance: usize) -> usize {
        (distance as u128 * GROUPS as u128 / self.ids.len() as u128) as usize
    }
}

/// Returns, for each file, a byte for each row of the order `now`: bit 0 is set if the row's first page should leave
/// the cache after the row, and bit 1 is that of its second page. The order `soon` follows. Rows are shorter than a
/// page.
///
/// The pages with the earliest next uses are held: as many as fit on average. A page is needed again after some
/// distance. The sum of these distances, over all held pages, is their use of the cache in an order.
#[pyfunction]
pub fn far_pages<'py>(
    py: Python<'py>,
    rows: Vec<Py<Rows>>,
    now: &Bound<'py, PyUntypedArray>,
    soon: &Bound<'py, PyUntypedArray>,
    cache_bytes: u64,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let count = rows.iter().map(|rows| rows.get().count()).min().unwrap_or(0);
    let mut ids = row_numbers(now, count)?;
    let places = ids.len();
    ids.extend(row_numbers(soon, count)?);
    let far = py.detach(|| {
        let orders: Vec<Order<'_>> = rows.iter().map(|rows| Order { rows: rows.get(), ids: &ids }).collect();
        let near = near_groups(&orders, places, cache_bytes as f64 * PLANNED / Rows::PAGE_BYTES as f64);
        orders.iter().map(|&order| far_of(order, places, near)).collect::<Vec<_>>()
    });
    Ok(far.iter().map(|far| PyBytes::new(py, far)).collect())
}

/// The number of groups of distances with pages that fit together into a cache of `pages` pages.
fn near_groups(orders: &[Order<'_>], places: usize, pages: f64) -> usize {
    let mut held = vec![0.0; GROUPS];
    for &order in orders {
        order.visit(|place, _, distance| {
            if let Some(distance) = distance.filter(|_| place < places) {
                held[order.group(distance)] += distance as f64 / places as f64;
            }
        });
    }
    let mut sum = 0.0;
    let mut fits = |held: &f64| {
        sum += held;
        sum <= pages
    };
    held.iter().take_while(|&held| fits(held)).count()
}

fn far_of(order: Order<'_>, places: usize, near: usize) -> Vec<u8> {
    let mut far = vec![0; places];
    order.visit(|place, which, distance| {
        if place < places && distance.is_none_or(|distance| order.group(distance) >= near) {
            far[place] |= 1 << which;
        }
    });
    far
}
