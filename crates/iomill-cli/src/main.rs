//! The `iomill` command.
fn main() {}
