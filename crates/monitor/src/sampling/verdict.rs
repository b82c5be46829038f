//! What an answer of a cluster says about an old value.
//!
//! A value is old if it was stored before the commit. A server tells how long ago an item was stored, at least and at
//! most (`me KEY a`), so its clock need not agree with the monitor's. Three times bound the commit, all by the
//! monitor's clock:
//!
//! ```text
//!        not_before            commit             read_at              look: sent_at .. received_at
//! -----------|--------------------|------------------|------------------------|-----------|----------> time
//!   stored here: old      stored here: undecided          stored here: new
//! ```
//!
//! | verdict | the key has |
//! |---|---|
//! | absent | no item, or one that readers are not shown (marked as stale by `md` with `I`, a placeholder) |
//! | old | an item that was stored before `not_before`, whatever the answer's way took: it is older than the commit |
//! | new | an item that was not there when the cluster was asked at first, right after `read_at`, and that may be younger than that; or one that was stored after `read_at`, for certain |
//! | undecided | another item: stored in the second or two before the commit, or refilled before the first look; or its server does not tell ages |
//!
//! "Old" is certain, if clocks run at the same speed within [`DRIFT_SHARE`]. What it misses is undecided, and counted
//! so.
//!
//! The first answer counts for later answers of the same server. All routers of a cluster read the same servers, so the
//! first answer of one counts for the others too: the router that was asked at first may be gone later. "New" is
//! certain for a server. A router may answer from the gutter at first, and it or another one from the server later: an
//! item that the server has had all along is new then, unless its age says that it was stored before `read_at`.
//!
//! A value that was *read* from the database before the commit and stored after it (a stale set, §3.2.1) is new here:
//! its age does not tell. An audit against the database finds it.

use super::{moment::Moment, sample::Sample};
use serde::{Deserialize, Serialize};

/// Two clocks may differ by one part in this many of a time that both measure: far more than those of computers do.
const DRIFT_SHARE: u64 = 1_000;
/// A server may have read its clock this long before the request arrived, in milliseconds: it reads it once for all
/// requests of a round, and may be stopped before it reads its sockets.
const ROUND_MS_MAX: u64 = 5_000;

/// The answer of one server, or of a router for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which router or server.
    pub from: String,
    /// When it was asked.
    pub sent_at: Moment,
    /// When it answered.
    pub received_at: Moment,
    /// The answer.
    pub seen: Seen,
    /// The servers that the router has the key from, if it was asked about an old value; `None` otherwise.
    pub servers: Option<String>,
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The key has no item.
    Absent,
    /// It has one that classic verbs miss.
    Hidden,
    /// It has an item.
    Item(SeenItem),
    /// There was no answer; the reason.
    Failed(String),
}

/// An item of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenItem {
    /// Its CAS unique.
    pub cas: u64,
    /// How long ago it was stored; `None` if the server does not tell.
    pub age: Option<AgeBounds>,
}

/// How long ago an item was stored, by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeBounds {
    /// At least, in milliseconds.
    pub min_ms: u64,
    /// At most, in milliseconds; `None` if that is not known.
    pub max_ms: Option<u64>,
}

/// What the first look, right after `read_at`, has found. A later item that is another one was stored after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The router or server.
    pub from: String,
    /// The CAS unique of the item; `None` if there was none.
    pub cas: Option<u64>,
}

impl Baseline {
    /// The result of a look; `None` if there was no answer.
    pub fn of(look: &Look) -> Option<Baseline> {
        let cas = match &look.seen {
            Seen::Absent | Seen::Hidden => None,
            Seen::Item(item) => Some(item.cas),
            Seen::Failed(_) => return None,
        };
        Some(Baseline { from: look.from.clone(), cas })
    }

    /// Whether a later answer of `from` is about the same place: the same server, or the cluster, which each of its
    /// `routers` speaks for.
    fn is_comparable(&self, from: &str, routers: &[String]) -> bool {
        let is_router = |address: &str| routers.iter().any(|router| router == address);
        self.from == from || is_router(&self.from) && is_router(from)
    }
}

