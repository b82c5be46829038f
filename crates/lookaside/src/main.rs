//! The operator's tool: runs a region on this machine, replays traces, simulates the production code, and checks router
//! configurations.
#![deny(unsafe_code)]

mod advise;
mod audit;
mod configuration;
mod databases;
mod demo;
mod invalidator;
mod monitor;
mod process;
mod replay;
mod simulate;
mod statistics;
mod stats;
mod up;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  lookaside up --demo                                     a region with a demo application
  lookaside up --demo --regions 2                         a master region and a replica region
  lookaside up --database mariadb://app:pw@127.0.0.1:3306/app
  lookaside replay --endpoint 127.0.0.1:5000 trace.pack.zst
  lookaside advise --clusters 4 trace.csv.zst             which keys to cache once for the region?
  lookaside simulate --seeds 300                          the production code under faults
  lookaside simulate --seed 42                            repeat one run
  lookaside simulate --regions --seeds 20                 a master region and replica regions
  lookaside stats 127.0.0.1:11250                         the statistics of a daemon
  lookaside check-config router.json                      is the configuration valid?
  lookaside route get user:42 -f router.json              the route of a key
  lookaside invalidator setup --database postgres://postgres:pw@127.0.0.1/app
  lookaside invalidator replay --database sqlite:///srv/app.db --since 15m --cluster one=127.0.0.1:5000
  lookaside monitor --state-dir /var/lib/lookaside-monitor --svg stale.svg
  lookaside audit --database sqlite:///srv/app.db --queries queries.toml --cluster one=127.0.0.1:5000 --once

Exit status: 0 success; 1 failure, with the reason on standard error; 2 usage error.";

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
    /// Replay a request trace through the cache, look-aside, and report the miss ratio
    Replay(replay::Options),
    /// Propose from a trace or from running servers which keys should be in a regional pool, in a replicated one, or in
    /// one of their own
    Advise(advise::Options),
    /// Run the production code under a seeded clock and network, with faults, and check its guarantees
    Simulate(simulate::Options),
    /// Show the statistics of a server, a router or an invalidator
    Stats(stats::Options),
    /// Check a router's configuration before it is deployed
    CheckConfig(configuration::check::Options),
    /// Show how a router's configuration routes a request
    Route(configuration::route::Options),
    /// Prepare a database for the invalidator, check the rules that name keys, replay deletes
    #[command(subcommand)]
    Invalidator(invalidator::Invalidator),
    /// Show what the monitor has found: the part of deletes whose old value stayed, by age
    Monitor(monitor::Options),
    /// Compare cached values with the database, and delete those that are wrong
    Audit(audit::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Up(options) => up::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Stats(options) => stats::run(&options),
        Command::CheckConfig(options) => configuration::check::run(&options),
        Command::Route(options) => configuration::route::run(&options),
        Command::Invalidator(command) => invalidator::run(&command),
        Command::Monitor(options) => monitor::run(&options),
        Command::Audit(options) => audit::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lookaside: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output has closed the pipe, which is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(is_broken)
}
