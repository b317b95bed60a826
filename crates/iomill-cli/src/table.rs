//! Text in columns.
//!
//! Goals: a table fits the terminal. Text wraps, and columns that are not essential are left out; a line below the
//! table names them. Without a terminal no column is left out. Non-goals: wrapping figures, or lines between them.

use crate::terminal;

/// Distance between columns.
const GAP: usize = 2;

/// Text columns do not get narrower than this by wrapping.
const TEXT_WIDTH_MIN: usize = 12;

/// A table.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// The width without a terminal; `None` for no limit.
    usual_width: Option<usize>,
}

#[derive(Debug)]
struct Column {
    head: String,
    is_right: bool,
    is_spare: bool,
    /// The character after which its text may wrap.
    breaks_at: Option<char>,
    /// Characters of its longest cell, the heading included.
    width: usize,
}

impl Column {
    fn new(heading: &str) -> Column {
        let (spare, rest) = (heading.strip_prefix('?'), heading.trim_start_matches('?'));
        let (right, rest) = (rest.strip_prefix('>'), rest.trim_start_matches('>'));
        let mut broken = rest.strip_prefix('~').unwrap_or_default().chars();
        let breaks_at = broken.next();
        let head = if breaks_at.is_some() { broken.as_str() } else { rest };
        let width = head.chars().count();
        Column { head: head.to_owned(), is_right: right.is_some(), is_spare: spare.is_some(), breaks_at, width }
    }
}

impl Table {
    /// A table with headings. A heading may start with marks, in this order. `?`: the column may be left out on a
    /// narrow terminal; the last one goes first. `>`: numbers. `~` and a character: text that may wrap after that
    /// character.
    pub fn new<S: AsRef<str>>(headings: &[S]) -> Table {
        let columns = headings.iter().map(|heading| Column::new(heading.as_ref())).collect();
        Table { columns, rows: Vec::new(), usual_width: None }
    }

    /// Sets the width without a terminal, in characters. Text wraps at it, and no column is left out.
    pub fn usual_width(mut self, width: usize) -> Table {
        self.usual_width = Some(width);
        self
    }

    /// Adds a row, with one cell for each heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        self.fit(&cells);
        self.rows.push(cells);
    }

    /// Makes room for a row that is not kept: [`Lines::push`] gets it again later.
    pub fn fit(&mut self, cells: &[String]) {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.width = column.width.max(cell.chars().count());
        }
    }

    /// The lines of the table, one row after the other, as wide as the terminal allows.
    pub fn lines(&self) -> Lines<'_> {
        self.lines_for(terminal::width())
    }

    fn lines_for(&self, terminal_width: Option<usize>) -> Lines<'_> {
        let shown = self.shown(terminal_width);
        let widths = self.widths(&shown, terminal_width.or(self.usual_width).unwrap_or(usize::MAX));
        Lines { table: self, shown, widths }
    }

    /// The lines of the table, as wide as the terminal allows. Where the output is no terminal, the table is as wide as
    /// its cells.
    pub fn render(&self) -> String {
        self.render_for(terminal::width())
    }

    /// The lines of the table, for a terminal with that many columns or for none.
    pub fn render_for(&self, terminal_width: Option<usize>) -> String {
        let lines = self.lines_for(terminal_width);
        let mut text = lines.head();
        self.rows.iter().for_each(|row| lines.push(&mut text, row));
        text + &lines.foot()
    }

    /// The text of a cell, in lines that fit its column.
    fn cell(&self, row: &[String], index: usize, width: usize) -> String {
        match self.columns[index].breaks_at {
            Some(end) => broken(&row[index], end, width),
            None => row[index].clone(),
        }
    }

    /// Adds a row of cells, with as many lines as its longest cell has.
    fn push_row(&self, text: &mut String, cells: &[String], shown: &[usize], widths: &[usize]) {
        let lines = cells.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
        for line in 0..lines {
            let start = text.len();
            for ((cell, &index), &width) in cells.iter().zip(shown).zip(widths) {
                let part = cell.lines().nth(line).unwrap_or_default();
                let gap = " ".repeat(width.saturating_sub(part.chars().count()));
                let (before, after) = if self.columns[index].is_right { (&*gap, "") } else { ("", &*gap) };
                text.extend([before, part, after, &" ".repeat(GAP)]);
            }
            text.truncate(start + text[start..].trim_end().len());
            text.push('\n');
        }
    }

    /// The columns that fit.
    fn shown(&self, terminal_width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = terminal_width else { return shown };
        let needed = |shown: &[usize]| shown.iter().map(|&index| self.width_min(index) + GAP).sum::<usize>();
        let needed_least: Vec<usize> = shown.iter().copied().filter(|&index| !self.columns[index].is_spare).collect();
        // If lines are too long anyway, leaving columns out gains nothing.
        if needed(&needed_least) > width + GAP {
            return shown;
        }
        while needed(&shown) > width + GAP
            && let Some(spare) = shown.iter().rposition(|&index| self.columns[index].is_spare)
        {
            shown.remove(spare);
        }
        shown
    }

    /// The widths of the shown columns. The widest text columns shrink first, until all together take at most `width`
    /// or none can shrink.
    fn widths(&self, shown: &[usize], width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = shown.iter().map(|&index| self.width_whole(index)).collect();
        while widths.iter().map(|width| width + GAP).sum::<usize>() > width.saturating_add(GAP) {
            let may_shrink = (0..shown.len()).filter(|&place| widths[place] > self.width_min(shown[place]));
            let Some(widest) = may_shrink.max_by_key(|&place| widths[place]) else { break };
            widths[widest] -= 1;
        }
        widths
    }

    fn width_min(&self, index: usize) -> usize {
        let (column, whole) = (&self.columns[index], self.width_whole(index));
        let least = column.head.chars().count().max(TEXT_WIDTH_MIN);
        if column.breaks_at.is_some() { whole.min(least) } else { whole }
    }

    fn width_whole(&self, index: usize) -> usize {
        self.columns[index].width
    }
}

