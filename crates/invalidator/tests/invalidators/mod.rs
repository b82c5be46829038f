//! Invalidators with production code, over a table with faults.

mod node;
mod table;

pub use node::Node;
pub use table::{Ignored, Link, Locks, Table};
