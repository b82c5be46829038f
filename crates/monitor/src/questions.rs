//! Asks one cluster what is due, and records the answers. All questions of a cluster come from one task.

use crate::{
    asking::{Asker, BATCH_KEYS_MAX, MonitorClock},
    sampling::{Finding, Sampler, Seen, Verdict},
};
use lookaside_invalidator::commit_time;
use lookaside_protocol::percent;
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

/// An asker with nothing due looks again after this time at the latest.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// The most log lines about old values in [`FINDINGS_LOG_WINDOW`]; all are counted.
const FINDINGS_LOGGED_MAX: u32 = 100;
const FINDINGS_LOG_WINDOW: Duration = Duration::from_secs(10);

/// Called with each sample that was asked about at one of the ages.
pub type FindingObserver = Box<dyn FnMut(&Finding) + Send>;

/// The questions to one cluster.
pub struct Questions {
    /// Asks its routers or servers.
    pub asker: Asker,
    /// The samples of all clusters.
    pub sampler: Arc<Mutex<Sampler>>,
    /// The index of the cluster in it.
    pub cluster: usize,
    /// The monitor's clock.
    pub clock: MonitorClock,
    /// Notified when there are new samples.
    pub sampled: Arc<Notify>,
    /// The most questions per second, to all routers or servers together; at least 1.
    pub per_s_max: u32,
    /// Gets what was found. The samples are locked meanwhile.
    pub on_finding: FindingObserver,
}

impl Questions {
    /// Asks what is due, for ever.
    pub async fn ask_repeatedly(mut self) -> Infallible {
        self.sampler.lock().clusters[self.cluster].set_routers(self.asker.routers());
        let per_key = self.asker.questions_per_key();
        let batch_max = BATCH_KEYS_MAX.min((self.per_s_max / per_key).max(1) as usize);
        // As many as are logged.
        let mut servers_throttle = LogThrottle::new(FINDINGS_LOGGED_MAX, FINDINGS_LOG_WINDOW);
        let mut next_at = Instant::now();
        loop {
            sleep_until(next_at).await;
            let sampler = self.sampler.clone();
            let sampled = self.sampled.clone();
            // Created before the samples are looked at, so that none is missed in between.
            let notified = sampled.notified();
            let due = sampler.lock().clusters[self.cluster].due((self.clock)(), batch_max);
            let Some(batch) = due else {
                let due_at = sampler.lock().clusters[self.cluster].next_due_at();
                let wait = due_at.map_or(IDLE_MAX, |due_at| (due_at - (self.clock)()).min(IDLE_MAX));
                tokio::select! {
                    () = notified => {}
                    () = sleep(wait) => {}
                }
                continue;
            };
            let samples = batch.samples.clone();
            let keys: Vec<&[u8]> = samples.iter().map(|sample| sample.key.as_slice()).collect();
            let (asked_at, sent_before) = (Instant::now(), self.asker.questions_sent());
            let mut looks = self.asker.ask(&keys).await;
            // A question that another router is asked too counts twice, and one that could not be sent counts as well.
            let questions = (self.asker.questions_sent() - sent_before).max(keys.len() as u64 * u64::from(per_key));
            // One that was held up does not catch up by a burst.
            next_at = next_at.max(asked_at) + Duration::from_secs(questions) / self.per_s_max;
            let old = sampler.lock().clusters[self.cluster].old_looks(&batch, &looks);
            for (index, at) in old {
                if servers_throttle.allow(Instant::now()).is_some() {
                    // These count, too: old values must not break the bound when a cluster has its worst moment.
                    sleep_until(next_at).await;
                    let (asked_at, sent_before) = (Instant::now(), self.asker.questions_sent());
                    let look = &mut looks[index][at];
                    look.servers = self.asker.find_servers(&look.from, keys[index]).await;
                    let questions = self.asker.questions_sent() - sent_before;
                    next_at = next_at.max(asked_at) + Duration::from_secs(questions) / self.per_s_max;
                }
            }
            let mut sampler = sampler.lock();
            for finding in sampler.clusters[self.cluster].record(batch, looks) {
                (self.on_finding)(&finding);
            }
        }
    }
}

/// Logs the old values of a cluster with this name, in this region.
pub fn log_old_values(cluster: &str, region: &str) -> FindingObserver {
    let (cluster, region) = (cluster.to_owned(), region.to_owned());
    let mut throttle = LogThrottle::new(FINDINGS_LOGGED_MAX, FINDINGS_LOG_WINDOW);
    Box::new(move |finding| {
        let old = finding.looks.iter().filter(|(verdict, _)| *verdict == Verdict::Old);
        for (_, look) in old {
            let Some(suppressed) = throttle.allow(Instant::now()) else { continue };
            let Finding { sample, age_s, .. } = finding;
            let committed_at = sample.committed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let age = match &look.seen {
                Seen::Item(item) => item.age,
                _ => None,
            };
            tracing::warn!(
                key = %percent::encode_except(&sample.key, |byte| byte.is_ascii_graphic() && byte != b'%'),
                cluster,
                region,
                from = look.from,
                server = look.servers,
                after_s = age_s,
                stored_before_ms = age.map(|age| age.min_ms),
                committed_at_ms = committed_at.as_millis() as u64,
                position = sample.position.0,
                replay = replay_options(sample.committed_at),
                suppressed,
                "an old value is still cached after its delete; `lookaside invalidator replay` with the options in \
                 `replay` sends the delete again"
            );
        }
    })
}

/// The options with which a replay sends the delete of a commit again, with all later ones. They name its second: a
/// source may know no more of the time. `--from` with the position of the commit would begin after it.
fn replay_options(committed_at: SystemTime) -> String {
    format!("--since {}", commit_time::format(committed_at))
}
