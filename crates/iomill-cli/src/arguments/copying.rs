//! Arguments of `put`, `get`, `rm` and `stat`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};

use super::values::{Layout, block_size};

/// Arguments of `put`.
#[derive(Debug, Args)]
pub struct Put {
    /// The files to copy; `-` is standard input. A name for one file may follow, or a prefix that ends with `/` for all
    /// [default: the names of the sources]
    #[arg(required = true, value_name = "SOURCE", value_parser = not_empty())]
    pub operands: Vec<OsString>,
    /// Put this before the names of all sources; all other arguments are sources
    #[arg(short, long, value_name = "PREFIX/", value_parser = NonEmptyStringValueParser::new())]
    pub to: Option<String>,
    /// Copy all files below directories, too
    #[arg(short, long)]
    pub recursive: bool,
    /// How the file's blocks are spread over the drives
    #[arg(long, value_enum, default_value = "striping")]
    pub layout: Layout,
    /// Unit of placement: a multiple of 4 KiB, at most 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block_size)]
    pub block_size: u32,
    /// Use only these drives, by index [default: all]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub drives: Option<Vec<u16>>,
    /// Give each page a checksum, which is compared where the page comes from its drive
    #[arg(long)]
    pub checksums: bool,
    /// Replace a file of that name, once everything is written
    #[arg(short, long)]
    pub force: bool,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct Get {
    /// The files in the array, by name or pattern. Where to write them may follow: a directory, for one file a file, or
    /// `-` for standard output [default: the current directory]
    #[arg(required = true, value_name = "NAME", value_parser = not_empty())]
    pub operands: Vec<OsString>,
    /// Write into this directory, which is made if it is missing; all other arguments are names
    #[arg(short, long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Copy all files below each name; `.` stands for all files
    #[arg(short, long)]
    pub recursive: bool,
    /// Replace files that exist
    #[arg(short, long)]
    pub force: bool,
}

/// Arguments of `rm` and `stat`.
#[derive(Debug, Args)]
pub struct Names {
    /// The files, by name or pattern
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// All files below each name, too; `.` stands for all files
    #[arg(short, long)]
    pub recursive: bool,
}

fn not_empty() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|text| match text.is_empty() {
        true => Err("it is empty: leave it out, or give a path or name"),
        false => Ok(text),
    })
}
