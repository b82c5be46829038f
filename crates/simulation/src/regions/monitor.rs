//! The monitor of a region: the production code, on the region's log and clusters. Each cluster is watched twice: by
//! its routers, and server by server.

use super::{
    density::Density,
    monitor_check::{MonitorCheck, MonitorTime, SampledDelete, WatchedCluster},
};
use crate::{
    checker::Violation,
    database::ClusterLog,
    process::Process,
    region::{
        DeleteCurve, DisabledGuarantee, SimulatedRegion,
        names::{address, cluster_name, markers_host},
    },
};
use lookaside_client::Network;
use lookaside_invalidator::{CommitLog, Position};
use lookaside_monitor::{
    asking::{Asker, MonitorClock, Through},
    follow::Follower,
    questions::Questions,
    sampling::{AgeCounts, Sampler, SamplerOptions, is_sampled},
};
use lookaside_sync::Mutex;
use std::{iter, sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep},
};

const PENDING_MAX: usize = 10_000;
/// How long a router or server may take to answer.
const TIMEOUT: Duration = Duration::from_millis(300);
/// The default of the daemon.
const QUESTIONS_PER_S_MAX: u32 = 1_000;
/// The default of the daemon, too.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the last looks may take once they are due.
const LAST_LOOKS_TIME_MAX: Duration = Duration::from_secs(30);

/// A monitor that runs.
pub(super) struct RegionMonitor {
    sampler: Arc<Mutex<Sampler>>,
    /// In the order of the sampler's clusters.
    checks: Vec<MonitorCheck>,
    clock: MonitorClock,
    density: Density,
}

impl RegionMonitor {
    /// Starts the monitor of `region`.
    pub(super) fn start(region: &SimulatedRegion, density: Density) -> RegionMonitor {
        let time = MonitorTime::new(if region.disabled == DisabledGuarantee::MonitorClock { 2 } else { 1 });
        let watched: Vec<WatchedCluster> =
            region.clusters().flat_map(|cluster| watched_clusters(region, cluster)).collect();
        let options =
            SamplerOptions { one_in: density.sample(), ages_s: density.ages_s().into(), pending_max: PENDING_MAX };
        let name = format!("region-{}", region.index);
        let names = watched.iter().map(|watched| (watched.name.as_str(), name.as_str()));
        let sampler = Arc::new(Mutex::new(Sampler::new(options, names)));
        let items = region.items.clone().expect("a region with a monitor has a log of items");
        let checks: Vec<MonitorCheck> = watched
            .into_iter()
            .map(|watched| {
                MonitorCheck::new(watched, items.clone(), region.database.clone(), region.faults.clone(), time)
            })
            .collect();
        let host = format!("monitor-{}", region.index);
        let (clock, sampled): (MonitorClock, _) = (Arc::new(move || time.now()), Arc::new(Notify::new()));
        let log: Arc<dyn CommitLog> = Arc::new(ClusterLog::new(region.database.clone(), None));
        let follower = Arc::new(Follower {
            log,
            sampler: sampler.clone(),
            clock: clock.clone(),
            sampled: sampled.clone(),
            can_resume: true,
        });
        let network = region.network.host(&host);
        let questions: Vec<Questions> = checks
            .iter()
            .enumerate()
            .map(|(index, check)| Questions {
                asker: asker(check.watched(), &network, &clock),
                sampler: sampler.clone(),
                cluster: index,
                clock: clock.clone(),
                sampled: sampled.clone(),
                per_s_max: QUESTIONS_PER_S_MAX,
                on_finding: check.observer(),
            })
            .collect();
        let process = Process::default();
        region.programs.start(&host, process.clone(), async move {
            let mut tasks = JoinSet::new();
            let reading = follower.clone();
            tasks.spawn(process.task(async move { reading.read_log().await }));
            tasks.spawn(process.task(async move { follower.look_up_ends(LOOK_UP_INTERVAL).await }));
            for questions in questions {
                tasks.spawn(process.task(questions.ask_repeatedly()));
            }
            let result = tasks.join_next().await;
            panic!("a task of a monitor ended by itself: {result:?}");
        });
        RegionMonitor { sampler, checks, clock, density }
    }

    /// Waits until it reads the log, which has no commit yet.
    pub(super) async fn wait_until_watching(&self) {
        while !self.sampler.lock().is_watching((self.clock)()) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits for the last looks, and compares all counts with those of the checker. Returns them.
    pub(super) async fn check(self, region: &SimulatedRegion) -> DeleteCurve {
        let oldest = Duration::from_secs(self.density.ages_s().iter().copied().max().unwrap_or_default().into());
        let deadline = Instant::now() + oldest + LAST_LOOKS_TIME_MAX;
        let pending = || self.sampler.lock().clusters.iter().map(|cluster| cluster.pending()).sum::<usize>();
        while pending() > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(100)).await;
        }
        let sampler = self.sampler.lock();
        let fail = |watch: &str, why: String| {
            region.checker.record_violation(Violation::WrongMonitor { watch: watch.into(), why });
        };
        let expected = deletes_of_sample(region, self.density.sample());
        if (sampler.counts.sampled, sampler.counts.dropped) != (expected.len() as u64, 0) {
            fail("all clusters", format!("{} deletes are of the sample, but {:?}", expected.len(), sampler.counts));
        }
        let mut found = DeleteCurve { samples: sampler.counts.sampled, ..DeleteCurve::default() };
        for (cluster, check) in sampler.clusters.iter().zip(&self.checks) {
            if let Err(why) = check.compare(cluster, &expected) {
                fail(&cluster.name, why);
            }
            let by_age_s = cluster.counts().map(|(age_s, counts)| (age_s, *counts)).collect();
            found.add(&DeleteCurve { samples: 0, by_age_s });
        }
        let looks = found.by_age_s.values().fold(AgeCounts::default(), |sum, counts| sum.plus(counts));
        region.checker.count(|tally| tally.monitored = tally.monitored.plus(&looks));
        found
    }
}

/// Which of the deletes in the log of `region` are to be sampled.
fn deletes_of_sample(region: &SimulatedRegion, one_in: u32) -> Vec<SampledDelete> {
    let is_chosen = |key: &[u8], position: u64| is_sampled(key, &Position(position.to_string()), one_in);
    let commits = (1..).zip(region.database.all_commits());
    let chosen = commits.flat_map(|(position, commit)| {
        let names = iter::once(commit.key.as_bytes()).chain(commit.further_names.iter().map(|name| &name[..]));
        let chosen = names.filter(|name| is_chosen(name, position)).map(|name| (position, name.to_vec()));
        chosen.collect::<Vec<_>>()
    });
    chosen.collect()
}

fn watched_clusters(region: &SimulatedRegion, cluster: usize) -> [WatchedCluster; 2] {
    let routers: Vec<String> = region.plan.routers(cluster).map(|router| router.host()).collect();
    let mut servers = region.plan.all_servers(cluster);
    servers.push(markers_host(region.index));
    let name = cluster_name(cluster);
    [
        WatchedCluster {
            name: format!("{name}-servers"),
            cluster: name.clone(),
            through: Through::Servers,
            asked: servers.clone(),
            servers: servers.clone(),
        },
        WatchedCluster { name: name.clone(), cluster: name, through: Through::Routers, asked: routers, servers },
    ]
}

fn asker(watched: &WatchedCluster, network: &Arc<dyn Network>, clock: &MonitorClock) -> Asker {
    let addresses: Vec<String> = watched.asked.iter().map(|host| address(host).0.to_string()).collect();
    Asker::new(watched.through, &addresses, TIMEOUT, network, clock)
}
