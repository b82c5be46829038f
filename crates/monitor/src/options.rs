//! The command line.

use crate::{
    asking::Through,
    sampling::{SamplerOptions, late_after},
    state::FILE_BYTES_MAX,
};
use clap::{Parser, value_parser};
use lookaside_invalidator::{key_options::KeyOptions, options::Cluster, source::SourceUrl};
use lookaside_telemetry::LogFormat;
use std::{path::PathBuf, str::FromStr, time::Duration};

/// The most ages.
const AGES_MAX: usize = 16;
/// The greatest age, in seconds: a week.
const AGE_S_MAX: u32 = 7 * 24 * 3_600;
/// What a look-up of the end of the log may take, together with the reading of a commit, so that looks are not late.
const LOOK_UP_TIME_MAX: Duration = Duration::from_millis(500);
/// The most clusters.
const CLUSTERS_MAX: usize = 256;
/// The bytes of a sample in the state file, with a key of 250 bytes that are all percent-encoded, and the position of a
/// log that has the GTIDs of some thirty servers.
const SAMPLE_BYTES: u64 = 4_000;
/// Those of a sample in a cluster: its index and its next age.
const PENDING_BYTES: u64 = 20;
/// Those of an item that the first look has found, without the address of its router or server.
const LOOK_BYTES: u64 = 40;

const EXAMPLES: &str = "Examples:
  One delete in a thousand of a MariaDB, in two clusters of this region and one of another:
    lookaside-monitor --source mysql://lookaside:secret@db.example:3306 --region east \\
        --state-dir /var/lib/lookaside-monitor --metrics-address 9154 \\
        --cluster front-1=10.0.1.1:5000,10.0.1.2:5000 --cluster front-2=10.0.2.1:5000 \\
        --cluster west/front-3=10.9.1.1:5000

  Every delete, server by server:
    lookaside-monitor --source sqlite:///srv/app.db --sample 1 --state-dir /tmp/monitor \\
        --servers front-1=10.0.1.11:11211,10.0.1.12:11211

  What was found, as a table, and drawn:
    lookaside monitor --state-dir /var/lib/lookaside-monitor --svg stale.svg

Give it --rules, --outbox-table and so on as the invalidator has them. With PostgreSQL it reads by a temporary
replication slot, which is gone when it stops: deletes that are committed meanwhile are not sampled.

Exit status: 0 after SIGINT or SIGTERM; 1 when it cannot start; 2 for an invalid command line.";