/// What a look says about an old value. In the order of what counts for a cluster with several looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No value is there.
    Absent,
    /// A value that was stored after the commit.
    New,
    /// A value that may be either.
    Undecided,
    /// No answer.
    Failed,
    /// A value that was stored before the commit.
    Old,
}

/// Judges one look, by what the first looks have found. `routers` are those of the cluster; none if its servers are
/// asked.
pub fn judge(sample: &Sample, baselines: &[Baseline], routers: &[String], look: &Look) -> Verdict {
    let item = match &look.seen {
        Seen::Absent | Seen::Hidden => return Verdict::Absent,
        Seen::Failed(_) => return Verdict::Failed,
        Seen::Item(item) => item,
    };
    let Some(age) = item.age else { return Verdict::Undecided };
    let stored_by = latest_store(look, age);
    if sample.not_before.is_some_and(|not_before| stored_by < not_before) {
        return Verdict::Old;
    }
    let is_new = match baselines.iter().find(|baseline| baseline.is_comparable(&look.from, routers)) {
        Some(baseline) => baseline.cas != Some(item.cas) && stored_by >= sample.read_at,
        None => earliest_store(look, age).is_some_and(|stored| stored >= sample.read_at),
    };
    if is_new { Verdict::New } else { Verdict::Undecided }
}

/// The item was stored by then, by the monitor's clock: the server measured its age before the answer arrived.
fn latest_store(look: &Look, age: AgeBounds) -> Moment {
    look.received_at.minus_ms(age.min_ms - age.min_ms.div_ceil(DRIFT_SHARE))
}

