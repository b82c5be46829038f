//! `lookaside-router`: see `lookaside_router::daemon`.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    lookaside_router::daemon::run(lookaside_router::Options::parse())
}
