//! The statistics of an invalidator that has a standby, or is one (`--shared-state`).

use lookaside_sync::{Mutex, SharedCounter};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::time::Instant;

/// The statistics of the election.
#[derive(Debug, Default)]
pub struct ElectionStatistics {
    /// How often this invalidator became active.
    pub takeovers: SharedCounter,
    /// How often because the session of the former active one had ended.
    pub takeovers_at_session_end: SharedCounter,
    /// How often because the former active one hung.
    pub takeovers_at_hang: SharedCounter,
    /// How often the shared state could not be read or renewed.
    pub failures: SharedCounter,
    is_enabled: AtomicBool,
    is_active: AtomicBool,
    has_session_lock: AtomicBool,
    options_differ: AtomicBool,
    locked: Mutex<LastAccess>,
}

#[derive(Debug, Default)]
struct LastAccess {
    /// `None` if this invalidator has not been active.
    renewed_at: Option<Instant>,
    /// `None` if the last access succeeded.
    failure: Option<String>,
}

impl ElectionStatistics {
    /// From now on this invalidator is a standby, until it becomes active.
    pub fn enable(&self) {
        self.is_enabled.store(true, Relaxed);
    }

    /// `active` or `standby`.
    pub fn role(&self) -> &'static str {
        match self.is_active() {
            true => "active",
            false => "standby",
        }
    }

    /// Whether this invalidator delivers. One without a standby always does.
    pub fn is_active(&self) -> bool {
        !self.is_enabled.load(Relaxed) || self.is_active.load(Relaxed)
    }

    /// Seconds since the last renewal by this invalidator; `None` while it is no active one with a standby.
    pub fn renewal_age_s(&self) -> Option<f64> {
        let is_active = self.is_enabled.load(Relaxed) && self.is_active.load(Relaxed);
        let renewed_at = self.locked.lock().renewed_at;
        renewed_at.filter(|_| is_active).map(|at| at.elapsed().as_secs_f64())
    }

    pub(crate) fn set_active(&self, is_active: bool) {
        self.is_active.store(is_active, Relaxed);
    }

    /// Whether the session of this active one holds a lock, or this standby sees that of the active one: it takes over
    /// at once when that session ends.
    pub fn has_session_lock(&self) -> bool {
        self.has_session_lock.load(Relaxed)
    }

    pub(crate) fn set_session_lock(&self, is_held: bool) {
        self.has_session_lock.store(is_held, Relaxed);
    }

    /// Whether this is a standby and the active one has other clusters, rules or another slot.
    pub fn options_differ(&self) -> bool {
        self.options_differ.load(Relaxed)
    }

    pub(crate) fn set_options_differ(&self, options_differ: bool) {
        self.options_differ.store(options_differ, Relaxed);
    }

    pub(crate) fn record_renewal(&self) {
        self.locked.lock().renewed_at = Some(Instant::now());
    }

    pub(crate) fn set_failure(&self, failure: Option<String>) {
        self.locked.lock().failure = failure;
    }

    /// Every statistic by name.
    pub(super) fn report(&self) -> Vec<(&'static str, String)> {
        let age_ms = self.renewal_age_s().map_or_else(|| "-".into(), |age_s| format!("{:.0}", age_s * 1e3));
        let mut report = vec![
            ("role", self.role().to_owned()),
            ("renewal_age_ms", age_ms),
            ("takeovers", self.takeovers.value().to_string()),
            ("takeovers_at_session_end", self.takeovers_at_session_end.value().to_string()),
            ("takeovers_at_hang", self.takeovers_at_hang.value().to_string()),
            ("session_lock", u8::from(self.has_session_lock()).to_string()),
            ("shared_state_failures", self.failures.value().to_string()),
            ("shared_options_differ", u8::from(self.options_differ()).to_string()),
        ];
        if let Some(why) = &self.locked.lock().failure {
            report.push(("shared_state_why", why.replace(|c: char| c.is_control(), " ")));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(statistics: &ElectionStatistics) -> (String, String) {
        let report = statistics.report();
        let value = |name| report.iter().find(|(found, _)| *found == name).expect("it is reported").1.clone();
        (value("role"), value("renewal_age_ms"))
    }

    #[tokio::test(start_paused = true)]
    async fn the_role_and_the_age_follow_the_election() {
        let statistics = ElectionStatistics::default();
        assert_eq!(report(&statistics), ("active".into(), "-".into()), "without a standby");
        statistics.enable();
        assert_eq!(report(&statistics), ("standby".into(), "-".into()));
        statistics.set_active(true);
        statistics.record_renewal();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(report(&statistics), ("active".into(), "1500".into()));
        statistics.set_active(false);
        assert_eq!((report(&statistics), statistics.is_active()), (("standby".into(), "-".into()), false));
    }
}
