//! The options that all invalidators which stand by for each other should have, as the active one states them in the
//! record.
//!
//! One that has others may still stand by, and become active: how else would an operator change them, one process after
//! the other? But if that was not intended, clusters or keys go without deletes from the next takeover on. So a standby
//! that finds a difference reports it for as long as it lasts.

use super::record::ElectionRecord;
use crate::observe::election_stats::ElectionStatistics;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;

/// A difference is logged once it has lasted for this long: a rule file that is changed on two hosts differs for a
/// moment.
const LOGGED_AFTER: Duration = Duration::from_secs(5);

/// What is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberOptions {
    /// The names of the clusters.
    pub clusters: BTreeSet<String>,
    /// The digest of the rules; empty if there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rules: String,
    /// PostgreSQL: the replication slot; `None` for other databases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
}

/// Returns the present options: rules are loaded again.
pub type CurrentOptions = Arc<dyn Fn() -> MemberOptions + Send + Sync>;

impl MemberOptions {
    /// What differs from `active`, by option; empty if nothing does.
    fn differences(&self, active: &MemberOptions) -> Vec<String> {
        let names = |options: &MemberOptions| options.clusters.iter().cloned().collect::<Vec<_>>().join(",");
        let digest = |options: &MemberOptions| match options.rules.as_str() {
            "" => "none".to_owned(),
            digest => format!("digest {digest}"),
        };
        let slot = |options: &MemberOptions| options.slot.clone().unwrap_or_else(|| "none".into());
        let shown = [
            ("--cluster", names(active), names(self)),
            ("--rules", digest(active), digest(self)),
            ("--slot", slot(active), slot(self)),
        ];
        let differing = shown.into_iter().filter(|(_, active, own)| active != own);
        differing.map(|(option, active, own)| format!("{option}: {active} there, {own} here")).collect()
    }
}

/// Compares the options of a standby with those of the active one.
#[derive(Default)]
pub(super) struct OptionsComparison {
    /// The difference, since when, and whether it was logged; `None` if there is none.
    found: Option<(String, Instant, bool)>,
}

impl OptionsComparison {
    /// Compares them with those in `record`; one of an earlier version has none.
    pub fn observe(&mut self, own: &MemberOptions, record: &ElectionRecord, statistics: &ElectionStatistics) {
        let active = record.state.options.as_ref().filter(|_| !record.version.holder.is_empty());
        let differences = active.map(|active| own.differences(active)).unwrap_or_default().join("; ");
        statistics.set_options_differ(!differences.is_empty());
        if differences.is_empty() {
            if let Some((_, _, true)) = self.found.take() {
                tracing::info!("the active invalidator has the same options as this standby now");
            }
            return;
        }
        let known = self.found.take().filter(|(known, ..)| *known == differences);
        let (_, since, is_logged) = self.found.insert(known.unwrap_or((differences, Instant::now(), false)));
        if !*is_logged && since.elapsed() >= LOGGED_AFTER {
            *is_logged = true;
            let (active, difference) = (&record.version.holder, &self.found.as_ref().expect("it was found").0);
            tracing::error!(
                active,
                difference,
                "the active invalidator has other options than this standby: after a takeover clusters or keys may go \
                 without deletes. Start all with the same ones"
            );
        }
    }

    /// Logs what changes as this invalidator takes the place of the one with `record`.
    pub fn report_takeover(&mut self, own: &MemberOptions, record: &ElectionRecord, statistics: &ElectionStatistics) {
        statistics.set_options_differ(false);
        let former = record.state.options.as_ref();
        let difference = former.map(|former| own.differences(former)).unwrap_or_default().join("; ");
        if !difference.is_empty() {
            tracing::error!(
                difference,
                "this invalidator takes over with other options than the one before: start all with the same ones"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_both_values() {
        let options = |clusters: &[&str], rules: &str| MemberOptions {
            clusters: clusters.iter().map(ToString::to_string).collect(),
            rules: rules.into(),
            slot: Some("lookaside".into()),
        };
        let own = options(&["two", "one"], "");
        assert_eq!(own.differences(&options(&["one", "two"], "")), [""; 0]);
        assert_eq!(
            own.differences(&options(&["one"], "0a1b2c3d")),
            ["--cluster: one there, one,two here", "--rules: digest 0a1b2c3d there, none here"]
        );
    }
}
