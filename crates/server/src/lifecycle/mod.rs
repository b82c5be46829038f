//! The process from its command line to its end.

mod graceful_close;
mod handover;
mod main_loop;
mod server_control;
mod threads;

use crate::cli::Arguments;
use crate::clock::Clock;
use crate::startup::announce::announce;
use crate::startup::daemonize::{self, PidFile};
use crate::startup::listeners::Listeners;
use crate::startup::secrets::read_secrets;
use crate::startup::signals::catch_signals;
use crate::startup::takeover::{find_predecessor, restore_connections};
use crate::startup::{Parts, build, log_ignored_options, privileges, raise_fd_limit, warm_restart};
use anyhow::Context;
use lookaside_telemetry::Log;
use lookaside_upgrade::{Inherited, notify_ready};
use std::process::ExitCode;

/// Runs the server until SIGINT, SIGTERM or SIGUSR1; with `-d` in another process.
///
/// # Errors
///
/// The server could not start, or could not save its items.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.shows_licence {
        println!("lookaside-server {}: MIT or Apache-2.0, at your option", env!("CARGO_PKG_VERSION"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &arguments.remove_region {
        println!("{}", warm_restart::remove(name)?);
        return Ok(ExitCode::SUCCESS);
    }
    arguments.check()?;
    if arguments.daemon
        && let Some(exit_code) = daemonize::spawn_background()?
    {
        return Ok(exit_code);
    }
    serve(arguments).map(|()| ExitCode::SUCCESS)
}

fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let (signals, stop) = catch_signals().context("cannot create a pipe for signals")?;
    let log = Log::start(arguments.log_format, u32::from(arguments.verbosity));
    log_ignored_options(&arguments);
    raise_fd_limit(arguments.connections_max);
    let clock = Clock::start();
    let protocols = arguments.protocols()?;
    let target_user = privileges::find_target_user(arguments.user.as_deref())?;
    let mut inherited = Inherited::from_systemd();
    let mut predecessor = find_predecessor(&arguments, target_user.as_ref(), &mut inherited, &signals.stop)?;
    let secrets = read_secrets(&arguments, clock)?;
    let listeners = Listeners::open(&arguments, &mut inherited)?;
    inherited.close_unused();
    let pid_file = arguments.pid_path.as_deref().map(PidFile::open).transpose()?;
    privileges::change_user(&arguments, pid_file.as_ref(), target_user)?;
    let parts = Parts { protocols, secrets, log, clock, stop };
    let (state, handover) = build(arguments, parts, &listeners, &signals.stop, predecessor.as_mut())?;
    if state.arguments.lock_memory {
        privileges::lock_memory();
    }
    let connections = restore_connections(&state, &listeners.stream, handover);
    let outcome = threads::run(state, listeners, &signals, connections, |state, listeners| {
        let announced = announce(state, listeners).and_then(|()| pid_file.as_ref().map_or(Ok(()), PidFile::write));
        match announced {
            // The predecessor has ended: it is better to serve unannounced than not at all.
            Err(error) if predecessor.is_some() => tracing::error!("{error:#}"),
            announced => announced?,
        }
        notify_ready();
        if state.arguments.daemon {
            daemonize::notify_ready()?;
        }
        if let Some(predecessor) = predecessor.take() {
            predecessor.log_pause();
        }
        Ok(())
    });
    // Before the last log line: a supervisor that waits for the file to disappear may start the next server.
    drop(pid_file);
    outcome?;
    tracing::info!("stopped");
    Ok(())
}