/// The item was not stored before; `None` if that is not known.
fn earliest_store(look: &Look, age: AgeBounds) -> Option<Moment> {
    let max_ms = age.max_ms?;
    Some(look.sent_at.minus_ms(max_ms.saturating_add(max_ms.div_ceil(DRIFT_SHARE)).saturating_add(ROUND_MS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_invalidator::Position;
    use std::time::SystemTime;

    const CAS: u64 = 7;

    /// A commit after 10,000 ms, read at 10,100 ms.
    fn sample() -> Sample {
        Sample {
            key: b"k".to_vec(),
            position: Position("1".into()),
            committed_at: SystemTime::UNIX_EPOCH,
            not_before: Some(Moment { ms: 10_000 }),
            read_at: Moment { ms: 10_100 },
        }
    }

    /// An item seen at 12,000 ms, with an age of these bounds.
    fn look(min_ms: u64, max_ms: Option<u64>) -> Look {
        let seen = Seen::Item(SeenItem { cas: CAS, age: Some(AgeBounds { min_ms, max_ms }) });
        Look {
            from: "r".into(),
            sent_at: Moment { ms: 11_990 },
            received_at: Moment { ms: 12_000 },
            seen,
            servers: None,
        }
    }

    fn ageless() -> Look {
        Look { seen: Seen::Item(SeenItem { cas: CAS, age: None }), ..look(0, None) }
    }

    /// The first look at the same router has found this.
    fn first(cas: Option<u64>) -> [Baseline; 1] {
        [Baseline { from: "r".into(), cas }]
    }

    #[test]
    fn an_item_is_old_only_if_its_least_age_reaches_back_before_the_commit() {
        let verdict = |min_ms| judge(&sample(), &[], &[], &look(min_ms, None));
        assert_eq!(verdict(2_100), Verdict::Old);
        // Its server's clock may be faster by a thousandth.
        assert_eq!(verdict(2_002), Verdict::Undecided);
        assert_eq!(verdict(1_000), Verdict::Undecided);
    }

    #[test]
    fn an_item_that_was_there_at_first_is_old_or_undecided() {
        let verdict = |min_ms, max_ms| judge(&sample(), &first(Some(CAS)), &[], &look(min_ms, Some(max_ms)));
        assert_eq!(verdict(2_100, 3_000), Verdict::Old);
        assert_eq!(verdict(1_900, 1_980), Verdict::Undecided);
        // It cannot be younger: the server was stopped after it had read its clock.
        assert_eq!(verdict(0, 1_500), Verdict::Undecided);
    }

    #[test]
    fn without_a_first_look_an_item_is_new_if_it_was_stored_later_for_certain() {
        let later = Look { sent_at: Moment { ms: 19_990 }, received_at: Moment { ms: 20_000 }, ..look(0, Some(4_500)) };
        assert_eq!(judge(&sample(), &[], &[], &later), Verdict::New);
        // Its server may have been stopped for five seconds after it had read its clock.
        let stopped = Look { seen: look(0, Some(5_500)).seen, ..later };
        assert_eq!(judge(&sample(), &[], &[], &stopped), Verdict::Undecided);
    }

    #[test]
    fn an_item_that_was_not_there_at_first_is_new_unless_it_is_old() {
        let verdict = |cas, min_ms| judge(&sample(), &first(cas), &[], &look(min_ms, Some(3_000)));
        assert_eq!(verdict(None, 500), Verdict::New);
        assert_eq!(verdict(Some(CAS + 1), 500), Verdict::New);
        assert_eq!(verdict(Some(CAS), 500), Verdict::Undecided);
        // The first answer came from another server: the gutter, while this one was away.
        assert_eq!(verdict(None, 2_900), Verdict::Old);
        assert_eq!(verdict(None, 1_950), Verdict::Undecided, "it was stored before the commit was read");
    }

    /// The monitor was restarted with other servers.
    #[test]
    fn the_first_look_at_another_server_proves_nothing() {
        let other = [Baseline { from: "another".into(), cas: None }];
        let routers = ["r".to_owned(), "r2".to_owned()];
        for routers in [&[][..], &routers] {
            assert_eq!(judge(&sample(), &other, routers, &look(500, Some(3_000))), Verdict::Undecided);
        }
    }

    /// The router that was asked at first was restarted since, so another one is asked. Each value that was filled
    /// after the delete was undecided then.
    #[test]
    fn the_first_look_by_another_router_of_the_cluster_counts() {
        let routers = ["r".to_owned(), "r2".to_owned()];
        let verdict = |cas, min_ms| {
            let first = [Baseline { from: "r2".into(), cas }];
            judge(&sample(), &first, &routers, &look(min_ms, Some(3_000)))
        };
        assert_eq!(verdict(None, 500), Verdict::New);
        assert_eq!(verdict(Some(CAS + 1), 500), Verdict::New);
        assert_eq!(verdict(Some(CAS), 500), Verdict::Undecided);
        assert_eq!(verdict(None, 2_900), Verdict::Old);
        assert_eq!(verdict(None, 1_950), Verdict::Undecided, "it was stored before the commit was read");
        // Two servers do not speak for each other.
        let of_another = [Baseline { from: "r2".into(), cas: None }];
        assert_eq!(judge(&sample(), &of_another, &[], &look(500, Some(3_000))), Verdict::Undecided);
    }

    #[test]
    fn without_an_age_every_item_is_undecided() {
        for baselines in [&[][..], &first(Some(CAS)), &first(None), &first(Some(CAS + 1))] {
            assert_eq!(judge(&sample(), baselines, &[], &ageless()), Verdict::Undecided, "{baselines:?}");
        }
    }

    #[test]
    fn nothing_is_old_without_a_bound_of_the_commit() {
        let unbounded = Sample { not_before: None, ..sample() };
        assert_eq!(judge(&unbounded, &first(Some(CAS)), &[], &look(11_000, None)), Verdict::Undecided);
    }

    #[test]
    fn a_hidden_item_is_no_value() {
        for seen in [Seen::Absent, Seen::Hidden] {
            assert_eq!(judge(&sample(), &[], &[], &Look { seen, ..look(0, None) }), Verdict::Absent);
        }
    }
}
