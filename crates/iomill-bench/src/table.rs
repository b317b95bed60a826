//! Text in columns.
//!
//! Goals: on a terminal a table is as wide as that: text is broken, and figures that can be missed are left out, which is said. Elsewhere
//! nothing is left out. Non-goals: figures that are broken, or lines between them.

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};

/// Columns are so far apart.
const GAP: usize = 2;

/// Text is not broken into columns narrower than this.
const TEXT_WIDTH_MIN: usize = 12;

/// A table.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Where there is no terminal; `None` for as wide as need be.
    usual_width: Option<usize>,
}

#[derive(Debug)]
struct Column {
    head: String,
    is_right: bool,
    is_spare: bool,
    /// After what its text may be broken.
    breaks_at: Option<char>,
}

impl Column {
    fn new(heading: &str) -> Column {
        let (spare, rest) = (heading.strip_prefix('?'), heading.trim_start_matches('?'));
        let (right, rest) = (rest.strip_prefix('>'), rest.trim_start_matches('>'));
        let mut broken = rest.strip_prefix('~').unwrap_or_default().chars();
        let breaks_at = broken.next();
        let head = if breaks_at.is_some() { broken.as_str() } else { rest };
        Column { head: head.to_owned(), is_right: right.is_some(), is_spare: spare.is_some(), breaks_at }
    }
}

impl Table {
    /// A table with headings. Marks before them, in this order: `?` for what may be left out where room is short, the last such column
    /// first; `>` for numbers; `~` and a character for text that may be broken after that character.
    pub fn new<S: AsRef<str>>(headings: &[S]) -> Table {
        let columns = headings.iter().map(|heading| Column::new(heading.as_ref())).collect();
        Table { columns, rows: Vec::new(), usual_width: None }
    }

    /// The width where there is no terminal, in columns of one: text is broken for it, nothing left out.
    pub fn usual_width(mut self, width: usize) -> Table {
        self.usual_width = Some(width);
        self
    }

    /// Adds a row, of as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, on a terminal of that many columns or on none.
    pub fn render(&self, terminal_width: Option<usize>) -> String {
        let shown = self.shown(terminal_width);
        let widths = self.widths(&shown, terminal_width.or(self.usual_width).unwrap_or(usize::MAX));
        let cell = |row: &[String], (&index, &width): (&usize, &usize)| match self.columns[index].breaks_at {
            Some(end) => broken(&row[index], end, width),
            None => row[index].clone(),
        };
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        grid.set_header(shown.iter().map(|&index| &self.columns[index].head));
        for row in &self.rows {
            grid.add_row(shown.iter().zip(&widths).map(|place| cell(row, place)));
        }
        for (column, &index) in grid.column_iter_mut().zip(&shown) {
            column.set_padding((0, GAP as u16));
            if self.columns[index].is_right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let left_out: Vec<&str> = (0..self.columns.len())
            .filter(|index| !shown.contains(index))
            .map(|index| self.columns[index].head.as_str())
            .collect();
        let end = if left_out.is_empty() {
            String::new()
        } else {
            format!("No room for {}: a wider terminal has it, and --json.\n", left_out.join(", "))
        };
        format!("{}\n{end}", grid.trim_fmt())
    }

    /// The columns for which there is room.
    fn shown(&self, terminal_width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = terminal_width else { return shown };
        let needed = |shown: &[usize]| shown.iter().map(|&index| self.width_min(index) + GAP).sum::<usize>();
        let needed_least: Vec<usize> = shown.iter().copied().filter(|&index| !self.columns[index].is_spare).collect();
        // Where lines are too long anyway, nothing is won by leaving out what they say.
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

    /// How wide the columns are that are shown, all together at most `width` as far as text can be broken: the widest first.
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
        let cells = self.rows.iter().map(|row| row[index].chars().count());
        cells.max().unwrap_or(0).max(self.columns[index].head.chars().count())
    }
}

/// A text in lines of at most `width` characters, broken after `end` where there is one.
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
        assert_eq!(table.render(None), "      size  name\n     4 KiB  größe\n1023.9 KiB  b\n");
    }

    #[test]
    fn where_room_is_short_text_is_broken_and_then_spares_go() {
        let mut table = Table::new(&["who", "~/path", ">ops/s", "?>p50", "?>p99"]);
        let cells = ["somebody", "/mnt/first/of-many/drives", "310k", "1.00 µs", "2.00 µs"];
        table.row(cells.map(str::to_owned));
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        let whole = table.render(Some(100));
        assert!(whole.lines().count() == 2 && whole == table.render(None), "{whole}");
        assert!(cells.iter().all(|cell| whole.contains(cell)), "{whole}");
        let broken = table.render(Some(52));
        assert!(widest(&broken) <= 52 && broken.contains("p99") && broken.contains(" /mnt/first/"), "{broken}");
        let fewer = table.render(Some(45));
        let (rows, said) = fewer.trim_end().rsplit_once('\n').unwrap();
        assert!(widest(rows) <= 45 && rows.contains("p50") && !rows.contains("p99"), "{fewer}");
        assert_eq!(said, "No room for p99: a wider terminal has it, and --json.");
        let least = table.render(Some(30));
        assert!(
            least.contains("somebody") && least.contains("310k") && least.contains("No room for p50, p99"),
            "{least}"
        );
        let hopeless = table.render(Some(10));
        assert!(hopeless.contains("p99") && !hopeless.contains("No room"), "{hopeless}");
        assert_eq!(super::broken("/mnt/first/of-many/drives", '/', 12), "/mnt/first/\nof-many/\ndrives");
        assert_eq!(super::broken("two words and averylongone", ' ', 9), "two words\nand\naverylong\none");
        let table = table.usual_width(45);
        assert!(table.render(None).contains("2.00 µs") && table.render(None).lines().count() > 2);
    }
}
