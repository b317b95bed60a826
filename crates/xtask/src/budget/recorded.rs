//! The file of budgets. For each version of the compiler, the C library and valgrind, and each kind of processor, it
//! has a table: instructions by operation.

use std::collections::BTreeMap;
use std::fs;

use crate::workspace::{Result, Workspace};

/// Path of the file.
pub const PATH: &str = "crates/iomill/benches/instructions.toml";

/// Instructions by operation.
pub type Row = BTreeMap<String, f64>;

/// The content of the file.
#[derive(Debug, PartialEq)]
pub struct Recorded {
    /// The comments at the top.
    header: String,
    rows: BTreeMap<String, Row>,
}

impl Recorded {
    pub fn load(workspace: &Workspace) -> Result<Recorded> {
        Recorded::parse(&fs::read_to_string(workspace.root.join(PATH)).map_err(|e| format!("{PATH}: {e}"))?)
    }

    fn parse(text: &str) -> Result<Recorded> {
        let header = text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        Ok(Recorded { header, rows: toml::from_str(text).map_err(|e| format!("{PATH}: {e}"))? })
    }

    /// The budgets for these versions.
    pub fn row(&self, versions: &str) -> Option<&Row> {
        self.rows.get(versions)
    }

    /// Sets the budgets for these versions.
    pub fn put(&mut self, versions: String, row: Row) {
        self.rows.insert(versions, row);
    }

    pub fn save(&self, workspace: &Workspace) -> Result<()> {
        fs::write(workspace.root.join(PATH), self.text()).map_err(|e| format!("{PATH}: {e}").into())
    }

    fn text(&self) -> String {
        let mut text = self.header.clone();
        for (versions, row) in &self.rows {
            text += &format!("\n[\"{versions}\"]\n");
            row.iter().for_each(|(kind, count)| text += &format!("{kind} = {count:.1}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# What it is.\n# More.\n\n[\"1.88.0\"]\nhit = 100.5\nmiss = 2000.0\n\n[\"1.95.0\"]\nhit = 99.0\n";

    #[test]
    fn what_is_written_is_read() {
        let mut recorded = Recorded::parse(TEXT).unwrap();
        assert_eq!(recorded.text(), TEXT);
        assert_eq!(recorded.row("1.88.0").unwrap()["hit"], 100.5);
        assert_eq!(recorded.row("1.89.0"), None);
        recorded.put("1.89.0".into(), Row::from([("create".to_owned(), 3.24)]));
        assert!(recorded.text().contains("miss = 2000.0\n\n[\"1.89.0\"]\ncreate = 3.2\n\n[\"1.95.0\"]"));
        assert_eq!(Recorded::parse(&recorded.text()).unwrap().row("1.89.0").unwrap()["create"], 3.2);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Recorded::parse("hit = 3").is_err());
        assert!(Recorded::parse("[\"1.88.0\"]\nhit = \"many\"").is_err());
    }

    #[test]
    fn the_file_of_this_repository_has_all_operations() {
        let text = include_str!("../../../iomill/benches/instructions.toml");
        let recorded = Recorded::parse(text).unwrap();
        assert!(!recorded.rows.is_empty(), "without budgets nothing can be over its budget");
        for (versions, row) in &recorded.rows {
            let mut kinds: Vec<&str> = crate::budget::KINDS.to_vec();
            kinds.sort_unstable();
            assert_eq!(row.keys().collect::<Vec<_>>(), kinds, "{versions}");
        }
        assert_eq!(recorded.text(), text, "as --record writes it");
    }
}
