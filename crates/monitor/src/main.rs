//! Entry point of `lookaside-monitor`; see the library.
#![forbid(unsafe_code)]

use clap::Parser;
use lookaside_monitor::{daemon, options::Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::run(Options::parse())
}
