//! Tables on the standard output.

use iomill_bench::table;

use crate::terminal;

/// A table that fits the terminal. If the output is not a terminal, the table is as wide as its cells.
#[derive(Debug)]
pub struct Table(table::Table);

impl Table {
    /// A table with headings. [`table::Table::new`] explains their marks.
    pub fn new(headings: &[&str]) -> Table {
        Table(table::Table::new(headings))
    }

    /// Adds a row. It has as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.row(cells);
    }

    /// The table's lines.
    pub fn render(&self) -> String {
        self.0.render(terminal::width())
    }
}
