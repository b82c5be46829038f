//! Signals, as bytes in pipes that the main loop polls.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::Read;
use std::os::unix::net::UnixStream;

pub(crate) struct Signals {
    /// SIGINT, SIGTERM, SIGUSR1, or the command `shutdown`.
    pub(crate) stop: UnixStream,
    /// SIGHUP. Never blocks.
    pub(crate) reload: UnixStream,
}

/// Catches the signals; the second result is the end of the pipe by which the process stops itself.
pub(crate) fn catch_signals() -> std::io::Result<(Signals, UnixStream)> {
    let ((stop, stop_writer), (reload, reload_writer)) = (UnixStream::pair()?, UnixStream::pair()?);
    reload.set_nonblocking(true)?;
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::low_level::pipe::register(signal, stop_writer.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(SIGHUP, reload_writer)?;
    Ok((Signals { stop, reload }, stop_writer))
}

/// Discards the bytes that have arrived.
pub(crate) fn drain(mut pipe: &UnixStream) {
    let mut bytes = [0; 64];
    while pipe.read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
}
