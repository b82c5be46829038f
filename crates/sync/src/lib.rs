//! State that threads share: locks that ignore poisoning ([`Mutex`], [`RwLock`]), and counters ([`Counter`],
//! [`SharedCounter`], [`counters!`], [`MovingAverage`]).
#![forbid(unsafe_code)]

mod counter;
mod moving_average;
mod mutex;

pub use counter::{Counter, SharedCounter};
pub use moving_average::MovingAverage;
pub use mutex::{Mutex, RwLock};
