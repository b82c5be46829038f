//! Compares the configurations of a cluster's routers.
//!
//! Any router's acknowledgement of a delete or of a flush counts for the whole cluster, since its routers send a key to
//! the same servers. With two configurations they may not: a delete that one of them acknowledges then leaves the value
//! that the other one serves. Routers load a changed configuration one after the other, so a difference is no fault
//! before it has lasted for `DIFFERENCE_MAX`. It is shown (`router_configs`) and logged; deletes go on, as nothing
//! better is known.
//!
//! Routers that are each other's peers (`--spool-peers`) change their configuration together: each sends deletes to the
//! places under every configuration that another one reads by, and says so in its coverage report
//! (`docs/adr/012-resize.md`). Then nothing old is served, however long the change takes.

use super::{router::Router, routers::RouterDelivery};
use futures_util::future::join_all;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// How often the routers are asked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long routers may take to load a changed configuration.
const DIFFERENCE_MAX: Duration = Duration::from_secs(60);
/// How long the last answer of a router counts that does not answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What a router reports of the configurations to whose places its deletes go.
#[derive(Debug, Deserialize)]
struct CoverageReport {
    /// Those by which it routes.
    reads: BTreeSet<String>,
    /// Those to whose places all its deletes go.
    claims: BTreeSet<String>,
}

/// What a difference between the configurations of a cluster's routers means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceEffect {
    /// Each router's deletes reach what the others serve.
    Covered,
    /// They may not.
    StaleReads,
}

/// What has been seen of the configurations.
#[derive(Default)]
struct Comparison {
    /// The last answer of each router, by its index, and when that was.
    answers: BTreeMap<usize, (String, Instant)>,
    /// `None` if they are equal.
    difference: Option<Difference>,
    /// Whether a difference was logged, and not yet that all are equal again.
    is_logged: bool,
}

struct Difference {
    since: Instant,
    /// `None` if it was not logged.
    logged: Option<DifferenceEffect>,
}

#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// A difference has lasted for too long.
    Lasts,
    /// A difference that was logged is over.
    IsOver,
    Nothing,
}

impl Comparison {
    /// `digests` has the configuration of each of `routers` that has answered, by its index.
    fn record_digests(&mut self, digests: &BTreeMap<usize, String>, routers: usize, now: Instant) -> Finding {
        self.answers.extend(digests.iter().map(|(&at, digest)| (at, (digest.clone(), now))));
        self.answers.retain(|_, (_, answered_at)| now - *answered_at < SILENCE_MAX);
        let distinct: BTreeSet<&String> = self.answers.values().map(|(digest, _)| digest).collect();
        if distinct.len() < 2 {
            self.difference = None;
            // A router that does not answer may still have another one.
            let is_over = self.answers.len() == routers && std::mem::take(&mut self.is_logged);
            return if is_over { Finding::IsOver } else { Finding::Nothing };
        }
        let Difference { since, logged } = self.difference.get_or_insert(Difference { since: now, logged: None });
        match now - *since >= DIFFERENCE_MAX && *logged != Some(DifferenceEffect::StaleReads) {
            true => Finding::Lasts,
            false => Finding::Nothing,
        }
    }

    /// Whether the effect of the difference is to be logged: it was not, or is worse than it was.
    fn record_effect(&mut self, effect: DifferenceEffect) -> bool {
        let Some(difference) = &mut self.difference else { return false };
        let is_new = difference.logged < Some(effect);
        if is_new {
            (difference.logged, self.is_logged) = (Some(effect), true);
        }
        is_new
    }
}

/// The effect of a difference between routers with these reports; `None` for one that has sent none.
fn effect_of(reports: &[Option<CoverageReport>]) -> DifferenceEffect {
    let reports: Option<Vec<&CoverageReport>> = reports.iter().map(Option::as_ref).collect();
    let Some(reports) = reports else { return DifferenceEffect::StaleReads };
    let is_covered = |read: &String| reports.iter().all(|report| report.claims.contains(read));
    match reports.iter().flat_map(|report| &report.reads).all(is_covered) {
        true => DifferenceEffect::Covered,
        false => DifferenceEffect::StaleReads,
    }
}

