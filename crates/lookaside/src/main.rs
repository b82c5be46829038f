//! Room to be filled.
fn main() {}
