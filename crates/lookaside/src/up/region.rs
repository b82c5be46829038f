//! A region on this machine: its servers, routers and invalidator as processes, above a database that is there already.

use super::plan::{RegionPlan, local};
use crate::process::{Process, ProcessSpec};
use crate::statistics::DaemonStats;
use anyhow::{Result, bail};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const START_TIME_MAX: Duration = Duration::from_secs(20);
/// How long the invalidator may take to start reading the database's log.
const DATABASE_TIME_MAX: Duration = Duration::from_secs(10);
/// A step of the start that takes longer than this is explained.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// What a region is started with.
pub struct RegionOptions {
    /// Its ports and names.
    pub plan: RegionPlan,
    /// The URL of the database whose log its invalidator reads.
    pub database: String,
    /// The replication slot of its invalidator; `None` unless the database is PostgreSQL.
    pub slot: Option<String>,
    /// Where its logs, positions and spools are.
    pub state_dir: PathBuf,
    /// The memory of each server, in mebibytes.
    pub memory_mib: u32,
}

/// A region that runs. Dropping it stops its processes.
pub struct LocalRegion {
    /// Its ports and names.
    pub plan: RegionPlan,
    processes: Vec<Process>,
}

impl LocalRegion {
    /// Starts the processes, and waits until commits reach the caches.
    pub async fn start(options: &RegionOptions) -> Result<LocalRegion> {
        let mut region = LocalRegion { plan: options.plan.clone(), processes: Vec::new() };
        let logs = logs_of(&options.state_dir);
        std::fs::create_dir_all(&logs)?;
        region.start_servers(options.memory_mib, &logs)?;
        let servers = region.plan.servers();
        explain_if_slow(region.wait_until_ready(&servers), "waiting for the servers to start").await?;
        region.start_routers(&options.state_dir, &logs)?;
        region.start_invalidator(options, &logs)?;
        let daemons = region.plan.daemons();
        explain_if_slow(region.wait_until_ready(&daemons), "waiting for the processes to start").await?;
        let pipelines = region.wait_until_pipelines_run();
        explain_if_slow(pipelines, "waiting for the invalidator to read the commit log").await?;
        Ok(region)
    }

    /// Restarts processes that have died; returns a notice about each.
    pub fn supervise(&mut self) -> Result<Vec<String>> {
        let notices = self.processes.iter_mut().map(Process::supervise).collect::<Result<Vec<_>>>()?;
        Ok(notices.into_iter().flatten().collect())
    }

    /// Asks all processes to exit.
    pub fn terminate(&self) {
        self.processes.iter().for_each(Process::terminate);
    }

    /// The servers start before the routers, which connect eagerly: a missing server would be TKO for a while.
    fn start_servers(&mut self, memory_mib: u32, logs: &Path) -> Result<()> {
        for group in self.plan.server_groups() {
            for (index, port) in group.server_ports.iter().chain([&group.gutter_port]).enumerate() {
                let name = match index < group.server_ports.len() {
                    true => format!("{}-server-{}", group.name, index + 1),
                    false => format!("{}-gutter", group.name),
                };
                let arguments = to_strings(&["-p", &port.to_string(), "-t", "1", "-m", &memory_mib.to_string()]);
                let program = ProcessSpec::sibling("lookaside-server", arguments)?;
                self.processes.push(Process::start(&name, program, logs)?);
            }
        }
        let Some(port) = self.plan.marker_port else { return Ok(()) };
        let (port, memory) = (port.to_string(), memory_mib.to_string());
        // A marker that is evicted, or deleted and kept as a stale value, is one that is lost, or not cleared.
        let arguments = to_strings(&["-p", &port, "-t", "1", "-m", &memory, "-M", "--stale-seconds", "0"]);
        let program = ProcessSpec::sibling("lookaside-server", arguments)?;
        self.processes.push(Process::start("markers", program, logs)?);
        Ok(())
    }

    fn start_routers(&mut self, state_dir: &Path, logs: &Path) -> Result<()> {
        let configuration = state_dir.join("router.json");
        std::fs::write(&configuration, format!("{:#}\n", self.plan.router_configuration()))?;
        for cluster in &self.plan.clusters {
            let spool = state_dir.join("spool").join(cluster.name);
            let arguments = to_strings(&[
                "-p",
                &cluster.router_port.to_string(),
                "--spool",
                &spool.display().to_string(),
                "-R",
                &cluster.routing_prefix,
                "-f",
                &configuration.display().to_string(),
                "--num-proxies",
                "1",
            ]);
            let program = ProcessSpec::sibling("lookaside-router", arguments)?;
            self.processes.push(Process::start(&format!("{}-router", cluster.name), program, logs)?);
        }
        Ok(())
    }

    fn start_invalidator(&mut self, options: &RegionOptions, logs: &Path) -> Result<()> {
        let state = options.state_dir.display().to_string();
        let mut arguments = to_strings(&["--state-dir", &state]);
        arguments.extend(to_strings(&["--listen", &local(self.plan.invalidator_port)]));
        for cluster in &self.plan.clusters {
            arguments.extend(to_strings(&["--cluster", &format!("{}={}", cluster.name, local(cluster.router_port))]));
        }
        if let Some(slot) = &options.slot {
            arguments.extend(to_strings(&["--slot", slot]));
        }
        let environment = vec![("LOOKASIDE_SOURCE", options.database.clone())];
        let program = ProcessSpec { environment, ..ProcessSpec::sibling("lookaside-invalidator", arguments)? };
        self.processes.push(Process::start("invalidator", program, logs)?);
        Ok(())
    }

    async fn wait_until_ready(&mut self, ports: &[(u16, String)]) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        for (port, purpose) in ports {
            while let Err(error) = DaemonStats::fetch(*port).await {
                self.processes.iter_mut().try_for_each(Process::ensure_running)?;
                if Instant::now() > deadline {
                    return Err(error.context(format!("{purpose} did not start")));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Waits until the pipeline of every cluster runs: otherwise caches would silently go stale.
    async fn wait_until_pipelines_run(&mut self) -> Result<()> {
        let deadline = Instant::now() + DATABASE_TIME_MAX;
        loop {
            let statistics = DaemonStats::fetch(self.plan.invalidator_port).await;
            let unhealthy = statistics.as_ref().map_or_else(ToString::to_string, DaemonStats::unhealthy);
            if unhealthy.is_empty() {
                return Ok(());
            }
            self.processes.iter_mut().try_for_each(Process::ensure_running)?;
            if Instant::now() > deadline {
                bail!("no commit would reach the caches: {unhealthy}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for LocalRegion {
    fn drop(&mut self) {
        // All at once, so that stopping takes only as long as the slowest process.
        self.terminate();
    }
}

/// Where the logs of a region with this directory are.
pub fn logs_of(state_dir: &Path) -> PathBuf {
    state_dir.join("logs")
}

/// Prints `what` if `work` takes longer than [`SLOW_AFTER`].
pub async fn explain_if_slow<T>(work: impl Future<Output = T>, what: &str) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SLOW_AFTER, work.as_mut()).await {
        return done;
    }
    eprintln!("lookaside: {what}");
    work.await
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
