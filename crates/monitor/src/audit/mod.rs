//! The audit: compares cached values with the rows of the database that they were made of. Sans-I/O: what was read comes
//! in as arguments.
//!
//! | module | |
//! |---|---|
//! | [`queries`] | the file that says which query gives the value of a key, and how the value is encoded |
//! | [`key_pattern`] | keys with placeholders |
//! | [`comparison`] | whether a value is stale, from what was read of cache and database |
//!
//! It finds what the monitor's times do not tell: a value that was read before a commit and stored after it.

pub mod comparison;
pub mod key_pattern;
pub mod queries;
