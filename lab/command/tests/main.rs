//! The command `iomill-lab` as a user runs it.
//!
//! One program for all tests: linking it costs more than running most of them.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/iomill-cli/tests/common/mod.rs"]
mod common;

mod access;
mod caches;
mod ladder;
mod others;
mod replay;
mod rows;
mod work;

use common::Site;
use iomill::{Array, PutOptions};

/// The command.
const PROGRAM: &str = env!("CARGO_BIN_EXE_iomill-lab");

/// Puts a file into a site's array.
fn put(site: &Site, name: &str, content: &[u8]) {
    let array = Array::open(site.drive(0)).unwrap();
    array.put(name, content, &PutOptions::new()).unwrap();
    array.close().unwrap();
}

/// The content of a file of a site's array.
fn content(site: &Site, name: &str) -> Vec<u8> {
    let array = Array::open(site.drive(0)).unwrap();
    let file = array.open_file(name).unwrap();
    let mut content = vec![0; file.len() as usize];
    file.read_at(&mut content, 0).unwrap();
    array.close().unwrap();
    content
}

/// The names in a site's array.
fn names(site: &Site) -> Vec<String> {
    let array = Array::open(site.drive(0)).unwrap();
    let names = array.list("").names().unwrap();
    array.close().unwrap();
    names
}
