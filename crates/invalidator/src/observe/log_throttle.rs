//! A limit on repeated log messages.

use std::time::Duration;
use tokio::time::Instant;

/// The least time between two log messages of one kind.
pub(crate) const LOG_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// Allows one kind of log message once per [`LOG_INTERVAL_MIN`].
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    last: Option<Instant>,
}

impl LogThrottle {
    /// Whether a message may be logged now; if so, it counts as logged.
    pub fn allows(&mut self, now: Instant) -> bool {
        let is_allowed = self.next_allowed().is_none_or(|next| next <= now);
        if is_allowed {
            self.last = Some(now);
        }
        is_allowed
    }

    /// When the next message is allowed; `None` if at any time.
    pub fn next_allowed(&self) -> Option<Instant> {
        self.last.map(|last| last + LOG_INTERVAL_MIN)
    }
}
