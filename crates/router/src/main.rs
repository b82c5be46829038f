//! `lookaside-router`: see `lookaside_router::daemon`.

use mimalloc::MiMalloc;
use std::process::ExitCode;

/// A batch is a handful of blocks of one to eight KiB, made and dropped a moment later: the system's allocator merges
/// and splits such blocks each time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match lookaside_router::Options::from_command_line() {
        Ok(options) => lookaside_router::daemon::run(options),
        Err(code) => code,
    }
}
