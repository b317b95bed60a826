//! Arguments of `check` and `catalog`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Repair every problem that can be repaired without losing data
    #[arg(long)]
    pub repair: bool,

    /// Then read all files from their drives, in the background class, and compare pages with their checksums
    #[arg(long)]
    pub data: bool,

    /// With --data: begin after this file, as a check that was stopped says
    #[arg(long, value_name = "NAME", requires = "data")]
    pub after: Option<String>,
}

/// Arguments of `catalog`.
#[derive(Debug, Args)]
pub struct Catalog {
    /// What to do
    #[command(subcommand)]
    pub what: CatalogWhat,
}

/// What `catalog` does.
#[derive(Debug, Subcommand)]
pub enum CatalogWhat {
    /// Write all that the catalog says, as text
    Export {
        /// The file that gets the text; an old one is replaced; `-` is the standard output [default: the standard
        /// output]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Replace the whole catalog by what a text says, after a check of all of it
    Import {
        /// The text; `-` is the standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}
