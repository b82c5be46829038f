//! The operator's tool: a region on this machine, a trace through it, the same code under simulation, and
//! a router's configuration looked at before a router is given it.
#![deny(unsafe_code)]

mod configuration;
mod demo;
mod replay;
mod simulate;
mod statistics;
mod up;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  lookaside up --demo                                     a region, and something to see
  lookaside up --database mariadb://app:pw@127.0.0.1:3306/app
  lookaside replay --endpoint 127.0.0.1:5000 trace.pack.zst
  lookaside simulate --seeds 300                          the production code under faults
  lookaside simulate --seed 42                            one run again
  lookaside check-config router.json                      would a router take it?
  lookaside route get user:42 -f router.json              which way a key takes

Exit codes: 0 done; 1 failed, with the reason on standard error; 2 wrong usage.";

/// Runs, measures and simulates Lookaside: a memcached-compatible cache that stays consistent with the database.
#[derive(Parser)]
#[command(name = "lookaside", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole region on this machine: database, clusters, invalidator
    Up(up::Options),
    /// Send a request trace through the cache, look-aside, and report the miss ratio
    Replay(replay::Options),
    /// Run the production code under a seeded clock and network, with faults, and check what must hold
    Simulate(simulate::Options),
    /// Say what is wrong with a router's configuration, before a router is given it
    CheckConfig(configuration::check::Options),
    /// Show the way that a request takes through a router's configuration
    Route(configuration::route::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Up(options) => up::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::CheckConfig(options) => configuration::check::run(&options),
        Command::Route(options) => configuration::route::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lookaside: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has read enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(is_broken)
}
