//! The signals that the daemon handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Two signals end the daemon; SIGHUP reloads configuration, certificates and users.
pub(super) struct Signals {
    pub(super) hangup_config: Signal,
    /// Every stream of a signal receives it.
    pub(super) hangup_certificates: Signal,
    pub(super) hangup_users: Signal,
    pub(super) interrupt: Signal,
    pub(super) terminate: Signal,
}

impl Signals {
    /// Must be called inside the main thread's runtime.
    pub(super) fn receive() -> Result<Signals, String> {
        let receive = |kind| signal(kind).map_err(|error| format!("cannot receive signals: {error}"));
        Ok(Signals {
            hangup_config: receive(SignalKind::hangup())?,
            hangup_certificates: receive(SignalKind::hangup())?,
            hangup_users: receive(SignalKind::hangup())?,
            interrupt: receive(SignalKind::interrupt())?,
            terminate: receive(SignalKind::terminate())?,
        })
    }

    /// Resolves at SIGINT or SIGTERM.
    pub(super) async fn stop(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
