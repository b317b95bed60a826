//! Arguments of `cp`.

use clap::Args;

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct Cp {
    /// The file in the array
    pub from: String,
    /// The name of the copy. After a name that ends with `/`, the last part of FROM is appended
    pub to: String,
    /// Replace a file that has the name
    #[arg(short, long)]
    pub force: bool,
}
