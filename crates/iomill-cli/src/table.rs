//! Text in columns.

/// A table: columns parted by two spaces, numbers at the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    is_right: Vec<bool>,
}

impl Table {
    /// A table with headings; those that begin with `>` are of columns of numbers.
    pub fn new(headings: &[&str]) -> Table {
        let is_right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let first = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { rows: vec![first], is_right }
    }

    /// Adds a row, of as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.is_right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), is_right) in row.iter().zip(&widths).zip(&self.is_right) {
                let gap = " ".repeat(width - cell.chars().count());
                if *is_right {
                    line.extend([&gap, cell.as_str(), "  "]);
                } else {
                    line.extend([cell.as_str(), &gap, "  "]);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[">size", "name"]);
        table.row(["4 KiB".to_owned(), "größe".to_owned()]);
        table.row(["1023.9 KiB".to_owned(), "b".to_owned()]);
        assert_eq!(table.render(), "      size  name\n     4 KiB  größe\n1023.9 KiB  b\n");
    }
}
