//! What the look-ups of the end of the log show of the database: whether its settings are unsafe, whether a start would
//! be refused, and how many look-ups have failed.

use crate::source::{LogLookup, SourceError};
use lookaside_sync::{Mutex, SharedCounter};

/// Why a look-up failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupFailure {
    /// No connection could be made.
    NotConnected,
    /// The database does not answer, or the connection broke.
    Unreachable,
    /// A start would be refused too: a privilege, a login.
    Refused,
    /// Settings by which deletes can be lost.
    UnsafeSettings,
    /// A part could not be looked up.
    Incomplete,
}

impl LookupFailure {
    const ALL: [LookupFailure; 5] = [
        LookupFailure::NotConnected,
        LookupFailure::Unreachable,
        LookupFailure::Refused,
        LookupFailure::UnsafeSettings,
        LookupFailure::Incomplete,
    ];

    fn of(looked_up: &Result<LogLookup, SourceError>) -> Option<LookupFailure> {
        match looked_up {
            Ok(lookup) => lookup.incomplete.as_ref().map(|_| LookupFailure::Incomplete),
            Err(SourceError::NotConnected { .. }) => Some(LookupFailure::NotConnected),
            Err(SourceError::Unusable { .. }) => Some(LookupFailure::Refused),
            Err(SourceError::UnsafeSettings { .. }) => Some(LookupFailure::UnsafeSettings),
            Err(_) => Some(LookupFailure::Unreachable),
        }
    }

    fn name(self) -> &'static str {
        match self {
            LookupFailure::NotConnected => "not_connected",
            LookupFailure::Unreachable => "unreachable",
            LookupFailure::Refused => "refused",
            LookupFailure::UnsafeSettings => "unsafe_settings",
            LookupFailure::Incomplete => "incomplete",
        }
    }
}

/// The statistics of the look-ups.
#[derive(Debug, Default)]
pub struct SourceLookups {
    failures: [SharedCounter; LookupFailure::ALL.len()],
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// The unsafe settings; `None` if there are none, by the last look-up that could see the settings.
    unsafe_settings: Option<String>,
    /// Whether the log had been read when they were logged.
    is_loss_logged: bool,
    /// Why the last look-up was refused or incomplete; `None` if it was neither.
    refused: Option<String>,
}

impl SourceLookups {
    /// Records the result of a look-up, and logs it if it differs from what was known. `has_read` says whether this
    /// process has read the log: before that no delete of it can be lost from now on.
    pub(super) fn record(&self, looked_up: &Result<LogLookup, SourceError>, has_read: bool) {
        if let Some(failure) = LookupFailure::of(looked_up) {
            self.failures[failure as usize].add(1);
        }
        let mut found = self.found.lock();
        match looked_up {
            Ok(lookup) => {
                found.set_unsafe_settings(None, has_read);
                found.set_refused(lookup.incomplete.clone());
            }
            Err(SourceError::UnsafeSettings { why }) => {
                found.set_unsafe_settings(Some(why.clone()), has_read);
                found.set_refused(None);
            }
            Err(SourceError::Unusable { why }) => found.set_refused(Some(why.clone())),
            // It is not known what else there would be, and the readers of the log report that it cannot be reached.
            Err(_) => {}
        }
    }

    /// Whether deletes can be lost by the database's settings, by the last look-up that could see them.
    pub(super) fn are_settings_unsafe(&self) -> bool {
        self.found.lock().unsafe_settings.is_some()
    }

    /// How many look-ups failed, by kind.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LookupFailure::ALL.into_iter().zip(&self.failures).map(|(failure, count)| (failure.name(), count.value()))
    }

    /// Every statistic by name.
    pub(super) fn report(&self) -> Vec<(String, String)> {
        let found = self.found.lock();
        let mut report = vec![("source_unusable".to_owned(), u8::from(found.unsafe_settings.is_some()).to_string())];
        for (name, why) in [("source_unusable_why", &found.unsafe_settings), ("source_refused_why", &found.refused)] {
            let why = why.iter().map(|why| (name.to_owned(), why.replace(|c: char| c.is_control(), " ")));
            report.extend(why);
        }
        let failures =
            self.failures().map(|(kind, count)| (format!("source_lookup_failures_{kind}"), count.to_string()));
        report.extend(failures);
        report
    }
}

impl Found {
    fn set_unsafe_settings(&mut self, unsafe_settings: Option<String>, has_read: bool) {
        match (self.settings_notice(&unsafe_settings, has_read), &unsafe_settings) {
            (Some(notice), Some(why)) => tracing::error!(why, "{notice}"),
            (Some(notice), None) => tracing::warn!("{notice}"),
            (None, _) => return,
        }
        self.is_loss_logged = has_read && unsafe_settings.is_some();
        self.unsafe_settings = unsafe_settings;
    }