/// Samples the deletes of a database's commit log, and asks every cluster at intervals whether a value that is older
/// than the commit is still there. It changes nothing in the caches.
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-monitor", version, after_help = EXAMPLES)]
pub struct Options {
    /// The database, as the invalidator's --source: sqlite:///PATH; mysql:// or mariadb:// with
    /// USER:PASSWORD@HOST:PORT; postgres://USER:PASSWORD@HOST:PORT/DATABASE. It need not be reachable at the start
    #[arg(long, env = "LOOKASIDE_SOURCE", hide_env_values = true, value_name = "URL")]
    pub source: SourceUrl,
    /// A cluster and its routers, of which one is asked: what a client would read. May be given several times
    #[arg(
        long = "cluster",
        value_name = "[REGION/]NAME=HOST:PORT[,HOST:PORT...]",
        required_unless_present = "servers"
    )]
    pub clusters: Vec<WatchedCluster>,
    /// A cluster and its servers, of which each is asked about each key: also what no router reads at present
    #[arg(long = "servers", value_name = "[REGION/]NAME=HOST:PORT[,HOST:PORT...]")]
    pub servers: Vec<WatchedCluster>,
    /// The region of the database, and of clusters that are given without one
    #[arg(long, value_name = "NAME", default_value = "local", value_parser = region_name)]
    pub region: String,
    /// Asks about one delete in this many. The choice depends on the key and the commit alone
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..))]
    pub sample: u32,
    /// The ages of a delete at which clusters are asked, in seconds, ascending
    #[arg(long, value_name = "SECONDS[,SECONDS...]", default_value = "1,10,60,600,3600")]
    pub ages: Ages,
    /// The most questions to each cluster per second: a key that all servers of a cluster are asked about is one
    /// question to each. Questions beyond it wait, and are counted as late if they have waited for too long
    #[arg(long, value_name = "QUESTIONS", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// The most deletes that are watched at a time, some 500 bytes each, and in the state file 200 and 50 for each
    /// cluster; beyond it chosen deletes are dropped and counted. A delete is watched until its last age, so this
    /// bounds how many can be sampled in an hour
    #[arg(long, value_name = "DELETES", default_value_t = 20_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub pending_max: u32,
    /// Milliseconds between two look-ups of the end of the log, two logins each, 10 to 60,000, and at most 1,500 more
    /// than half of the first age: 2,000 for an age of 1 s. A value that was stored this long before the commit, or up
    /// to a second more, cannot be distinguished from one that was stored after it
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = value_parser!(u64).range(10..=60_000))]
    pub look_up_every_ms: u64,
    /// Milliseconds within which a router or server must answer
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..=60_000))]
    pub timeout_ms: u64,
    /// Directory for the file that keeps counts and samples over restarts; created if missing
    #[arg(long, value_name = "PATH")]
    pub state_dir: PathBuf,
    /// Address for Prometheus metrics (GET /metrics): host:port, or a port of 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = lookaside_invalidator::options::metrics_address)]
    pub metrics_address: Option<String>,
    /// Log in at the routers or servers, if they require it (their -Y), with the line user:password in this file
    #[arg(long, value_name = "FILE")]
    pub router_login: Option<PathBuf>,
    /// How commits name keys.
    #[command(flatten)]
    pub keys: KeyOptions,
    /// PostgreSQL: the publication that has the outbox table
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    pub publication: String,
    /// Log more to stderr: -v debug, -vv trace
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log format: text, or json with one object per event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
}

/// A cluster on the command line, with its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedCluster {
    /// `None` for that of the database.
    pub region: Option<String>,
    /// Its name, and its routers or servers.
    pub cluster: Cluster,
}

impl FromStr for WatchedCluster {
    type Err = String;

    fn from_str(text: &str) -> Result<WatchedCluster, String> {
        let name_end = text.find('=').unwrap_or(text.len());
        let (region, cluster) = match text[..name_end].split_once('/') {
            Some((region, _)) => (Some(region_name(region)?), &text[region.len() + 1..]),
            None => (None, text),
        };
        Ok(WatchedCluster { region, cluster: cluster.parse()? })
    }
}

/// Ages in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ages(pub Vec<u32>);

impl FromStr for Ages {
    type Err = String;

    fn from_str(text: &str) -> Result<Ages, String> {
        let parse = |age: &str| age.parse().ok().filter(|age| (1..=AGE_S_MAX).contains(age));
        let ages: Option<Vec<u32>> = text.split(',').map(parse).collect();
        match ages {
            Some(ages) if ages.len() <= AGES_MAX && ages.is_sorted_by(|a, b| a < b) => Ok(Ages(ages)),
            _ => Err(format!(
                "expected up to {AGES_MAX} ascending numbers of seconds, each from 1 to {AGE_S_MAX}, as in 1,10,60"
            )),
        }
    }
}

fn region_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=64 if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) => {
            Ok(text.to_owned())
        }
        _ => Err(format!("the region {text:?} is not of 1 to 64 letters, digits, - _ and .")),
    }
}

impl Options {
    /// All clusters, with the way to each: those by routers first.
    pub fn watched(&self) -> impl Iterator<Item = (Through, &WatchedCluster)> {
        let by_routers = self.clusters.iter().map(|cluster| (Through::Routers, cluster));
        by_routers.chain(self.servers.iter().map(|cluster| (Through::Servers, cluster)))
    }

    /// The region of a cluster.
    pub fn region_of<'a>(&'a self, cluster: &'a WatchedCluster) -> &'a str {
        cluster.region.as_deref().unwrap_or(&self.region)
    }

