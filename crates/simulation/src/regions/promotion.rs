//! Promotion of a replica to the master, in the steps of [the runbook]: the old master refuses writes, the replica gets
//! all that it has, applications use the replica as the master, and only then it accepts writes.
//!
//! A call that began before its application was directed to the new master may still load from the old one, whose rows
//! are old as soon as the new one accepts writes. So there is a pause of the longest call in between.
//!
//! [the runbook]: ../../../../docs/operating/regions.md

use super::{Regions, application::CALL_TIME_MAX};
use crate::region::DisabledGuarantee;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tokio::time::{Instant, sleep};

/// How long after the first application the last one may use the new master.
const ROLLOUT_MS_MAX: u64 = 300;
/// The same if they are directed to it after it accepts writes.
const ROLLOUT_MS_MAX_BROKEN: u64 = 2_000;

/// The former master follows the new one after this time at the latest.
const FOLLOWS_AFTER_MS_MAX: u64 = 2_500;

impl Regions {
    /// Promotes the replica of `target`.
    pub(super) async fn promote(&self, target: usize, rng: &mut fastrand::Rng) {
        let former = self.master.get();
        let old = &self.databases[former];
        old.set_read_only(true);
        self.databases[target].content.wait_until_visible(old.content.logged()).await;
        if self.disabled != DisabledGuarantee::Promotion {
            self.direct_applications(target, ROLLOUT_MS_MAX, rng).await;
            sleep(CALL_TIME_MAX).await;
        }
        self.stop_replication();
        self.databases[target].set_read_only(false);
        self.master.set(target);
        self.links[former].stop_until(Instant::now() + Duration::from_millis(rng.u64(0..FOLLOWS_AFTER_MS_MAX)));
        self.start_replication();
        self.all[target].checker.count(|tally| tally.promotions += 1);
        if self.disabled == DisabledGuarantee::Promotion {
            self.direct_applications(target, ROLLOUT_MS_MAX_BROKEN, rng).await;
        }
    }

    /// Each application uses the new master from a moment of its own on.
    async fn direct_applications(&self, target: usize, rollout_ms: u64, rng: &mut fastrand::Rng) {
        let mut moments: Vec<(u64, usize)> =
            (0..self.used_masters.len()).map(|cluster| (rng.u64(0..rollout_ms), cluster)).collect();
        moments.sort_unstable();
        let mut passed_ms = 0;
        for (moment_ms, cluster) in moments {
            sleep(Duration::from_millis(moment_ms - passed_ms)).await;
            passed_ms = moment_ms;
            self.used_masters[cluster].store(target, Relaxed);
        }
    }
}