/// A table line by line, so that it takes no memory for its rows.
#[derive(Debug)]
pub struct Lines<'a> {
    table: &'a Table,
    shown: Vec<usize>,
    widths: Vec<usize>,
}

impl Lines<'_> {
    /// The line of the headings.
    pub fn head(&self) -> String {
        let heads: Vec<String> = self.table.columns.iter().map(|column| column.head.clone()).collect();
        let mut text = String::new();
        self.push(&mut text, &heads);
        text
    }

    /// Adds the line of a row. If it takes more lines than one, all of them.
    pub fn push(&self, text: &mut String, row: &[String]) {
        let (table, shown, widths) = (self.table, &self.shown, &self.widths);
        let cells: Vec<String> = shown.iter().zip(widths).map(|(&at, &width)| table.cell(row, at, width)).collect();
        table.push_row(text, &cells, shown, widths);
    }

    /// The note about columns that do not fit.
    pub fn foot(&self) -> String {
        let columns = &self.table.columns;
        let left_out = (0..columns.len()).filter(|index| !self.shown.contains(index));
        let left_out: Vec<&str> = left_out.map(|index| columns[index].head.as_str()).collect();
        if left_out.is_empty() {
            return String::new();
        }
        format!("No room for {}: use a wider terminal, or --json.\n", left_out.join(", "))
    }
}

/// A text in lines of at most `width` characters. It wraps after `end` where possible.
fn broken(text: &str, end: char, width: usize) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for piece in text.split_inclusive(end) {
        if line.chars().count() + piece.trim_end().chars().count() > width && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for character in piece.chars() {
            if line.chars().count() == width && !character.is_whitespace() {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[">size", "name"]);
        table.row(["4 KiB".to_owned(), "größe".to_owned()]);
        table.row(["1023.9 KiB".to_owned(), "b".to_owned()]);
        assert_eq!(table.render_for(None), "      size  name\n     4 KiB  größe\n1023.9 KiB  b\n");
    }

    #[test]
    fn where_room_is_short_text_is_broken_and_then_spares_go() {
        let mut table = Table::new(&["who", "~/path", ">ops/s", "?>p50", "?>p99"]);
        let cells = ["somebody", "/mnt/first/of-many/drives", "310k", "1.00 µs", "2.00 µs"];
        table.row(cells.map(str::to_owned));
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        let whole = table.render_for(Some(100));
        assert!(whole.lines().count() == 2 && whole == table.render_for(None), "{whole}");
        assert!(cells.iter().all(|cell| whole.contains(cell)), "{whole}");
        let broken = table.render_for(Some(52));
        assert!(widest(&broken) <= 52 && broken.contains("p99") && broken.contains(" /mnt/first/"), "{broken}");
        let fewer = table.render_for(Some(45));
        let (rows, said) = fewer.trim_end().rsplit_once('\n').unwrap();
        assert!(widest(rows) <= 45 && rows.contains("p50") && !rows.contains("p99"), "{fewer}");
        assert_eq!(said, "No room for p99: use a wider terminal, or --json.");
        let least = table.render_for(Some(30));
        assert!(
            least.contains("somebody") && least.contains("310k") && least.contains("No room for p50, p99"),
            "{least}"
        );
        let hopeless = table.render_for(Some(10));
        assert!(hopeless.contains("p99") && !hopeless.contains("No room"), "{hopeless}");
        assert_eq!(super::broken("/mnt/first/of-many/drives", '/', 12), "/mnt/first/\nof-many/\ndrives");
        assert_eq!(super::broken("two words and averylongone", ' ', 9), "two words\nand\naverylong\none");
        let table = table.usual_width(45);
        assert!(table.render_for(None).contains("2.00 µs") && table.render_for(None).lines().count() > 2);
    }
}