impl RouterDelivery {
    /// Compares the configurations repeatedly. Never returns, unless there is nothing to compare.
    pub(super) async fn compare_configs(&self) {
        if self.router_count() < 2 {
            return;
        }
        let mut comparison = Comparison::default();
        loop {
            let digests = self.config_digests().await;
            let distinct: BTreeSet<&String> = digests.values().collect();
            self.statistics.set_router_configs(distinct.len());
            match comparison.record_digests(&digests, self.router_count(), Instant::now()) {
                Finding::Lasts => self.log_difference(&digests, &mut comparison).await,
                Finding::IsOver => {
                    let cluster = &self.statistics.name;
                    tracing::info!(cluster, "the routers of the cluster have the same configuration again");
                }
                Finding::Nothing => {}
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// The digest of the configuration by which each router routes that answers, by its index.
    pub async fn config_digests(&self) -> BTreeMap<usize, String> {
        let digests = join_all(self.routers().map(Router::config_digest)).await;
        digests.into_iter().enumerate().filter_map(|(at, digest)| Some((at, digest?))).collect()
    }

    /// Asks `routers`, which are indexes, for their reports: the effect of a difference between them. One that sends
    /// none may serve anything.
    pub async fn difference_effect(&self, routers: impl IntoIterator<Item = usize>) -> DifferenceEffect {
        let report = |at: usize| async move { serde_json::from_slice(&self.router(at).coverage().await?).ok() };
        effect_of(&join_all(routers.into_iter().map(report)).await)
    }

    async fn log_difference(&self, digests: &BTreeMap<usize, String>, comparison: &mut Comparison) {
        let effect = self.difference_effect(digests.keys().copied()).await;
        if !comparison.record_effect(effect) {
            return;
        }
        let cluster = &self.statistics.name;
        let routers: Vec<String> =
            digests.iter().map(|(&at, digest)| format!("{}: {digest}", self.router(at).address())).collect();
        let routers = routers.join(", ");
        match effect {
            DifferenceEffect::Covered => tracing::warn!(
                cluster,
                routers,
                "routers of one cluster have different configurations, and each one's deletes reach what the others serve: a \
                 change of the configuration takes long. Give all the same configuration"
            ),
            DifferenceEffect::StaleReads => tracing::error!(
                cluster,
                routers,
                "routers of one cluster have different configurations: what one of them deletes, another one may still serve. \
                 Give all the same configuration, then flush the cluster"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(of: &[(usize, &str)]) -> BTreeMap<usize, String> {
        of.iter().map(|(at, digest)| (*at, (*digest).to_owned())).collect()
    }

    /// Checks the routers at each interval for `time`, and returns what was found, without repetitions.
    fn check(comparison: &mut Comparison, now: &mut Instant, time: Duration, of: &[(usize, &str)]) -> Vec<Finding> {
        let mut found = Vec::new();
        let end = *now + time;
        while *now < end {
            *now += CHECK_INTERVAL;
            let finding = comparison.record_digests(&digests(of), 3, *now);
            if finding == Finding::Lasts {
                comparison.record_effect(DifferenceEffect::StaleReads);
            }
            found.extend(Some(finding).filter(|finding| *finding != Finding::Nothing));
        }
        found
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_difference_is_found_when_it_has_lasted_and_when_it_is_over() {
        let (mut comparison, mut now) = (Comparison::default(), Instant::now());
        let mut check = |time, of: &[(usize, &str)]| check(&mut comparison, &mut now, time, of);
        assert_eq!(check(MINUTE, &[(0, "new"), (1, "old"), (2, "old")]), []);
        assert_eq!(check(MINUTE, &[(0, "new"), (1, "old"), (2, "old")]), [Finding::Lasts]);
        // Some answers are lost.
        assert_eq!(check(MINUTE / 4, &[(1, "old"), (2, "old")]), []);
        assert_eq!(check(MINUTE, &[(0, "new"), (1, "old"), (2, "old")]), [], "once");
        assert_eq!(check(MINUTE, &[(0, "new"), (1, "new"), (2, "new")]), [Finding::IsOver]);
        assert_eq!(check(MINUTE * 2, &[(0, "x"), (1, "y"), (2, "z")]), [Finding::Lasts]);
    }

    /// While one router was down, a later difference of the others was not logged any more.
    #[test]
    fn a_router_that_is_down_hides_no_later_difference() {
        let (mut comparison, mut now) = (Comparison::default(), Instant::now());
        let mut check = |time, of: &[(usize, &str)]| check(&mut comparison, &mut now, time, of);
        assert_eq!(check(MINUTE * 2, &[(0, "new"), (1, "old"), (2, "old")]), [Finding::Lasts]);
        assert_eq!(check(MINUTE, &[(0, "new"), (1, "new")]), [], "the third may have another one");
        assert_eq!(check(MINUTE, &[(0, "newer"), (1, "new")]), [], "they load it one after the other");
        assert_eq!(check(MINUTE, &[(0, "newer"), (1, "new")]), [Finding::Lasts]);
        assert_eq!(check(MINUTE, &[(0, "newer"), (1, "newer"), (2, "newer")]), [Finding::IsOver]);
    }

    fn report(reads: &[&str], claims: &[&str]) -> Option<CoverageReport> {
        // As a router sends it.
        let text = serde_json::json!({
            "reads": reads, "waits_for": null, "claims": claims, "covers": claims, "is_ordered": true, "departed": [],
        });
        Some(serde_json::from_value(text).expect("a report"))
    }

    /// The log advised to flush a cluster when one router's file was copied late.
    #[test]
    fn peers_that_cover_what_the_others_read_serve_nothing_old() {
        let peers = || [report(&["new"], &["old", "new"]), report(&["old"], &["new", "old"])];
        assert_eq!(effect_of(&peers()), DifferenceEffect::Covered);
        for other in [None, report(&["old"], &["old"]), report(&["third"], &["new", "old", "third"])] {
            assert_eq!(
                effect_of(&peers().into_iter().chain([other]).collect::<Vec<_>>()),
                DifferenceEffect::StaleReads
            );
        }
        // The new one still runs batches by the old one, after which it no longer claims it.
        assert_eq!(
            effect_of(&[report(&["new", "old"], &["new"]), report(&["new"], &["new"])]),
            DifferenceEffect::StaleReads
        );
    }

    #[test]
    fn an_effect_is_logged_again_only_if_it_is_worse() {
        let (mut comparison, now) = (Comparison::default(), Instant::now());
        assert!(!comparison.record_effect(DifferenceEffect::StaleReads), "there is no difference");
        let differ = digests(&[(0, "new"), (1, "old")]);
        let mut record = |effect| {
            comparison.record_digests(&differ, 2, now);
            comparison.record_effect(effect)
        };
        let effects = [
            DifferenceEffect::Covered,
            DifferenceEffect::Covered,
            DifferenceEffect::StaleReads,
            DifferenceEffect::StaleReads,
            DifferenceEffect::Covered,
        ];
        assert_eq!(effects.map(&mut record), [true, false, true, false, false]);
    }
}
