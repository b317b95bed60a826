//! Tables on the standard output.

use iomill_bench::table;

use crate::terminal;

/// A table that is as wide as the terminal, if it is printed on one; else as wide as need be.
#[derive(Debug)]
pub struct Table(table::Table);

impl Table {
    /// A table with headings, marked as [`table::Table::new`] wants it.
    pub fn new(headings: &[&str]) -> Table {
        Table(table::Table::new(headings))
    }

    /// Adds a row, of as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.row(cells);
    }

    /// The lines.
    pub fn render(&self) -> String {
        self.0.render(terminal::width())
    }
}
