//! State that threads share: locks that ignore poisoning ([`Mutex`], [`RwLock`]), and counters ([`Counter`],
//! [`SharedCounter`], [`counters!`]).
#![forbid(unsafe_code)]

mod counter;
mod mutex;

pub use counter::{Counter, SharedCounter};
pub use mutex::{Mutex, RwLock};