    /// What is logged about these unsafe settings; `None` if it was logged before.
    fn settings_notice(&self, unsafe_settings: &Option<String>, has_read: bool) -> Option<&'static str> {
        let is_known = self.unsafe_settings == *unsafe_settings;
        match unsafe_settings {
            Some(_) if has_read => (!is_known || !self.is_loss_logged)
                .then_some("the database's settings are unsafe: DELETES MAY BE LOST from now on"),
            Some(_) => (!is_known).then_some(
                "the database's settings are unsafe: its log is not read until they are corrected. If an earlier start has \
                 read it, deletes of commits since then may be lost",
            ),
            None => (!is_known).then_some(
                "the database's settings are safe again; flush the clusters if the setting hid keys, or if the server's \
                 machine has crashed meanwhile",
            ),
        }
    }

    fn set_refused(&mut self, refused: Option<String>) {
        if self.refused == refused {
            return;
        }
        match &refused {
            Some(why) => tracing::error!(why, "the end of the log cannot be looked up; a start may be refused now"),
            None => tracing::info!("the end of the log can be looked up again"),
        }
        self.refused = refused;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{prometheus, stats::Statistics};
    use super::*;
    use std::{slice::from_ref, time::SystemTime};

    /// What `stats` shows after these look-ups, and that the metrics show the same.
    fn shown(lookups: &[Result<LogLookup, SourceError>]) -> Vec<(String, String)> {
        let statistics = Statistics::new(["one"]);
        lookups.iter().for_each(|looked_up| statistics.source_lookups.record(looked_up, true));
        let (report, metrics) =
            (statistics.report(SystemTime::UNIX_EPOCH), prometheus::render(&statistics, SystemTime::UNIX_EPOCH));
        let shown: Vec<_> =
            report.into_iter().filter(|(name, _)| name.starts_with("source_") && name != "source_failures").collect();
        for (name, value) in &shown {
            let metric = match name.strip_prefix("source_lookup_failures_") {
                Some(kind) => format!("source_lookup_failures_total{{kind=\"{kind}\"}}"),
                None => name.clone(),
            };
            let line = format!("\nlookaside_invalidator_{metric} {value}\n");
            assert!(name.ends_with("_why") || metrics.contains(&line), "{line} is not in {metrics}");
        }
        shown.into_iter().filter(|(_, value)| value != "0").collect()
    }

    fn of(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    /// A setting that was changed while the log was read hid the keys of all new sessions. Each look-up noticed it, and
    /// dropped the reason.
    #[test]
    fn unsafe_settings_are_shown_until_a_look_up_finds_them_right() {
        let hidden = Err(SourceError::UnsafeSettings { why: "SET GLOBAL\na = ON".into() });
        let gone = Err(SourceError::NotConnected { why: "refused".into() });
        let right = Ok(LogLookup::default());
        let why = ("source_unusable_why", "SET GLOBAL a = ON");
        let (unusable, once) = (("source_unusable", "1"), ("source_lookup_failures_unsafe_settings", "1"));
        assert_eq!(shown(from_ref(&right)), of(&[]));
        assert_eq!(shown(from_ref(&hidden)), of(&[unusable, why, once]));
        let not_connected = ("source_lookup_failures_not_connected", "1");
        assert_eq!(shown(&[hidden.clone(), gone]), of(&[unusable, why, not_connected, once]));
        assert_eq!(shown(&[hidden, right]), of(&[once]));
    }

    /// The first start at a database that was not set up yet logged that deletes were being lost.
    #[test]
    fn lost_deletes_are_logged_only_once_the_log_was_read() {
        let mut found = Found::default();
        let hidden = Some("SET GLOBAL a = ON".to_owned());
        let is_loss = |notice: Option<&'static str>| notice.map(|notice| notice.contains("DELETES MAY BE LOST"));
        assert_eq!(is_loss(found.settings_notice(&hidden, false)), Some(false));
        found.set_unsafe_settings(hidden.clone(), false);
        assert_eq!(found.settings_notice(&hidden, false), None, "it is logged once");
        assert_eq!(is_loss(found.settings_notice(&hidden, true)), Some(true));
        found.set_unsafe_settings(hidden.clone(), true);
        assert_eq!(found.settings_notice(&hidden, true), None, "it is logged once");
        found.set_unsafe_settings(None, true);
        assert_eq!(is_loss(found.settings_notice(&hidden, true)), Some(true));
    }

    /// `source_unusable` was 1 after a password had been changed, and an operator flushed the clusters for nothing.
    #[test]
    fn a_refused_login_is_no_setting_that_hides_keys() {
        let refused = Err(SourceError::Unusable { why: "access denied".into() });
        let count = ("source_lookup_failures_refused", "1");
        assert_eq!(shown(from_ref(&refused)), of(&[("source_refused_why", "access denied"), count]));
        assert_eq!(shown(&[refused, Ok(LogLookup::default())]), of(&[count]));
    }

    #[test]
    fn a_look_up_of_which_a_part_failed_is_counted() {
        let incomplete = Ok(LogLookup { incomplete: Some("no privilege".into()), ..LogLookup::default() });
        let broken = Err(SourceError::Unreachable { why: "reset".into() });
        let expected = [
            ("source_refused_why", "no privilege"),
            ("source_lookup_failures_unreachable", "1"),
            ("source_lookup_failures_incomplete", "1"),
        ];
        assert_eq!(shown(&[incomplete, broken]), of(&expected));
    }
}
