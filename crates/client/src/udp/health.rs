//! Whether a server answers by UDP, and what is done while it does not. Serves gets. Sans-I/O: the time is an argument.
//!
//! ```text
//!               LOSSES_MAX requests in a row without a reply
//!   by UDP  ------------------------------------------------->  by TCP, for a pause
//!      ^                                                            |
//!      |  a reply                                                   |  the pause has passed
//!      +------------------------  a probe  <------------------------+
//!                                    |
//!                                    '-- no reply: by TCP, for twice the pause
//! ```
//!
//! A probe is a datagram beside gets that are sent by TCP, so that no get fails by it.
//!
//! A server that has never answered by UDP has no UDP port open, or none that a firewall lets through: then a missing
//! reply says nothing about the network, and is no loss that makes a window smaller.

use lookaside_sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Requests without a reply in a row after which TCP is used.
const LOSSES_MAX: u32 = 3;
/// How long TCP is used then before a probe; twice as long after each probe in vain,
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How gets that come now are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Udp,
    Tcp,
    /// By TCP, with a probe beside them.
    TcpAndProbe,
}

/// What is known of a server's UDP port.
#[derive(Debug, Default)]
pub(super) struct UdpHealth {
    /// Requests in a row without a reply.
    losses: AtomicU32,
    has_ever_answered: AtomicBool,
    /// Whether `silence` is `Some`, so that gets by UDP take no lock.
    is_silent: AtomicBool,
    /// `None` while UDP is used.
    silence: Mutex<Option<Silence>>,
}

/// The server is sent its gets by TCP.
#[derive(Clone, Copy, Debug)]
struct Silence {
    probe_at: Instant,
    pause: Duration,
    /// Whether a probe is under way.
    is_probing: bool,
}

impl UdpHealth {
    /// How gets are sent that come at `now`. The outcome of a probe is to be recorded.
    pub(super) fn path(&self, now: Instant) -> Path {
        if !self.is_silent.load(Relaxed) {
            return Path::Udp;
        }
        let mut silence = self.silence.lock();
        match &mut *silence {
            None => Path::Udp,
            Some(silence) if silence.is_probing || now < silence.probe_at => Path::Tcp,
            Some(silence) => {
                silence.is_probing = true;
                Path::TcpAndProbe
            }
        }
    }

    /// The server has answered, whatever it has said.
    pub(super) fn record_reply(&self) {
        self.losses.store(0, Relaxed);
        self.has_ever_answered.store(true, Relaxed);
        if self.is_silent.load(Relaxed) {
            let mut silence = self.silence.lock();
            *silence = None;
            self.is_silent.store(false, Relaxed);
        }
    }

    /// A request had no reply, or no whole one, in time. Returns whether something was lost by a server that answers.
    pub(super) fn record_loss(&self, now: Instant) -> bool {
        if self.losses.fetch_add(1, Relaxed) + 1 >= LOSSES_MAX {
            let mut silence = self.silence.lock();
            // Others that were under way say nothing new.
            silence.get_or_insert(Silence { probe_at: now + PAUSE_MIN, pause: PAUSE_MIN, is_probing: false });
            self.is_silent.store(true, Relaxed);
        }
        self.has_ever_answered.load(Relaxed)
    }

    /// A probe had no reply.
    pub(super) fn record_lost_probe(&self, now: Instant) {
        if let Some(silence) = &mut *self.silence.lock() {
            let pause = (silence.pause * 2).min(PAUSE_MAX);
            *silence = Silence { probe_at: now + pause, pause, is_probing: false };
        }
    }

    /// A probe could not be sent, which says nothing about the server.
    pub(super) fn repeat_probe(&self, now: Instant) {
        if let Some(silence) = &mut *self.silence.lock() {
            *silence = Silence { probe_at: now + silence.pause, is_probing: false, ..*silence };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    /// Once TCP was used only until it had answered: a server without a UDP port lost three gets, over and over.
    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_probed_ever_more_rarely() {
        let (health, started) = (UdpHealth::default(), Instant::now());
        for _ in 0..LOSSES_MAX {
            assert_eq!(health.path(Instant::now()), Path::Udp);
            assert!(!health.record_loss(Instant::now()), "it has never answered");
        }
        let mut probes = Vec::new();
        while started.elapsed() < Duration::from_secs(200) {
            match health.path(Instant::now()) {
                Path::Udp => panic!("it does not answer"),
                Path::Tcp => {}
                Path::TcpAndProbe => {
                    probes.push(started.elapsed().as_secs());
                    assert_eq!(health.path(Instant::now()), Path::Tcp, "one probe at a time");
                    health.record_lost_probe(Instant::now());
                }
            }
            advance(Duration::from_millis(100)).await;
        }
        assert_eq!(probes, [1, 3, 7, 15, 31, 63, 123, 183]);
        advance(Duration::from_secs(60)).await;
        assert_eq!(health.path(Instant::now()), Path::TcpAndProbe);
        health.repeat_probe(Instant::now());
        advance(Duration::from_secs(59)).await;
        assert_eq!(health.path(Instant::now()), Path::Tcp);
        advance(Duration::from_secs(1)).await;
        assert_eq!(health.path(Instant::now()), Path::TcpAndProbe, "after the same pause");
        health.record_reply();
        assert_eq!(health.path(Instant::now()), Path::Udp);
        assert!(health.record_loss(Instant::now()), "it answers");
    }

    /// The losses of requests that were under way when the pause began do not make it longer, nor does a late reply end
    /// what comes after it.
    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_changes_no_pause() {
        let health = UdpHealth::default();
        for _ in 0..20 * LOSSES_MAX {
            health.record_loss(Instant::now());
        }
        advance(PAUSE_MIN).await;
        assert_eq!(health.path(Instant::now()), Path::TcpAndProbe);
        health.record_reply();
        for _ in 1..LOSSES_MAX {
            health.record_loss(Instant::now());
        }
        assert_eq!(health.path(Instant::now()), Path::Udp);
        health.record_loss(Instant::now());
        advance(PAUSE_MIN - Duration::from_millis(1)).await;
        assert_eq!(health.path(Instant::now()), Path::Tcp);
        advance(Duration::from_millis(1)).await;
        assert_eq!(health.path(Instant::now()), Path::TcpAndProbe, "a server that has answered has the shortest pause");
    }
}
