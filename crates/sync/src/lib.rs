//! State that threads share: locks that ignore poisoning, and counters.
//!
//! * [`Mutex`] and [`RwLock`]: those of std without poisoning.
//! * [`Counter`]: one thread writes, any thread reads; [`SharedCounter`]: any thread writes. [`counters!`] declares a
//!   set of either, with its snapshot.
#![forbid(unsafe_code)]

mod counter;
mod mutex;

pub use counter::{Counter, SharedCounter};
pub use mutex::{Mutex, RwLock};
