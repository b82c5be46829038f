//! The main thread while the others serve. Each pass polls signals, listeners and the upgrade socket, and then:
//!
//! | event | action |
//! |---|---|
//! | SIGINT, SIGTERM, SIGUSR1, `shutdown` | return |
//! | SIGHUP | reload certificates and users |
//! | every second | tick the store, continue the crawl for expired items, mark ages, return freed memory to the system |
//! | a new process is ready to take over | return |
//! | connections wait | accept them |

use crate::net::acceptor::{Acceptor, Listener};
use crate::net::malloc_trim::TrimOnPeak;
use crate::shared::ServerState;
use crate::startup::signals::{Signals, drain};
use lookaside_upgrade::{Successor, UpgradeServer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How often the store learns the time, so that short-lived items leave in the second in which they expire (§6.3).
const TICK_MS: u64 = 1_000;
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Why the main loop has ended.
pub(super) enum Exit {
    /// A signal, or the command `shutdown`.
    Stopped,
    Upgrade(Successor),
}

pub(super) fn run_until_exit(
    state: &ServerState,
    listeners: &[Listener],
    signals: &Signals,
    mut upgrade: Option<UpgradeServer<'_>>,
) -> std::io::Result<Exit> {
    let mut acceptor = Acceptor::new(&state.net, state.secrets.certificates.as_ref(), state.clock, listeners);
    let mut last_tick = state.clock.now();
    let mut trim = TrimOnPeak::default();
    state.store.mark_ages(|| state.clock.now());
    loop {
        acceptor.update_pause();
        let mut polled = vec![PollFd::new(&signals.stop, PollFlags::IN), PollFd::new(&signals.reload, PollFlags::IN)];
        polled.extend(acceptor.poll_fds());
        polled.extend(upgrade.iter().flat_map(UpgradeServer::poll_fds));
        let is_upgrading = upgrade.as_ref().is_some_and(UpgradeServer::has_pending_step);
        let timeout = if is_upgrading { &NO_WAIT } else { acceptor.pause().unwrap_or(&TICK) };
        match poll(&mut polled, Some(timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !polled[0].revents().is_empty() {
            return Ok(Exit::Stopped);
        }
        if !polled[1].revents().is_empty() {
            drain(&signals.reload);
            state.secrets.reload(state.clock);
        }
        let now = state.clock.now();
        if now.unix_ms - last_tick.unix_ms >= TICK_MS {
            state.store.tick(now);
            state.expiry_crawl.step(&state.store, now);
            state.store.mark_ages(|| state.clock.now());
            let usage = state.net.worker_handles.iter().map(|handle| handle.buffers.take_peak_bytes());
            let (peak_bytes, now_bytes) = usage.fold((0, 0), |sum, usage| (sum.0 + usage.0, sum.1 + usage.1));
            trim.tick(peak_bytes, now_bytes);
            last_tick = now;
        }
        let successor = upgrade
            .as_mut()
            .and_then(|upgrade| upgrade.handle_ready(now.unix_ms, |step| state.store.drop_page_tables(step)));
        if let Some(successor) = successor {
            return Ok(Exit::Upgrade(successor));
        }
        acceptor.accept_waiting();
    }
}
