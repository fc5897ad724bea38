//! The `kvsp` command.
fn main() {}
