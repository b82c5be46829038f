//! Entry point of `lookaside-invalidator`; see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use lookaside_invalidator::{daemon, options::Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::run(Options::parse())
}