    /// Checks what no single option can check.
    pub fn check(&self) -> Result<(), String> {
        let names: Vec<(&str, &str)> =
            self.watched().map(|(_, watched)| (self.region_of(watched), watched.cluster.name.as_str())).collect();
        if names.len() > CLUSTERS_MAX {
            return Err(format!("{} clusters are over the limit of {CLUSTERS_MAX}", names.len()));
        }
        let state_bytes = self.state_bytes_max();
        if state_bytes > FILE_BYTES_MAX {
            return Err(format!(
                "--pending-max {} with {} clusters would make a state file of {} MiB; at most {} MiB are possible",
                self.pending_max,
                names.len(),
                state_bytes >> 20,
                FILE_BYTES_MAX >> 20
            ));
        }
        let first_age = Duration::from_secs(self.ages.0.first().copied().unwrap_or_default().into());
        let look_up_every_max = late_after(first_age) - LOOK_UP_TIME_MAX;
        if Duration::from_millis(self.look_up_every_ms) > look_up_every_max {
            return Err(format!(
                "--look-up-every-ms {} is too long for questions after {} s: the time of a commit is known so \
                 imprecisely that they would count as late; give at most {}, or a greater first age with --ages",
                self.look_up_every_ms,
                first_age.as_secs(),
                look_up_every_max.as_millis()
            ));
        }
        match names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
            Some((_, (region, name))) => Err(format!(
                "the cluster {region}/{name} is given twice; give all its routers or servers at once, or another name: a \
                 region has each name once"
            )),
            None => Ok(()),
        }
    }

    /// About the longest state file, in bytes: each sample once, and for each cluster what its routers, or each of its
    /// servers, had at first.
    fn state_bytes_max(&self) -> u64 {
        let looks = |(through, watched): (Through, &WatchedCluster)| {
            let looks = watched.cluster.routers.iter().map(|address| LOOK_BYTES + address.len() as u64);
            match through {
                Through::Routers => looks.max().unwrap_or_default(),
                Through::Servers => looks.sum(),
            }
        };
        let of_clusters: u64 = self.watched().map(|watched| PENDING_BYTES + looks(watched)).sum();
        u64::from(self.pending_max) * (SAMPLE_BYTES + of_clusters)
    }

    /// How much is sampled.
    pub fn sampler(&self) -> SamplerOptions {
        SamplerOptions { one_in: self.sample, ages_s: self.ages.0.clone(), pending_max: self.pending_max as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let fixed = ["lookaside-monitor", "--source", "sqlite:///x.db", "--state-dir", "/tmp/x"];
        let options = Options::try_parse_from(fixed.iter().chain(arguments)).map_err(|why| why.to_string())?;
        options.check().map(|()| options)
    }

    #[test]
    fn a_cluster_is_in_the_databases_region_unless_it_has_one() {
        let options = parse(&["--region", "east", "--cluster", "a=h:1,h:2", "--servers", "west/b=h:3"]).expect("valid");
        let watched: Vec<_> = options
            .watched()
            .map(|(through, watched)| (through, options.region_of(watched), watched.cluster.name.as_str()))
            .collect();
        assert_eq!(watched, [(Through::Routers, "east", "a"), (Through::Servers, "west", "b")]);
    }

    /// The regions of `lookaside up` each have a cluster one. A monitor of two of them did not start.
    #[test]
    fn clusters_of_two_regions_may_have_one_name() {
        assert!(parse(&["--cluster", "one=h:1", "--cluster", "west/one=h:2"]).is_ok());
        let why = parse(&["--cluster", "one=h:1", "--cluster", "local/one=h:2"]).expect_err("it is the same one");
        assert!(why.contains("local/one"), "{why}");
    }

    #[test]
    fn bad_command_lines_are_refused() {
        for arguments in [
            &[][..],
            &["--cluster", "a"],
            &["--cluster", "/a=h:1"],
            &["--cluster", "we st/a=h:1"],
            &["--cluster", "a=h:1", "--servers", "a=h:2"],
            &["--cluster", "a=h:1", "--cluster", "local/a=h:2"],
            &["--cluster", "west/a=h:1", "--servers", "west/a=h:2"],
            &["--cluster", "a=h:1", "--ages", "10,1"],
            &["--cluster", "a=h:1", "--ages", "1,1"],
            &["--cluster", "a=h:1", "--ages", "0,1"],
            &["--cluster", "a=h:1", "--ages", ""],
            &["--cluster", "a=h:1", "--sample", "0"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }

    /// With more than 2.5 s each question after 1 s was late, whatever else was right.
    #[test]
    fn look_ups_that_make_each_first_look_late_are_refused() {
        let with = |look_up_every_ms: &str, ages: &str| {
            parse(&["--cluster", "a=h:1", "--look-up-every-ms", look_up_every_ms, "--ages", ages])
        };
        for (look_up_every_ms, ages) in [("2000", "1,10"), ("6500", "10,60"), ("60000", "600")] {
            assert!(with(look_up_every_ms, ages).is_ok(), "{look_up_every_ms} {ages}");
        }
        for (look_up_every_ms, ages) in [("2001", "1,10"), ("6501", "10,60"), ("60000", "1")] {
            let why = with(look_up_every_ms, ages).expect_err(ages);
            assert!(why.contains(&format!("--look-up-every-ms {look_up_every_ms}")) && why.contains("--ages"), "{why}");
        }
    }

    #[test]
    fn a_state_that_could_not_be_read_again_is_refused_at_the_start() {
        let servers: Vec<String> = (1..=200).map(|n| format!("s{n}=h:1,h:2,h:3,h:4")).collect();
        let with = |pending_max: &str| {
            let servers = servers.iter().flat_map(|servers| ["--servers", servers.as_str()]);
            parse(&["--pending-max", pending_max].into_iter().chain(servers).collect::<Vec<_>>())
        };
        assert!(with("100000").is_ok());
        let why = with("1000000").expect_err("30 GB");
        assert!(why.contains("--pending-max 1000000") && why.contains("200 clusters"), "{why}");
        assert!(parse(&["--pending-max", "1000000", "--cluster", "a=h:1"]).is_ok());
    }

    #[test]
    fn the_longest_samples_fit_into_the_state() {
        use crate::sampling::{AgeBounds, Look, Moment, Sampler, Seen, SeenItem};
        use lookaside_invalidator::{Commit, Commits, Position};
        let servers = ["10.200.201.101:11211", "10.200.201.102:11211"];
        let options =
            parse(&["--pending-max", "100", "--servers", &format!("one={}", servers.join(","))]).expect("valid");
        let mut sampler = Sampler::new(SamplerOptions { one_in: 1, ..options.sampler() }, [("one", "east")]);
        let empty = serde_json::to_vec(&sampler.save()).expect("JSON").len();
        let position = (0..30).map(|n| format!("3e11fa47-71ca-11e1-9e33-c80aa94295{n:02}:1-{}", u64::MAX));
        let position = Position(position.collect::<Vec<_>>().join(","));
        let keys = (0..100_u8).map(|n| [vec![200 + n % 50; 249], vec![n]].concat()).collect();
        let commit = Commit { position: position.clone(), keys, committed_at: std::time::SystemTime::now() };
        sampler.add_commits(&Commits { commits: vec![commit], position }, Moment { ms: u64::MAX / 2 }, &|_, _| false);
        let now = Moment { ms: u64::MAX / 2 };
        let batch = sampler.clusters[0].due(now, 100).expect("the first look is due");
        let age = Some(AgeBounds { min_ms: 0, max_ms: None });
        let look = |server: &&str| Look {
            from: (*server).to_owned(),
            sent_at: now,
            received_at: now,
            seen: Seen::Item(SeenItem { cas: u64::MAX, age }),
            servers: None,
        };
        let looks = batch.samples.iter().map(|_| servers.iter().map(look).collect()).collect();
        sampler.clusters[0].record(batch, looks);
        let bytes = serde_json::to_vec(&sampler.save()).expect("JSON").len() - empty;
        assert!(bytes as u64 <= options.state_bytes_max(), "{bytes} bytes, {} expected", options.state_bytes_max());
        assert!(bytes as u64 * 2 > options.state_bytes_max(), "{bytes} bytes, {} expected", options.state_bytes_max());
    }

    #[test]
    fn a_slash_of_an_address_is_no_region() {
        assert!("a=/run/router.sock:1".parse::<WatchedCluster>().is_ok_and(|watched| watched.region.is_none()));
    }
}
