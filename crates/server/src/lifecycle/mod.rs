//! The process from the moment that it serves until its end.

pub(crate) mod graceful_close;
pub(crate) mod takeover;
pub(crate) mod threads;
